import dataclasses
import struct
import zipfile

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from made.exports import NAMES

from keras_vit.export.description import describe
from keras_vit.export.litert.metadata import read_tflite_description, write_tflite

# The published schema of TFLITE_METADATA ("M001"), as far as it is used: each table's fields by their
# numbers, and of what kind they are. A union has two numbers: which table it is, and where.
FILE = {0: ("name", str), 1: ("description", str), 2: ("type", "B")}
IMAGE = {0: ("color_space", "B"), 1: ("default_size", {0: ("width", "I"), 1: ("height", "I")})}
NORMALIZATION = {0: ("mean", ["f"]), 1: ("std", ["f"])}
TENSOR = {
    0: ("name", str),
    1: ("description", str),
    2: ("dimension_names", [str]),
    3: ("content", {0: ("properties_type", "B"), 1: ("properties", (None, {}, IMAGE))}),
    4: ("process_units", [{0: ("options_type", "B"), 1: ("options", (None, NORMALIZATION))}]),
    5: ("stats", {0: ("max", ["f"]), 1: ("min", ["f"])}),
    6: ("associated_files", [FILE]),
}
GRAPH = {
    0: ("name", str),
    1: ("description", str),
    2: ("input_tensor_metadata", [TENSOR]),
    3: ("output_tensor_metadata", [TENSOR]),
}
MODEL = {0: ("name", str), 1: ("description", str), 2: ("version", str), 3: ("subgraph_metadata", [GRAPH])}


def parse(data, kind=MODEL, at=0, union=0):
    """What is at a place of a flatbuffer, by the published layout of flatbuffers; at the start, the root."""

    def read(form, place):
        assert place % struct.calcsize(form) == 0, "a number that is not aligned"
        return struct.unpack_from("<" + form, data, place)[0]

    if isinstance(kind, str):
        return read(kind, at)
    at += read("I", at)
    if kind is str:
        length = read("I", at)
        assert data[at + 4 + length] == 0
        return data[at + 4 : at + 4 + length].decode()
    if isinstance(kind, list):
        return [parse(data, kind[0], at + 4 + 4 * i) for i in range(read("I", at))]
    kind = kind[union] if isinstance(kind, tuple) else kind
    table = at - read("i", at)
    count = read("H", table) // 2 - 2
    assert count <= len(kind), "a field that the schema does not have"
    found = {}
    for number in range(count):
        name, inner = kind[number]
        if place := read("H", table + 4 + 2 * number):
            found[name] = parse(data, inner, at + place, found.get(name + "_type", 0))
    return found


def graph(path):
    """What TFLITE_METADATA says of the graph, through LiteRT's own reader of the file around it."""
    content = path.read_bytes()
    assert schema.Model.ModelBufferHasIdentifier(content, 0)
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    (entry,) = [entry for entry in model.metadata if entry.name == b"TFLITE_METADATA"]
    data = model.buffers[entry.buffer].data.tobytes()
    assert data[4:8] == b"M001"
    (found,) = parse(data)["subgraph_metadata"]
    return found


@pytest.fixture(scope="module")
def path(exported):
    return exported / "model_float32.tflite"


@pytest.fixture(scope="module")
def plain(path):
    """The bytes of the flatbuffer that the converter wrote, within those of the file."""
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        end = min(info.header_offset for info in archive.infolist())
    return content[content.index(b"TFL3", 8) - 4 : end]


@pytest.fixture
def written(path, plain, tmp_path):
    """Writes the flatbuffer with the metadata of a changed Description."""

    def write(**changes):
        description = dataclasses.replace(read_tflite_description(path), **changes)
        write_tflite(tmp_path / "m.tflite", plain, description)
        return graph(tmp_path / "m.tflite")

    return write


def test_it_says_how_pixels_become_the_input(path):
    (images,) = graph(path)["input_tensor_metadata"]
    assert images == {
        "name": "images",
        "process_units": [{"options_type": 1, "options": {"mean": [0.0], "std": [255.0]}}],
        "content": {
            "properties_type": 2,
            "properties": {"color_space": 1, "default_size": {"width": 16, "height": 16}},
        },
        "stats": {"max": [1.0], "min": [0.0]},
    }


def test_it_names_the_outputs_in_their_order_with_the_file_of_labels(path):
    interpreter = Interpreter(model_path=str(path))
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], np.ones((1, 16, 16, 3), "float32"))
    interpreter.invoke()
    values = [interpreter.get_tensor(output["index"]) for output in interpreter.get_output_details()]
    labels = {"associated_files": [{"name": "labels.txt", "type": 2}]}
    ranges = {"probabilities": {"stats": {"max": [1.0], "min": [0.0]}}, "logits": {}}
    names = ["probabilities" if np.isclose(value.sum(), 1, atol=1e-4) else "logits" for value in values]
    expected = [{"name": name, **labels, **ranges[name]} for name in names]
    assert graph(path)["output_tensor_metadata"] == expected


def test_any_unzip_reads_the_labels_and_the_description(model, path):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == ["keras_vit.json", "labels.txt"]
        assert archive.read("labels.txt").decode().splitlines() == [*NAMES]
        for info in archive.infolist():
            assert info.compress_type == zipfile.ZIP_STORED  # Android's reader takes nothing else
            start = info.header_offset  # counted from the file's first byte
            assert path.read_bytes()[start : start + 4] == b"PK\x03\x04"
    assert read_tflite_description(path) == describe(model)


def test_outputs_without_classes_have_no_labels(written):
    outputs = written(task="regression")["output_tensor_metadata"]
    assert not any("associated_files" in output for output in outputs)


@pytest.mark.parametrize("channels, color_space", [(1, 2), (5, 0)])
def test_images_of_other_channels_are_described(channels, color_space, written):
    found = written(channels=channels)["input_tensor_metadata"][0]["content"]["properties"]
    assert found == {"color_space": color_space, "default_size": {"width": 16, "height": 16}}


def test_it_changes_no_other_part_of_the_file(path, plain):
    content, packed = path.read_bytes(), []
    assert content.index(plain) % 16 == 0  # The weights stay aligned.
    with_it, without = (schema.ModelT.InitFromObj(schema.Model.GetRootAs(x, 0)) for x in (content, plain))
    del with_it.buffers[-1], with_it.metadata[-1]
    for model in (with_it, without):
        builder = flatbuffers.Builder()
        builder.Finish(model.Pack(builder))
        packed.append(builder.Output())
    assert packed[0] == packed[1]


def test_a_file_of_somebody_else_is_refused(plain, tmp_path):
    path = tmp_path / "other.tflite"
    path.write_bytes(plain)
    with pytest.raises(ValueError, match="other.tflite' was not exported by keras_vit: it has no"):
        read_tflite_description(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("labels.txt", "a\n")
    with pytest.raises(ValueError, match="other.tflite' was not exported by keras_vit"):
        read_tflite_description(path)
    with pytest.raises(FileNotFoundError):
        read_tflite_description(tmp_path / "none.tflite")
