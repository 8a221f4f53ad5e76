import hashlib
import logging
import os
import pathlib
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import tensorflow as tf
from reference.comparing import assert_close
from reference.small import HYBRID, NO_TRANSFORMER, one_block, run_live, small

import keras_vit.export.onnx as exporting
from keras_vit.export.description import describe, read_description
from keras_vit.export.exported_model import open_exported
from keras_vit.export.onnx import export_onnx, read_onnx_description
from keras_vit.export.saved_model import export_saved_model
from keras_vit.layers import attention

MODELS = {
    "erf": {"activation": "gelu_erf"},
    "tanh": {"activation": "gelu_tanh"},
    "quick_gelu": {"activation": "quick_gelu"},
    "gap": {"pooling": "gap", "representation_size": 6},
    "map": {"pooling": "map"},
    "sincos2d": {"position_embedding": "sincos2d", "prefix_positions": False},
    "registers": {"num_registers": 2, "image_size": (16, 24), "layer_scale": 0.1},
    "distillation": {"distillation": True},
    "hybrid": {**HYBRID, "resnet": (1, 1)},
    "no transformer": {**HYBRID, **NO_TRANSFORMER, "resnet": (1,)},
    "no head": {"num_classes": None},
    "chunks of queries": {},
    "any size": {"image_size": (None, None), "pooling": "gap"},
}
# Several in one without FULL; what is left out converts by the same parts.
FEW = (
    ("erf", "registers"),
    ("tanh", "map", "chunks of queries"),
    ("quick_gelu", "any size"),
    ("no transformer",),
)
CASES = [(name,) for name in MODELS] if "FULL" in os.environ else FEW


def pixels(count, size):
    return np.random.default_rng(0).uniform(size=(count, *size, 3)).astype("float32")


def convert(model, folder, **options):
    saved = export_saved_model(model, folder / "saved_model", warmup=())
    return export_onnx(saved, folder / "model.onnx", **options)


def outputs(path, images):
    session = onnxruntime.InferenceSession(str(path))
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"images": images})))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A SavedModel and its ONNX file."""
    folder = tmp_path_factory.mktemp("plain")
    path = convert(small(num_layers=1, class_names=["ant", "bee", "cät", "dog", "eel"]), folder)
    return folder / "saved_model", path


@pytest.mark.parametrize("names", CASES, ids=", ".join)
def test_onnx_computes_what_the_model_does(names, tmp_path, monkeypatch):
    if "chunks of queries" in names:
        monkeypatch.setattr(attention, "MAX_CHUNK_SCORES", 10)  # two queries at a time
    model = one_block(**{option: value for name in names for option, value in MODELS[name].items()})
    path = convert(model, tmp_path)
    if "chunks of queries" in names:  # with the probabilities' one there are two or three without
        assert [node.op_type for node in onnx.load(path).graph.node].count("Softmax") == 4
    sizes = [(32, 32), (24, 48)] if "any size" in names else [model.image_size]
    for batch in (1, 5):
        for size in sizes:
            images = pixels(batch, size)
            found = outputs(path, images)
            assert {*found} == ({"logits", "probabilities"} if model.num_classes else {"representation"})
            assert_close(found.get("logits", found.get("representation")), run_live(model, images), 1e-5)
            if model.num_classes:
                np.testing.assert_allclose(found["probabilities"].sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize(
    "task, names", [("multi_label", {"logits", "probabilities"}), ("regression", {"values"})]
)
def test_the_task_decides_what_comes_out(task, names, tmp_path):
    model = small(num_layers=1)
    saved = export_saved_model(model, tmp_path / "saved", task=task, warmup=())
    path = export_onnx(saved, tmp_path / "model.onnx")
    images = pixels(2, model.image_size)
    found, live = outputs(path, images), run_live(model, images)
    assert {*found} == names
    assert_close(found["values" if task == "regression" else "logits"], live, 1e-5)
    if task == "multi_label":
        assert_close(found["probabilities"], 1 / (1 + np.exp(-live)), 1e-5)


def test_the_file_is_sound_onnx_with_named_sizes(plain):
    model = onnx.load(plain[1])
    onnx.checker.check_model(model, full_check=True)
    assert [entry.domain for entry in model.opset_import if entry.domain not in ("", "ai.onnx.ml")] == []
    (images,) = model.graph.input
    assert images.name == "images" and images.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert [size.dim_param or size.dim_value for size in images.type.tensor_type.shape.dim] == [
        *("batch", 16, 16, 3)
    ]
    for output in model.graph.output:
        assert [size.dim_param or size.dim_value for size in output.type.tensor_type.shape.dim] == [
            "batch",
            5,
        ]
    named = [node.name for node in model.graph.node if node.op_type == "MatMul"]
    assert any("encoder_block_0" in name for name in named)  # for those who exclude layers from quantisation
    assert len({node.name for node in model.graph.node}) == len(model.graph.node)


def test_weights_are_stored_once(plain):
    weights = read_description(plain[0]).parameters * 4
    assert weights <= plain[1].stat().st_size <= weights * 1.05 + 80 * 1024


def test_the_file_says_what_it_is(plain):
    saved, path = plain
    assert read_onnx_description(path) == read_description(saved)
    metadata = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    assert metadata["labels.txt"] == "ant\nbee\ncät\ndog\neel\n"
    assert {*metadata} == {"keras_vit.json", "labels.txt"}


def test_the_same_bytes_again_and_from_another_process(plain, tmp_path):
    saved, path = plain
    again = export_onnx(saved, tmp_path / "again.onnx")
    code = "import sys; from keras_vit.export.onnx import export_onnx; export_onnx(sys.argv[1], sys.argv[2])"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", code, str(saved), str(tmp_path / "other.onnx")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    hashes = {
        hashlib.sha256(file.read_bytes()).hexdigest() for file in (path, again, tmp_path / "other.onnx")
    }
    assert len(hashes) == 1


@pytest.mark.parametrize("opset", (13, *[18] * ("FULL" in os.environ)))
def test_the_version_of_the_operations_can_be_chosen(plain, tmp_path, opset):
    path = export_onnx(plain[0], tmp_path / "model.onnx", opset=opset)
    assert [entry.version for entry in onnx.load(path).opset_import if entry.domain == ""] == [opset]
    images = pixels(2, (16, 16))
    assert_close(outputs(path, images)["logits"], outputs(plain[1], images)["logits"], 1e-5)


@pytest.mark.parametrize("opset", (12, 19, "15", True))
def test_other_versions_are_refused(plain, tmp_path, opset):
    with pytest.raises(ValueError, match=f"opset must be an int from 13 to 18, or None; got {opset!r}"):
        export_onnx(plain[0], tmp_path / "model.onnx", opset=opset)


def test_it_is_quiet(plain, tmp_path, capfd, caplog):
    with caplog.at_level(logging.INFO):
        export_onnx(plain[0], tmp_path / "model.onnx")
    assert capfd.readouterr() == ("", "") and not [r for r in caplog.records if r.name.startswith("tf2onnx")]


def test_a_name_that_is_no_onnx_files_or_taken_is_refused(plain, tmp_path):
    with pytest.raises(ValueError, match="an ONNX file ends in .onnx; got '.*model.bin'"):
        export_onnx(plain[0], tmp_path / "model.bin")
    path = tmp_path / "model.onnx"
    path.write_text("mine")
    with pytest.raises(ValueError, match="model.onnx' exists; .*model-2.onnx' is free"):
        export_onnx(plain[0], path)
    assert path.read_text() == "mine"


def foreign(function, folder, **variables):
    """A SavedModel of one function of images, with the description of a small model."""
    module = tf.train.Checkpoint(**variables)
    spec = tf.TensorSpec((None, 16, 16, 3), name="images")
    module.serve = tf.function(lambda images: {"logits": function(images)}, input_signature=[spec])
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.serve})
    (folder / "assets" / "keras_vit.json").write_text(describe(small()).as_json())
    return folder


@pytest.mark.parametrize(
    "function, message",
    [
        (lambda x: tf.math.lgamma(x), "would hold what does not run: .*Lgamma"),
        (lambda x: tf.math.log(x - 2), "logits are not all finite"),
    ],
)
def test_what_does_not_run_or_is_no_number_leaves_nothing(function, message, tmp_path):
    folder = foreign(function, tmp_path / "saved")
    with pytest.raises(ValueError, match=message) as caught:
        export_onnx(folder, tmp_path / "model.onnx")
    assert "\n" not in str(caught.value)
    assert [*tmp_path.iterdir()] == [folder]


def test_a_foreign_saved_model_and_a_foreign_file_are_refused(tmp_path):
    folder = foreign(lambda x: x, tmp_path / "saved")
    (folder / "assets" / "keras_vit.json").unlink()
    with pytest.raises(ValueError, match="was not exported by keras_vit"):
        export_onnx(folder, tmp_path / "model.onnx")
    file = tmp_path / "other.onnx"
    for content, message in ((b"", "was not exported"), (b"no protocol buffer", "damaged, or no ONNX file")):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_onnx_description(file)
    with pytest.raises(ValueError, match="no such file: '.*missing.onnx'"):
        read_onnx_description(tmp_path / "missing.onnx")


def test_too_large_a_model_is_refused_before_it_is_read(plain, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "LARGEST", 1000)
    monkeypatch.setattr(tf.saved_model, "load", None)
    with pytest.raises(ValueError, match="an ONNX file is below 2 GiB; .*: export it as a SavedModel"):
        export_onnx(plain[0], tmp_path / "model.onnx")


@pytest.mark.parametrize("name", ("onnx", "onnxruntime", "tf2onnx"))
def test_a_missing_package_is_named_with_what_to_install(name, plain, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"^ONNX wants {name}: pip install onnx onnxruntime tf2onnx$"):
        export_onnx(plain[0], tmp_path / "model.onnx")


def test_the_packages_are_imported_when_they_are_wanted():
    source = pathlib.Path(exporting.__file__).read_text()
    assert not any(f"import {name}" in source for name in exporting.PACKAGES)


def graph(*nodes, **parts):
    return onnx.helper.make_graph(nodes, "g", [], [onnx.helper.make_tensor_value_info("c", 1, [4])], **parts)


def constant(tensor):
    return onnx.helper.make_node("Constant", [], ["c"], value=tensor)


def sparse(values):
    indices = onnx.helper.make_tensor("i", onnx.TensorProto.INT64, [4], [0, 1, 2, 3])
    return onnx.SparseTensorProto(values=values, indices=indices, dims=[4])


@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize(
    "place",
    [
        lambda tensor: graph(initializer=[tensor]),
        lambda tensor: graph(sparse_initializer=[sparse(tensor)]),
        lambda tensor: graph(constant(tensor)),
    ],
    ids=["initializer", "sparse", "attribute"],
)
def test_a_file_that_reads_another_one_is_refused(place, absolute, tmp_path):
    """By onnxruntime: for initializers since 1.24, for sparse ones since 1.27."""
    secret, path = tmp_path / "secret", tmp_path / "folder/model.onnx"
    secret.write_bytes(np.ones(4, "float32").tobytes())
    path.parent.mkdir()
    tensor = onnx.helper.make_tensor("c", onnx.TensorProto.FLOAT, [4], [1.0] * 4)

    def saved():
        imports = [onnx.helper.make_opsetid("", 17)]
        path.write_bytes(
            onnx.helper.make_model(place(tensor), opset_imports=imports, ir_version=9).SerializeToString()
        )
        return path

    with pytest.raises(ValueError, match="was not exported by keras_vit"):  # which onnxruntime has opened
        open_exported(saved())
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=str(secret) if absolute else "../secret")
    with pytest.raises(ValueError, match="model.onnx' is damaged, or cannot be opened here"):
        open_exported(saved())
