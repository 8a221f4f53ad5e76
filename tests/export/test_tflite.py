import collections
import json
import shutil
from unittest import mock

import keras
import pytest
import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema
from made.exports import pixels
from made.tables import by_table
from reference.comparing import assert_close
from reference.small import run_live

from keras_vit.export import tflite
from keras_vit.export.litert.metadata import read_tflite_description
from keras_vit.export.litert.ml_drift import name_of, read_graph
from keras_vit.export.outputs.rows import RowOutputs
from keras_vit.export.tflite import export_tflite, open_runner


def input_shape(path):
    return [*open_runner(path).get_input_details()["images"]["shape_signature"]]


def operations(path):
    """The graph of a file, and the names of its operations."""
    file, graph = read_graph(path.read_bytes())
    return graph, [name_of(file, operation) for operation in graph.operators]


def test_files_of_every_precision_have_built_in_operations_and_constant_weights(exported):
    for path in exported.glob("*.tflite"):
        used = {*operations(path)[1]}
        assert "FULLY_CONNECTED" in used
        assert not used & {"CUSTOM", "VAR_HANDLE", "READ_VARIABLE", "CALL_ONCE"}
        assert "SQUARED_DIFFERENCE" not in used  # XNNPACK has no kernel of int8 for it.


def test_int8_computes_dense_layers_in_8_bits_and_all_else_in_float(exported):
    (graph, of_graph), names = operations(exported / "model_int8.tflite"), collections.Counter()
    for operation, name in zip(graph.operators, of_graph):
        kinds = {graph.tensors[i].type for i in (*operation.inputs[:2], *operation.outputs) if i >= 0}
        names[name, schema.TensorType.INT8 in kinds] += 1
        if name == "FULLY_CONNECTED":
            kernel = graph.tensors[operation.inputs[1]]
            assert len(kernel.quantization.scale) == kernel.shape[0]  # one scale for each channel
    in_8_bits = {name for name, is_int8 in names if is_int8}
    assert in_8_bits == {"FULLY_CONNECTED", "QUANTIZE", "DEQUANTIZE"}
    # Query, key, value and output, two of the MLP, and the head; and the patch embedding.
    assert (names["FULLY_CONNECTED", True], names["CONV_2D", False]) == (7, 1)
    assert names["BATCH_MATMUL", False] == 2 and names["SOFTMAX", False] >= 1


@pytest.mark.slow
def test_the_batch_and_the_size_are_fixed(exported, any_size, tmp_path):
    assert input_shape(exported / "model_float32.tflite") == [1, 16, 16, 3]
    model, folder = any_size
    options = {"precision": "float32", "image_size": (24, 48), "batch_size": 3}
    path = export_tflite(folder, tmp_path / "m.tflite", **options)
    assert input_shape(path) == [3, 24, 48, 3]
    images = pixels(3, (24, 48))
    assert_close(open_runner(path)(images=images)["logits"], run_live(model, images), 1e-5)
    assert read_tflite_description(path).preprocessing.image_size == (24, 48)
    with pytest.raises((ValueError, RuntimeError)):
        open_runner(path)(images=pixels(7, (24, 48)))


@by_table(
    "options, message",
    [
        ({"precision": "full_int8"}, "full_int8 is calibrated on images"),
        ({"integer_io": "uint8"}, "option of full_int8 only; got precision 'dynamic_int8'"),
        (
            {"precision": "int8", "calibration": pixels(1), "integer_io": "int8"},
            "option of full_int8 only; got precision 'int8'",
        ),
        ({"integer_io": "int16"}, "integer_io must be one of 'uint8', 'int8' or None; got 'int16'"),
        ({"batch_size": 0}, "batch_size must be a positive int; got 0"),
        ({"image_size": (16, None)}, "image_size must be a positive int or a pair"),
        ({"image_size": (32, 32)}, r"image_size must be the model's \(16, 16\); got \(32, 32\)"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message, saved_model, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_tflite(saved_model, tmp_path / "m.tflite", **options)
    assert [*tmp_path.iterdir()] == []


def test_a_file_is_computed_on_the_cores_that_the_process_may_use(exported, monkeypatch):
    interpreter = mock.Mock(side_effect=tflite.Interpreter)
    monkeypatch.setattr(tflite, "Interpreter", interpreter)
    monkeypatch.setattr(tflite.os, "sched_getaffinity", lambda process: {1, 4, 6}, raising=False)
    open_runner(exported / "model_float32.tflite")
    assert interpreter.call_args.kwargs["num_threads"] == 3


def test_another_backend_is_refused(saved_model, tmp_path, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="^LiteRT files are written on the TensorFlow backend, not on jax"):
        export_tflite(saved_model, tmp_path / "m.tflite")
    assert [*tmp_path.iterdir()] == []


@by_table(
    "parameters, precision, fitting",
    [
        (532_000_000, "float32", "float16 or dynamic_int8"),
        (532_000_000, "int8", "float16 or dynamic_int8"),
        (1_064_000_000, "float16", "dynamic_int8"),
        (2_127_000_000, "dynamic_int8", "none"),
    ],
)
def test_a_model_above_the_limit_is_refused(parameters, precision, fitting):
    with pytest.raises(ValueError, match=f"below 2 GiB; .* parameters fit with precision {fitting}; got"):
        tflite.check_parameters(parameters, precision)
    tflite.check_parameters(int(0.998 * parameters), precision)


NOT_COMPUTED = [
    (lambda x: tf.linalg.logdet(tf.linalg.diag(x + 1)), "LiteRT cannot hold this model: "),
    (lambda x: tf.sin(x), "delegate for GPUs cannot compute this model: it has no operation SIN"),
]


@pytest.mark.slow
@pytest.mark.parametrize("compute, message", NOT_COMPUTED)
def test_what_does_not_convert_or_no_gpu_computes_is_refused(
    compute, message, saved_model, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        RowOutputs, "of_litert", lambda self, images, stages: {"logits": compute(stages(images)["logits"])}
    )
    with pytest.raises(ValueError, match=f"^.*{message}.*$"):  # in one line
        export_tflite(saved_model, tmp_path / "model.tflite")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    "changes, message",
    [
        (None, "is damaged, or cannot be opened here"),
        ({"mean": [0.5]}, "channels of mean and std|mean and std must have"),
    ],
    ids=["no variables", "other channels"],
)
def test_a_saved_model_without_its_parts_is_refused(changes, message, saved_model, tmp_path):
    saved = shutil.copytree(saved_model, tmp_path / "1")
    if changes is None:
        (saved / "variables/variables.index").unlink()
    else:
        file = saved / "assets/keras_vit.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(ValueError, match=message):
        export_tflite(saved, tmp_path / "model.tflite")
    assert [*tmp_path.iterdir()] == [saved]


def test_converting_is_quiet_and_hides_nothing_else(saved_model, tmp_path, capfd, monkeypatch):
    real = tflite.write_tflite

    def write(*args):
        tflite.os.write(2, b"W0000 00:00:1 1 other.cc:1] look here\n")
        real(*args)

    monkeypatch.setattr(tflite, "write_tflite", write)
    export_tflite(saved_model, tmp_path / "m.tflite")
    assert capfd.readouterr() == ("", "W0000 00:00:1 1 other.cc:1] look here\n")
