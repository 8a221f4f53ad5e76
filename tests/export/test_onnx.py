import logging
import pathlib
import sys
from itertools import product

import numpy as np
import onnx
import pytest
import tensorflow as tf
from made.exports import EXPORTS, NAMES, pixels, saved_function
from made.sampling import some
from reference.comparing import assert_close
from reference.small import one_block, run_live

import keras_vit.export.onnx as exporting
from keras_vit.export.exported_model import open_exported
from keras_vit.export.onnx import export_onnx
from keras_vit.export.saved_model import export_saved_model


@pytest.fixture(scope="module")
def file(exported):
    return exported / "model_float32.onnx"


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


def test_the_converters_get_no_copies_of_kernels(saved_model):
    """They kept ten of each: 4.7 GB for B/16."""
    loaded = tf.saved_model.load(saved_model)
    graph, kernels = exporting._frozen(loaded.signatures["serving_default"])
    assert len(kernels) == sum(len(variable.shape) in (2, 3) for variable in loaded.variables) > 10
    inputs = {f"{node.name}:0" for node in graph.node if node.op == "Placeholder"}
    assert len(inputs) == len(kernels) + 1 and inputs.issuperset(kernels)  # the images, too


def test_the_metadata_has_the_description_and_the_labels(file):
    metadata = {entry.key: entry.value for entry in onnx.load(file).metadata_props}
    assert {*metadata} == {"keras_vit.json", "labels.txt"}
    assert tuple(metadata["labels.txt"].splitlines()) == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("opset", (exporting.OPSETS[0], exporting.OPSETS[-1]))
def test_the_version_of_the_operations_can_be_chosen(opset, file, saved_model, tmp_path):
    path = export_onnx(saved_model, tmp_path / "model.onnx", opset=opset)
    assert [entry.version for entry in onnx.load(path).opset_import if entry.domain == ""] == [opset]
    found, expected = (open_exported(name).predict_on_batch(pixels(2)) for name in (path, file))
    assert_close(found, expected, 1e-5)


def test_other_versions_are_refused(saved_model, tmp_path):
    with pytest.raises(ValueError, match="opset must be one of 13, .* 18 or None; got 12"):
        export_onnx(saved_model, tmp_path / "model.onnx", opset=12)


FUSED = {  # kinds of attention, and the number of their softmaxes over tokens
    "plain": ({}, 1),
    "class token alone": ({"pooling": "token"}, 1),
    "pooling": ({"pooling": "map"}, 2),
    "rotary": ({"rotary": "axial"}, 1),
    "grouped queries": ({"num_kv_heads": 1}, 1),
}


@pytest.mark.parametrize("kind, precision", some([*product(FUSED, exporting.PRECISIONS)], 16))
def test_fused_attention_computes_what_the_model_does(kind, precision, tmp_path):
    options, count = FUSED[kind]
    calibration = [pixels(8)] if precision == "int8" else None
    model = one_block(**options)
    saved = export_saved_model(model, tmp_path / "1", warmup=())
    more = {"precision": precision, "calibration": calibration, "fused_attention": True}
    path = export_onnx(saved, tmp_path / "m.onnx", **more)
    operations = [node.op_type for node in onnx.load(path).graph.node]
    assert operations.count("MultiHeadAttention") == count
    images = pixels(4)
    found, expected = open_exported(path).predict_on_batch(images), run_live(model, images)
    assert_close(found, expected, 1e-5 if precision == "float32" else 0.1)


@pytest.mark.parametrize(
    "options", [{"relative_positions": True}, pytest.param(EXPORTS["any size"][0], marks=pytest.mark.slow)]
)
def test_a_model_without_attention_to_fuse_is_refused(options, tmp_path):
    saved = export_saved_model(one_block(**options), tmp_path / "1", warmup=())
    with pytest.raises(ValueError, match="^the model has no attention that fused_attention replaces: with"):
        export_onnx(saved, tmp_path / "m.onnx", fused_attention=True)
    assert [*tmp_path.iterdir()] == [tmp_path / "1"]


@pytest.mark.slow
def test_converting_is_quiet(saved_model, tmp_path, capfd, caplog):
    with caplog.at_level(logging.INFO):
        export_onnx(saved_model, tmp_path / "model.onnx")
    assert capfd.readouterr() == ("", "") and not [r for r in caplog.records if r.name.startswith("tf2onnx")]


def test_kernels_are_constants_at_the_inputs_of_their_matmuls(file, model):
    """Quantizers look for them there, and leave out or mistake kernels that are reshaped."""
    graph = onnx.load(file).graph
    constants = {constant.name: [*constant.dims] for constant in graph.initializer}
    right = [node.input[1] for node in graph.node if node.op_type == "MatMul"]
    kernels = [constants[name] for name in right if name in constants]
    # patches, and in the block query, key, value, output and two of the MLP, then the head
    assert len(kernels) == 8 and all(len(kernel) == 2 for kernel in kernels)


def test_dynamic_int8_rounds_every_kernel(exported, model):
    path = exported / "model_dynamic_int8.onnx"
    graph = onnx.load(path).graph
    rounded = [constant for constant in graph.initializer if constant.data_type == onnx.TensorProto.INT8]
    kernels = sum(w.value.numpy().size for w in model.weights if w.name == "kernel")
    assert sum(np.prod(constant.dims) for constant in rounded) >= kernels
    assert sum(node.op_type == "MatMulInteger" for node in graph.node) == 8


def test_int8_computes_dense_layers_in_8_bits_and_the_rest_in_float(exported):
    graph = onnx.load(exported / "model_int8.onnx").graph
    made_by = {name: node.op_type for node in graph.node for name in node.output}
    products = [node for node in graph.node if node.op_type in exporting.PRODUCTS]
    rounded = [
        {made_by.get(name) == "DequantizeLinear" for name in node.input} == {True} for node in products
    ]
    # The patch embedding and both products of the attention are in float.
    assert [node.op_type for node, is_int8 in zip(products, rounded) if is_int8] == ["Gemm"] * 7
    assert not rounded[0] and rounded.count(False) == 3
    quantized = {made_by.get(node.input[0]) for node in graph.node if node.op_type == "QuantizeLinear"}
    assert "Gemm" not in quantized  # Outputs have no scale of their own.


def test_a_model_that_does_not_run_is_refused(saved_model, tmp_path):
    folder = saved_function(tf.math.lgamma, tmp_path / "saved", saved_model / "assets")
    with pytest.raises(ValueError, match="^.*ONNX model does not run: .*$"):  # in one line
        export_onnx(folder, tmp_path / "model.onnx")
    assert [*tmp_path.iterdir()] == [folder]


def test_too_large_a_model_is_refused_before_it_is_read(saved_model, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "MAX_BYTES", 1000)
    monkeypatch.setattr(tf.saved_model, "load", None)
    with pytest.raises(ValueError, match="an ONNX file must be below 2 GiB, .*: export it as a SavedModel"):
        export_onnx(saved_model, tmp_path / "model.onnx")


def test_a_missing_package_is_named_with_its_installation(saved_model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    with pytest.raises(ImportError, match="^ONNX requires tf2onnx: pip install onnx onnxruntime tf2onnx$"):
        export_onnx(saved_model, tmp_path / "model.onnx")


def test_the_packages_are_imported_on_use():
    source = pathlib.Path(exporting.__file__).read_text()
    assert not any(f"import {name}" in source for name in exporting.PACKAGES)


@pytest.mark.parametrize("absolute", [True, False])
def test_a_file_that_reads_another_one_is_refused(absolute, tmp_path):
    secret, path = tmp_path / "secret", tmp_path / "folder/model.onnx"
    secret.write_bytes(np.ones(4, "float32").tobytes())
    path.parent.mkdir()
    tensor = onnx.helper.make_tensor("c", onnx.TensorProto.FLOAT, [4], [1.0] * 4)
    output = onnx.helper.make_tensor_value_info("c", 1, [4])

    def saved():
        graph = onnx.helper.make_graph([], "g", [], [output], initializer=[tensor])
        imports = [onnx.helper.make_opsetid("", 17)]
        model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=9)
        path.write_bytes(model.SerializeToString())
        return path

    with pytest.raises(ValueError, match="was not exported by keras_vit"):  # which onnxruntime has opened
        open_exported(saved())
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=str(secret) if absolute else "../secret")
    with pytest.raises(ValueError, match="model.onnx' is damaged, or cannot be opened here"):
        open_exported(saved())
