import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from made.exports import pixels
from reference.comparing import assert_close
from reference.small import HYBRID, NO_TRANSFORMER, one_block, run_live

from keras_vit.export import tflite
from keras_vit.export.description import describe
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.tflite import export_tflite
from keras_vit.export.tflite_metadata import read_tflite_description
from keras_vit.layers import attention

SLOW = pytest.mark.slow
MODELS = {
    "quick_gelu": {"activation": "quick_gelu"},
    "sincos2d": {"position_embedding": "sincos2d", "prefix_positions": False},
    "erf": {"activation": "gelu_erf"},
    "tanh": {"activation": "gelu_tanh"},
    "gap": {"pooling": "gap", "representation_size": 6},
    "map": {"pooling": "map"},
    "registers": {"num_registers": 2, "image_size": (16, 24), "layer_scale": 0.1},
    "distillation": {"distillation": True},
    "hybrid": {**HYBRID, "resnet": (1, 1)},
    "root block": {**HYBRID, "resnet": ()},
    "no transformer": {**HYBRID, **NO_TRANSFORMER, "resnet": (1,)},
    "dropout": {"dropout_rate": 0.3, "attention_dropout_rate": 0.3, "stochastic_depth_rate": 0.3},
    "no head": {"num_classes": None},
    "grey": {"in_channels": 1},
    "chunked attention": {},
}
# Relative to the largest logit. Rounding to integers costs such small models much; test_quantization.py has a
# trained one.
BOUNDS = {"float32": 1e-5, "float16": 5e-3, "dynamic_int8": 0.1, "int8": 0.3}
CASES = [
    (("tanh", "map", "grey", "dropout", "chunked attention"), ("float32", "float16")),
    *(pytest.param((name,), (*BOUNDS,), marks=SLOW) for name in MODELS),
]


def run(path, images):
    return Interpreter(model_path=str(path)).get_signature_runner("serving_default")(images=images)


def input_shape(path):
    runner = Interpreter(model_path=str(path)).get_signature_runner("serving_default")
    return [*runner.get_input_details()["images"]["shape_signature"]]


def operations(path):
    file = schema.ModelT.InitFromObj(schema.Model.GetRootAs(path.read_bytes(), 0))
    names = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
    assert not [code.customCode for code in file.operatorCodes if code.customCode]
    return {names[max(code.builtinCode, code.deprecatedBuiltinCode)] for code in file.operatorCodes}


@pytest.mark.parametrize("names, precisions", CASES)
def test_litert_computes_what_the_model_does(names, precisions, tmp_path, monkeypatch):
    if "chunked attention" in names:
        monkeypatch.setattr(attention, "MAX_CHUNK_SCORES", 10)  # two queries at a time
    model = one_block(**{option: value for name in names for option, value in MODELS[name].items()})
    images = pixels(5, model.image_size, model.in_channels)
    live = run_live(model, images)
    folder = export_saved_model(model, tmp_path / "1", warmup=())
    output = "logits" if model.num_classes else "representation"
    for precision in precisions:
        options = {"calibration": images} if precision == "int8" else {}
        path = export_tflite(folder, tmp_path / f"{precision}.tflite", precision=precision, **options)
        for batch in (1, 5):
            found = run(path, images[:batch])
            assert {*found} == ({"logits", "probabilities"} if model.num_classes else {output})
            assert found[output].dtype == np.float32
            assert_close(found[output], live[:batch], BOUNDS[precision])
        used = operations(path)
        assert used & {"FULLY_CONNECTED", "CONV_2D"}
        assert not used & {"CUSTOM", "VAR_HANDLE", "READ_VARIABLE", "CALL_ONCE"}
        assert read_tflite_description(path) == describe(model)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("task", ["single_label", "multi_label", "regression"])
def test_the_outputs_fit_the_task(task, precision, tmp_path):
    model, images = one_block(), pixels(2)
    saved = export_saved_model(model, tmp_path / "1", task=task)
    options = {"calibration": images} if precision == "int8" else {}
    path = export_tflite(saved, tmp_path / "m.tflite", precision=precision, **options)
    found, live = run(path, images), run_live(model, images)
    if task == "regression":
        assert {*found} == {"values"}
        assert_close(found["values"], live, BOUNDS[precision])
        return
    assert {*found} == {"logits", "probabilities"}
    exponents = np.exp(found["logits"].astype("float64"))
    scores = exponents / (exponents.sum(1, keepdims=True) if task == "single_label" else 1 + exponents)
    np.testing.assert_allclose(found["probabilities"], scores, atol=1e-6 if precision == "float32" else 0.01)


@pytest.mark.parametrize("precision", ["float32", *(pytest.param(p, marks=SLOW) for p in [*BOUNDS][1:])])
def test_a_fixed_batch_has_that_size_only(precision, model, saved_model, exported, tmp_path):
    assert input_shape(exported / "model_float32.tflite") == [-1, 16, 16, 3]
    images = pixels(7)
    options = {"calibration": images} if precision == "int8" else {}
    path = export_tflite(saved_model, tmp_path / "m.tflite", precision=precision, batch_size=3, **options)
    assert input_shape(path) == [3, 16, 16, 3]
    assert_close(run(path, images[:3])["logits"], run_live(model, images[:3]), BOUNDS[precision])
    assert not operations(path) & {"SHAPE", "CUSTOM", "VAR_HANDLE"}
    with pytest.raises((ValueError, RuntimeError)):
        run(path, images)


@pytest.fixture(scope="module")
def free(tmp_path_factory):
    """A model of any size, and the folder of its SavedModel."""
    model = one_block(image_size=(None, None), position_grid=(4, 4))
    return model, export_saved_model(model, tmp_path_factory.mktemp("free") / "1", warmup=())


@pytest.mark.slow
@pytest.mark.parametrize("precision", BOUNDS)
def test_a_model_of_any_size_keeps_taking_any(precision, free, tmp_path):
    model, folder = free
    options = {"calibration": pixels(4, (32, 32))} if precision == "int8" else {}
    path = export_tflite(folder, tmp_path / "m.tflite", precision=precision, **options)
    assert read_tflite_description(path).image_size == (None, None)
    for size in ((32, 32), (24, 48)):
        assert_close(
            run(path, pixels(2, size))["logits"], run_live(model, pixels(2, size)), BOUNDS[precision]
        )


@pytest.mark.parametrize("batch_size", [1, pytest.param(None, marks=SLOW)])
def test_a_size_can_be_fixed(batch_size, free, tmp_path):
    model, folder = free
    options = {"precision": "float32", "image_size": (24, 48), "batch_size": batch_size}
    path = export_tflite(folder, tmp_path / "m.tflite", **options)
    assert input_shape(path) == [batch_size or -1, 24, 48, 3]
    images = pixels(1, (24, 48))
    assert_close(run(path, images)["logits"], run_live(model, images), 1e-5)
    assert read_tflite_description(path).preprocessing.image_size == (24, 48)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"precision": "int4"}, r"precision must be one of \('float32', .*; got 'int4'"),
        ({"precision": "int8"}, 'precision "int8" needs calibration images'),
        ({"calibration": pixels(1)}, '"dynamic_int8" takes no calibration images'),
        ({"integer_io": "uint8"}, 'integer_io must be None, or with precision "int8" .* with "dynamic_int8"'),
        ({"precision": "int8", "calibration": [], "integer_io": "int16"}, r"'int8'\); got 'int16'"),
        ({"batch_size": 0}, "batch_size must be a positive integer or None; got 0"),
        ({"batch_size": True}, "batch_size must be .* got True"),
        ({"image_size": 16}, r"image_size must be \(height, width\) or None; got 16"),
        ({"image_size": (16, None)}, r"image_size must be \(height, width\) or None"),
        ({"image_size": (32, 32)}, r"image_size must be the model's \(16, 16\) or None; got \(32, 32\)"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message, saved_model, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_tflite(saved_model, tmp_path / "m.tflite", **options)
    assert [*tmp_path.iterdir()] == []


def test_other_paths_and_other_saved_models_are_refused(saved_model, tmp_path):
    with pytest.raises(ValueError, match="the name of a LiteRT file must end in .tflite; got '.*model.lite'"):
        export_tflite(saved_model, tmp_path / "model.lite")
    path = tmp_path / "model.tflite"
    with pytest.raises(ValueError, match="was not exported by keras_vit"):
        export_tflite(tmp_path, path)
    path.write_text("mine")
    with pytest.raises(ValueError, match="model.tflite' exists; .*model-2.tflite' is free"):
        export_tflite(saved_model, path)
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    "parameters, precision, message",
    [
        (532e6, "float32", "532,000,000 parameters need 2.0 GiB .*; choose float16 or dynamic_int8"),
        (532e6, "int8", "for precision 'int8'; choose float16 or dynamic_int8"),
        (1064e6, "float16", "need 2.0 GiB for precision 'float16'; choose dynamic_int8$"),
        (2127e6, "dynamic_int8", "need 2.0 GiB for precision 'dynamic_int8'; no precision is small enough"),
    ],
)
def test_a_model_above_the_limit_is_refused_before_it_is_converted(
    parameters, precision, message, model, saved_model, tmp_path, monkeypatch
):
    def describe_as(parameters):
        described = tflite.dataclasses.replace(describe(model), parameters=int(parameters))
        monkeypatch.setattr(tflite, "read_description", lambda path: described)

    monkeypatch.setattr(tflite, "_convert", lambda *args: 1 / 0)
    options = {"calibration": pixels(1)} if precision == "int8" else {}
    describe_as(parameters)
    with pytest.raises(ValueError, match=message):
        export_tflite(saved_model, tmp_path / "m.tflite", precision=precision, **options)
    describe_as(0.998 * parameters)
    with pytest.raises(ZeroDivisionError):
        export_tflite(saved_model, tmp_path / "m.tflite", precision=precision, **options)
    assert [*tmp_path.iterdir()] == []


@pytest.fixture
def function(saved_model, tmp_path):
    """Writes a SavedModel of a function of images with the description of `saved_model`."""

    def write(compute, **variables):
        module = tf.train.Checkpoint(**variables)
        spec = tf.TensorSpec((None, 16, 16, 3), name="images")
        module.serve = tf.function(lambda images: {"logits": compute(images)}, input_signature=[spec])
        path = tmp_path / "saved"
        tf.saved_model.save(module, str(path), signatures={"serving_default": module.serve})
        for file in (saved_model / "assets").iterdir():
            (path / "assets" / file.name).write_bytes(file.read_bytes())
        return path

    return write


def test_operations_that_litert_lacks_are_named(function, tmp_path, capfd):
    saved = function(lambda images: tf.linalg.logdet(tf.linalg.diag(images[:, 0, 0] + 1)))
    with pytest.raises(ValueError, match="no built-in operations for Cholesky, MatrixDiagPartV3$"):
        export_tflite(saved, tmp_path / "model.tflite")
    assert [*tmp_path.iterdir()] == [saved]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("batch_size", [None, 2])
def test_variables_that_cannot_become_constants_are_refused(batch_size, function, tmp_path):
    variable = tf.Variable(tf.zeros(3))
    saved = function(lambda images: variable.assign_add(images[0, 0, 0]) + images[:, 0, 0], v=variable)
    with pytest.raises(ValueError, match="has operations that do not run: .*VAR_HANDLE"):
        export_tflite(saved, tmp_path / "model.tflite", batch_size=batch_size)
    assert [*tmp_path.iterdir()] == [saved]


def test_a_file_that_computes_nan_is_refused(function, tmp_path):
    saved = function(lambda images: images[:, 0, 0] * np.nan)
    with pytest.raises(ValueError, match="the converted LiteRT model computes NaN or infinite logits"):
        export_tflite(saved, tmp_path / "model.tflite")
    assert [*tmp_path.iterdir()] == [saved]


@pytest.mark.parametrize(
    "precision, batch_size", [("int8", 2), pytest.param("dynamic_int8", None, marks=SLOW)]
)
def test_converting_is_quiet_and_hides_nothing_else(
    precision, batch_size, saved_model, tmp_path, capfd, monkeypatch
):
    real = tflite.write_tflite

    def write(*args):
        tflite.os.write(2, b"W0000 00:00:1 1 other.cc:1] look here\n")
        real(*args)

    monkeypatch.setattr(tflite, "write_tflite", write)
    options = {"calibration": pixels(2)} if precision == "int8" else {}
    export_tflite(saved_model, tmp_path / "m.tflite", precision=precision, batch_size=batch_size, **options)
    assert capfd.readouterr() == ("", "W0000 00:00:1 1 other.cc:1] look here\n")


@pytest.mark.slow
def test_nothing_is_left_when_writing_stops(saved_model, tmp_path, monkeypatch, capfd):
    def write(path, content, description):
        path.write_bytes(content[:100])
        raise KeyboardInterrupt

    monkeypatch.setattr(tflite, "write_tflite", write)
    with pytest.raises(KeyboardInterrupt):
        export_tflite(saved_model, tmp_path / "m.tflite")
    assert [*tmp_path.iterdir()] == []
    tflite.os.write(2, b"standard error is back\n")
    assert capfd.readouterr().err == "standard error is back\n"
