import dataclasses
import struct
import zipfile

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from made.exports import NAMES
from reference.small import one_block

from keras_vit.export import tflite
from keras_vit.export.description import describe
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.tflite import export_tflite
from keras_vit.export.tflite_metadata import read_tflite_description, write_tflite

# The published schema of TFLITE_METADATA ("M001"), as far as it is used: each table's fields by their
# numbers, and of what kind they are. A union has two numbers: which table it is, and where.
FILE = {0: ("name", str), 1: ("description", str), 2: ("type", "B")}
FEATURES = {}
IMAGE = {0: ("color_space", "B"), 1: ("default_size", {0: ("width", "I"), 1: ("height", "I")})}
NORMALIZATION = {0: ("mean", ["f"]), 1: ("std", ["f"])}
TENSOR = {
    0: ("name", str),
    1: ("description", str),
    2: ("dimension_names", [str]),
    3: (
        "content",
        {0: ("properties_type", "B"), 1: ("properties", (None, FEATURES, IMAGE)), 2: ("range", {})},
    ),
    4: ("process_units", [{0: ("options_type", "B"), 1: ("options", (None, NORMALIZATION))}]),
    5: ("stats", {0: ("max", ["f"]), 1: ("min", ["f"])}),
    6: ("associated_files", [FILE]),
}
GRAPH = {
    0: ("name", str),
    1: ("description", str),
    2: ("input_tensor_metadata", [TENSOR]),
    3: ("output_tensor_metadata", [TENSOR]),
    4: ("associated_files", [FILE]),
}
MODEL = {
    0: ("name", str),
    1: ("description", str),
    2: ("version", str),
    3: ("subgraph_metadata", [GRAPH]),
    4: ("author", str),
    5: ("license", str),
    6: ("associated_files", [FILE]),
    7: ("min_parser_version", str),
}


def parse(data, kind=MODEL, at=0, union=0):
    """What is at a place of a flatbuffer, by the published layout of flatbuffers; at the start, the root."""

    def read(form, place):
        size = struct.calcsize(form)
        assert place % size == 0, "a number that is not aligned"
        return struct.unpack_from("<" + form, data, place)[0]

    if isinstance(kind, str):
        return read(kind, at)
    at += read("I", at)
    if kind is str:
        (length,) = struct.unpack_from("<I", data, at)
        assert data[at + 4 + length] == 0
        return data[at + 4 : at + 4 + length].decode()
    if isinstance(kind, list):
        return [parse(data, kind[0], at + 4 + 4 * i) for i in range(read("I", at))]
    if isinstance(kind, tuple):
        kind = kind[union]
    table = at - read("i", at)
    count = read("H", table) // 2 - 2
    assert count <= len(kind), "a field that the schema does not have"
    found = {}
    for number in range(count):
        name, inner = kind[number]
        if place := read("H", table + 4 + 2 * number):
            found[name] = parse(data, inner, at + place, found.get(name + "_type", 0))
    return found


def metadata(path):
    """What TFLITE_METADATA says, through LiteRT's own reader of the file around it."""
    content = path.read_bytes()
    assert schema.Model.ModelBufferHasIdentifier(content, 0)
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    (entry,) = [entry for entry in model.metadata if entry.name == b"TFLITE_METADATA"]
    data = model.buffers[entry.buffer].data.tobytes()
    assert data[4:8] == b"M001"
    return parse(data)


@pytest.fixture(scope="module")
def path(exported):
    return exported / "model_float32.tflite"


@pytest.fixture(scope="module")
def plain(saved_model, tmp_path_factory):
    """The same file without metadata."""
    path = tmp_path_factory.mktemp("plain") / "m.tflite"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tflite, "write_tflite", lambda path, content, description: path.write_bytes(content))
        return export_tflite(saved_model, path, precision="float32")


def test_it_says_how_pixels_become_the_input(path):
    (graph,) = metadata(path)["subgraph_metadata"]
    (images,) = graph["input_tensor_metadata"]
    assert images["name"] == "images"
    assert images["process_units"] == [{"options_type": 1, "options": {"mean": [0.0], "std": [255.0]}}]
    assert images["content"]["properties_type"] == 2
    assert images["content"]["properties"] == {"color_space": 1, "default_size": {"width": 16, "height": 16}}
    assert images["stats"] == {"max": [1.0], "min": [0.0]}


def test_it_describes_the_outputs_in_their_order_and_names_the_labels(path):
    found = metadata(path)
    (graph,) = found["subgraph_metadata"]
    outputs = graph["output_tensor_metadata"]
    interpreter = Interpreter(model_path=str(path))
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], np.ones((1, 16, 16, 3), "float32"))
    interpreter.invoke()
    values = [interpreter.get_tensor(output["index"]) for output in interpreter.get_output_details()]
    assert [output["name"] for output in outputs] == [
        "probabilities" if np.isclose(value.sum(), 1, atol=1e-4) else "logits" for value in values
    ]
    for output in outputs:
        (file,) = output["associated_files"]
        assert (file["name"], file["type"]) == ("labels.txt", 2)
        assert output["content"] == {"properties_type": 1, "properties": {}}
    (scores,) = [output for output in outputs if output["name"] == "probabilities"]
    assert scores["stats"] == {"max": [1.0], "min": [0.0]}
    assert "softmax" in scores["description"]
    assert [(file["name"], file["type"]) for file in found["associated_files"]] == [("keras_vit.json", 1)]
    assert found["min_parser_version"] == "1.0.0"


def test_any_unzip_reads_the_labels_and_the_description(model, path):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == ["keras_vit.json", "labels.txt"]
        assert archive.read("labels.txt").decode().splitlines() == [*NAMES]
        for info in archive.infolist():
            assert info.compress_type == zipfile.ZIP_STORED  # Android's reader takes nothing else
            content = path.read_bytes()
            start = info.header_offset  # counted from the file's first byte
            assert content[start : start + 4] == b"PK\x03\x04"
    assert read_tflite_description(path) == describe(model)


def test_probabilities_of_several_labels_are_sigmoids(path, plain, tmp_path):
    described = dataclasses.replace(read_tflite_description(path), task="multi_label")
    write_tflite(tmp_path / "m.tflite", plain.read_bytes(), described)
    (graph,) = metadata(tmp_path / "m.tflite")["subgraph_metadata"]
    outputs = {output["name"]: output["description"] for output in graph["output_tensor_metadata"]}
    assert "sigmoid" in outputs["probabilities"]
    assert read_tflite_description(tmp_path / "m.tflite") == described


@pytest.mark.slow
@pytest.mark.parametrize(
    "task, num_classes, outputs",
    [("regression", 5, {"values"}), ("single_label", None, {"representation"})],
)
def test_outputs_without_classes_have_no_labels(task, num_classes, outputs, tmp_path):
    model = one_block(num_classes=num_classes)
    saved = export_saved_model(model, tmp_path / "1", task=task)
    path = export_tflite(saved, tmp_path / "m.tflite", precision="float32", batch_size=1)
    (graph,) = metadata(path)["subgraph_metadata"]
    assert {output["name"] for output in graph["output_tensor_metadata"]} == outputs
    assert not any("associated_files" in output for output in graph["output_tensor_metadata"])
    assert "labels.txt" not in zipfile.ZipFile(path).namelist()
    assert read_tflite_description(path) == describe(model, task)


@pytest.mark.parametrize("channels, color_space", [(1, 2), (3, 1), (5, 0)])
def test_grey_images_are_called_grey(channels, color_space, path, plain, tmp_path):
    described = dataclasses.replace(read_tflite_description(path), channels=channels)
    write_tflite(tmp_path / "m.tflite", plain.read_bytes(), described)
    (graph,) = metadata(tmp_path / "m.tflite")["subgraph_metadata"]
    assert graph["input_tensor_metadata"][0]["content"]["properties"]["color_space"] == color_space


def test_a_model_of_any_size_has_no_default_size(path, plain, tmp_path):
    described = dataclasses.replace(read_tflite_description(path), image_size=(None, None))
    write_tflite(tmp_path / "m.tflite", plain.read_bytes(), described)
    (graph,) = metadata(tmp_path / "m.tflite")["subgraph_metadata"]
    assert graph["input_tensor_metadata"][0]["content"]["properties"] == {"color_space": 1}


def test_it_changes_no_output_and_no_other_part(path, plain, rng):
    images = rng.random((3, 16, 16, 3), "float32")
    found, expected = (
        Interpreter(model_path=str(file)).get_signature_runner("serving_default")(images=images)
        for file in (path, plain)
    )
    assert found.keys() == expected.keys()
    for name, numbers in expected.items():
        np.testing.assert_array_equal(found[name], numbers)

    with_it, without = (
        schema.ModelT.InitFromObj(schema.Model.GetRootAs(file.read_bytes(), 0)) for file in (path, plain)
    )
    assert with_it.version == without.version == 3
    assert with_it.description == without.description
    assert len(with_it.buffers) == len(without.buffers) + 1
    for ours, theirs in zip(with_it.buffers, without.buffers):
        np.testing.assert_array_equal(ours.data, theirs.data)
    assert [entry.name for entry in with_it.metadata] == [
        *(entry.name for entry in without.metadata),
        b"TFLITE_METADATA",
    ]
    assert [entry.buffer for entry in with_it.metadata[:-1]] == [entry.buffer for entry in without.metadata]


def test_the_weights_stay_aligned(path, plain):
    """To multiples of 16 bytes and of whatever else the converter chose."""

    def starts(content):
        model = schema.Model.GetRootAs(content, 0)
        tables = [model.Buffers(i)._tab for i in range(model.BuffersLength())]
        return [table.Vector(table.Offset(4)) for table in tables if table.Offset(4)]

    *others, ours = starts(path.read_bytes())
    assert ours % 16 == 0
    assert (
        len({after - before for after, before in zip(others, starts(plain.read_bytes()), strict=True)}) == 1
    )
    assert (others[0] - starts(plain.read_bytes())[0]) % 16 == 0


def test_the_flatbuffer_follows_untouched(path, plain):
    content, original = path.read_bytes(), plain.read_bytes()
    front = content.index(original)
    assert front % 16 == 0
    assert content[front + len(original) :].startswith(b"PK\x03\x04")


def test_a_file_of_somebody_else_is_refused(plain, tmp_path):
    with pytest.raises(ValueError, match="m.tflite' was not exported by keras_vit: it has no keras_vit.json"):
        read_tflite_description(plain)
    with zipfile.ZipFile(tmp_path / "other.tflite", "w") as archive:
        archive.writestr("labels.txt", "a\n")
    with pytest.raises(ValueError, match="other.tflite' was not exported by keras_vit"):
        read_tflite_description(tmp_path / "other.tflite")
    with pytest.raises(FileNotFoundError):
        read_tflite_description(tmp_path / "none.tflite")
