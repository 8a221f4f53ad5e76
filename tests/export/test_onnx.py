import logging
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import tensorflow as tf
from made.exports import NAMES, pixels
from reference.comparing import assert_close
from reference.small import HYBRID, NO_TRANSFORMER, one_block, run_live, small

import keras_vit.export.onnx as exporting
from keras_vit.export.description import describe, read_description
from keras_vit.export.exported_model import open_exported
from keras_vit.export.onnx import export_onnx
from keras_vit.export.saved_model import export_saved_model
from keras_vit.layers import attention

SLOW = pytest.mark.slow
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
    "chunked attention": {},
    "any size": {"image_size": (None, None), "pooling": "gap"},
}
CASES = [("tanh", "map", "chunked attention"), *(pytest.param((name,), marks=SLOW) for name in MODELS)]


def outputs(path, images):
    session = onnxruntime.InferenceSession(str(path))
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"images": images})))


@pytest.fixture(scope="module")
def file(exported):
    return exported / "model.onnx"


@pytest.mark.parametrize("names", CASES)
def test_onnx_computes_what_the_model_does(names, tmp_path, monkeypatch):
    if "chunked attention" in names:
        monkeypatch.setattr(attention, "MAX_CHUNK_SCORES", 10)  # two queries at a time
    model = one_block(**{option: value for name in names for option, value in MODELS[name].items()})
    saved = export_saved_model(model, tmp_path / "saved", warmup=())
    path = export_onnx(saved, tmp_path / "model.onnx")
    sizes = [(32, 32), (24, 48)] if "any size" in names else [model.image_size]
    for batch in (1, 5):
        for size in sizes:
            images = pixels(batch, size)
            found = outputs(path, images)
            assert {*found} == ({"logits", "probabilities"} if model.num_classes else {"representation"})
            assert_close(found.get("logits", found.get("representation")), run_live(model, images), 1e-5)
            if model.num_classes:
                np.testing.assert_allclose(found["probabilities"].sum(1), 1, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "task, names", [("multi_label", {"logits", "probabilities"}), ("regression", {"values"})]
)
def test_the_outputs_are_the_tasks(task, names, tmp_path):
    model = one_block()
    saved = export_saved_model(model, tmp_path / "saved", task=task, warmup=())
    path = export_onnx(saved, tmp_path / "model.onnx")
    found, live = outputs(path, pixels(2)), run_live(model, pixels(2))
    assert {*found} == names
    assert_close(found["values" if task == "regression" else "logits"], live, 1e-5)
    if task == "multi_label":
        assert_close(found["probabilities"], 1 / (1 + np.exp(-live)), 1e-5)


def test_the_file_is_sound_onnx_with_named_dimensions(file):
    model = onnx.load(file)
    onnx.checker.check_model(model, full_check=True)
    assert [entry.domain for entry in model.opset_import if entry.domain not in ("", "ai.onnx.ml")] == []
    shapes = {
        value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert shapes == {"images": ["batch", 16, 16, 3], "logits": ["batch", 10], "probabilities": ["batch", 10]}
    assert model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    named = [node.name for node in model.graph.node if node.op_type == "MatMul"]
    assert any("encoder_block_0" in name for name in named)  # for those who exclude layers from quantization


def test_weights_are_stored_once(file, model):
    weights = model.count_params() * 4
    stored = sum(len(constant.raw_data) for constant in onnx.load(file).graph.initializer)
    assert weights <= stored <= weights * 1.05 + 1024


def test_the_metadata_has_the_description_and_the_labels(file, saved_model):
    assert open_exported(file).description == read_description(saved_model)
    metadata = {entry.key: entry.value for entry in onnx.load(file).metadata_props}
    assert {*metadata} == {"keras_vit.json", "labels.txt"}
    assert tuple(metadata["labels.txt"].splitlines()) == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("opset", exporting.OPSETS)
def test_the_version_of_the_operations_can_be_chosen(opset, file, saved_model, tmp_path):
    path = export_onnx(saved_model, tmp_path / "model.onnx", opset=opset)
    assert [entry.version for entry in onnx.load(path).opset_import if entry.domain == ""] == [opset]
    assert_close(outputs(path, pixels(2))["logits"], outputs(file, pixels(2))["logits"], 1e-5)


@pytest.mark.parametrize("opset", (12, 19, "15", True))
def test_other_versions_are_refused(opset, saved_model, tmp_path):
    with pytest.raises(ValueError, match=f"opset must be an int from 13 to 18, or None; got {opset!r}"):
        export_onnx(saved_model, tmp_path / "model.onnx", opset=opset)


@pytest.mark.slow
def test_converting_is_quiet(saved_model, tmp_path, capfd, caplog):
    with caplog.at_level(logging.INFO):
        export_onnx(saved_model, tmp_path / "model.onnx")
    assert capfd.readouterr() == ("", "") and not [r for r in caplog.records if r.name.startswith("tf2onnx")]


def test_other_suffixes_and_existing_files_are_refused(saved_model, tmp_path):
    with pytest.raises(ValueError, match="the name of an ONNX file must end in .onnx; got '.*model.bin'"):
        export_onnx(saved_model, tmp_path / "model.bin")
    path = tmp_path / "model.onnx"
    path.write_text("mine")
    with pytest.raises(ValueError, match="model.onnx' exists; .*model-2.onnx' is free"):
        export_onnx(saved_model, path)
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
        (lambda x: tf.math.lgamma(x), "ONNX model does not run: .*Lgamma"),
        (lambda x: tf.math.log(x - 2), "the logits of the converted ONNX model are not all finite"),
    ],
)
def test_a_model_that_does_not_run_or_computes_nan_is_refused(function, message, tmp_path):
    folder = foreign(function, tmp_path / "saved")
    with pytest.raises(ValueError, match=message) as caught:
        export_onnx(folder, tmp_path / "model.onnx")
    assert "\n" not in str(caught.value)
    assert [*tmp_path.iterdir()] == [folder]


def test_a_foreign_saved_model_is_refused(tmp_path):
    folder = foreign(lambda x: x, tmp_path / "saved")
    (folder / "assets" / "keras_vit.json").unlink()
    with pytest.raises(ValueError, match="was not exported by keras_vit"):
        export_onnx(folder, tmp_path / "model.onnx")


def test_too_large_a_model_is_refused_before_it_is_read(saved_model, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "MAX_BYTES", 1000)
    monkeypatch.setattr(tf.saved_model, "load", None)
    with pytest.raises(ValueError, match="an ONNX file must be below 2 GiB, .*: export it as a SavedModel"):
        export_onnx(saved_model, tmp_path / "model.onnx")


@pytest.mark.parametrize("name", exporting.PACKAGES)
def test_a_missing_package_is_named_with_its_installation(name, saved_model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"^ONNX requires {name}: pip install onnx onnxruntime tf2onnx$"):
        export_onnx(saved_model, tmp_path / "model.onnx")


def test_the_packages_are_imported_on_use():
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
    """onnxruntime refuses it: for initializers since 1.24, for sparse ones since 1.27."""
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
