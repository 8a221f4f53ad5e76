import os

import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from reference.comparing import assert_close
from reference.small import HYBRID, NO_TRANSFORMER, one_block, run_live, small

from keras_vit import from_pretrained
from keras_vit.export import tflite
from keras_vit.export.description import describe
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.tflite import export_tflite
from keras_vit.export.tflite_metadata import read_tflite_description
from keras_vit.layers import attention

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
    "chunks of queries": {},
}
# Of the largest logit. Models as small as these are not what whole numbers are for: a few units of the
# last place there. test_quantisation.py has what they cost a model that was trained.
FULL = "FULL" in os.environ
BOUNDS = {"float32": 1e-5, "float16": 5e-3, "dynamic_int8": 0.1, "int8": 0.3}


def pixels(count, size, channels=3, seed=0):
    return np.random.default_rng(seed).uniform(size=(count, *size, channels)).astype("float32")


def saved(model, folder, **options):
    return export_saved_model(model, folder / "saved_model", **options)


def run(path, images):
    return Interpreter(model_path=str(path)).get_signature_runner("serving_default")(images=images)


def details(path, kind="input"):
    runner = Interpreter(model_path=str(path)).get_signature_runner("serving_default")
    return runner.get_input_details() if kind == "input" else runner.get_output_details()


def operations(path):
    file = schema.ModelT.InitFromObj(schema.Model.GetRootAs(path.read_bytes(), 0))
    names = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
    assert not [code.customCode for code in file.operatorCodes if code.customCode]
    return {names[max(code.builtinCode, code.deprecatedBuiltinCode)] for code in file.operatorCodes}


# Each model in every precision, or without FULL several in one, in float32 and a coarser precision.
CASES = {name: ([name], BOUNDS) for name in MODELS}
if not FULL:
    together = {
        ("erf", "registers", "gap"): "dynamic_int8",
        ("tanh", "map", "grey", "dropout", "chunks of queries"): "float16",
        ("sincos2d", "distillation"): "int8",
        ("root block", "no head"): "int8",
        ("no transformer",): "dynamic_int8",
    }
    CASES = {", ".join(names): (names, {"float32", coarse}) for names, coarse in together.items()}


@pytest.mark.parametrize("name", CASES)
def test_litert_computes_what_the_model_does(name, tmp_path, monkeypatch):
    names, precisions = CASES[name]
    if "chunks of queries" in names:
        monkeypatch.setattr(attention, "MAX_CHUNK_SCORES", 10)  # two queries at a time
    model = one_block(**{option: value for name in names for option, value in MODELS[name].items()})
    images = pixels(5, model.image_size, model.in_channels)
    live = run_live(model, images)
    folder = saved(model, tmp_path)
    output = "logits" if model.num_classes else "representation"
    for precision in sorted(precisions):
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


@pytest.mark.parametrize(
    "task, precision",
    [("single_label", "float32"), ("multi_label", "int8"), ("regression", "float32")]
    + [("single_label", "int8"), ("multi_label", "float32"), ("regression", "int8")] * FULL,
)
def test_the_outputs_fit_the_task(task, precision, tmp_path):
    model = small(num_layers=1)
    images = pixels(2, (16, 16))
    options = {"calibration": images} if precision == "int8" else {}
    path = export_tflite(
        saved(model, tmp_path, task=task), tmp_path / "m.tflite", precision=precision, **options
    )
    found, live = run(path, images), run_live(model, images)
    if task == "regression":
        assert {*found} == {"values"}
        assert_close(found["values"], live, BOUNDS[precision])
        return
    assert {*found} == {"logits", "probabilities"}
    exponents = np.exp(found["logits"].astype("float64"))
    scores = exponents / (exponents.sum(1, keepdims=True) if task == "single_label" else 1 + exponents)
    np.testing.assert_allclose(found["probabilities"], scores, atol=1e-6 if precision == "float32" else 0.01)


@pytest.fixture(scope="module")
def model():
    return small(
        num_layers=1, preprocessing={"image_size": 16, "mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.1)}
    )


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    return saved(model, tmp_path_factory.mktemp("export"))


@pytest.mark.parametrize("precision", BOUNDS if FULL else ["int8"])
def test_a_fixed_batch_is_of_that_size_alone(precision, model, folder, tmp_path):
    images = pixels(7, (16, 16))
    options = {"calibration": images} if precision == "int8" else {}
    path = export_tflite(folder, tmp_path / "m.tflite", precision=precision, batch_size=3, **options)
    assert [*details(path)["images"]["shape_signature"]] == [3, 16, 16, 3]
    assert_close(run(path, images[:3])["logits"], run_live(model, images[:3]), BOUNDS[precision])
    assert not operations(path) & {"SHAPE", "CUSTOM", "VAR_HANDLE"}
    with pytest.raises((ValueError, RuntimeError)):
        run(path, images)


def test_any_batch_is_what_is_converted_for_by_default(folder, tmp_path):
    path = export_tflite(folder, tmp_path / "m.tflite")
    assert [*details(path)["images"]["shape_signature"]] == [-1, 16, 16, 3]
    assert (
        path.stat().st_size < export_tflite(folder, tmp_path / "f.tflite", precision="float32").stat().st_size
    )


@pytest.fixture(scope="module")
def free(golden):
    return from_pretrained(golden / "token.npz", image_size=(None, None))


@pytest.fixture(scope="module")
def free_folder(free, tmp_path_factory):
    return saved(free, tmp_path_factory.mktemp("free"))


class TestAModelOfAnySize:
    @pytest.mark.parametrize("precision", BOUNDS if FULL else ["float32"])
    def test_it_stays_one(self, precision, free, free_folder, tmp_path):
        options = {"calibration": pixels(4, (32, 32))} if precision == "int8" else {}
        path = export_tflite(free_folder, tmp_path / "m.tflite", precision=precision, **options)
        assert read_tflite_description(path).image_size == (None, None)
        for size in ((32, 32), (24, 48)):
            images = pixels(2, size)
            assert_close(run(path, images)["logits"], run_live(free, images), BOUNDS[precision])

    def test_a_size_can_be_fixed(self, free, free_folder, tmp_path):
        path = export_tflite(free_folder, tmp_path / "m.tflite", precision="float32", image_size=(24, 48))
        assert [*details(path)["images"]["shape_signature"]] == [-1, 24, 48, 3]
        images = pixels(2, (24, 48))
        assert_close(run(path, images)["logits"], run_live(free, images), 1e-5)
        assert read_tflite_description(path).preprocessing.image_size == (24, 48)

    def test_both_can_be_fixed(self, free, free_folder, tmp_path):
        path = export_tflite(
            free_folder, tmp_path / "m.tflite", precision="float32", image_size=(32, 32), batch_size=1
        )
        images = pixels(1, (32, 32))
        assert_close(run(path, images)["logits"], run_live(free, images), 1e-5)
        assert "SHAPE" not in operations(path)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"precision": "int4"}, r"precision 'int4' is unknown; choose one of \('dynamic_int8', 'float32'"),
        ({"precision": "int8"}, 'precision "int8" needs calibration images'),
        ({"calibration": np.zeros((1, 16, 16, 3), "float32")}, '"dynamic_int8" takes no calibration images'),
        ({"integer_io": "uint8"}, 'integer_io must be None, or with precision "int8" .* with "dynamic_int8"'),
        (
            {"precision": "int8", "calibration": [], "integer_io": "int16"},
            r"one of \('uint8', 'int8'\); got 'int16'",
        ),
        ({"batch_size": 0}, "batch_size must be a positive integer or None; got 0"),
        ({"batch_size": True}, "batch_size must be .* got True"),
        ({"batch_size": 1.5}, "batch_size must be .* got 1.5"),
        ({"image_size": 16}, r"image_size must be \(height, width\) or None; got 16"),
        ({"image_size": (16, None)}, r"image_size must be \(height, width\) or None"),
        ({"image_size": (32, 32)}, r"the model reads images of \(16, 16\) alone; got image_size \(32, 32\)"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, said, folder, tmp_path):
    with pytest.raises(ValueError, match=said):
        export_tflite(folder, tmp_path / "m.tflite", **options)
    assert [*tmp_path.iterdir()] == []


def test_another_suffix_is_refused(tmp_path):
    with pytest.raises(ValueError, match="a LiteRT file ends in .tflite; got '.*model.lite'"):
        export_tflite(tmp_path, tmp_path / "model.lite")


def test_what_exists_is_not_overwritten(folder, tmp_path):
    path = tmp_path / "model.tflite"
    path.write_text("mine")
    with pytest.raises(ValueError, match="model.tflite' exists; .*model-2.tflite' is free"):
        export_tflite(folder, path)
    assert path.read_text() == "mine"


def test_a_saved_model_of_somebody_else_is_refused(tmp_path):
    with pytest.raises(ValueError, match="was not exported by keras_vit"):
        export_tflite(tmp_path, tmp_path / "model.tflite")


@pytest.mark.parametrize(
    "parameters, precision, said",
    [
        (
            532e6,
            "float32",
            "532,000,000 parameters need 2.0 GiB for .*'float32'; choose dynamic_int8 or float16",
        ),
        (532e6, "int8", "for precision 'int8'; choose dynamic_int8 or float16"),
        (1064e6, "float16", "need 2.0 GiB for precision 'float16'; choose dynamic_int8$"),
        (2127e6, "dynamic_int8", "need 2.0 GiB for precision 'dynamic_int8'; no precision is small enough"),
    ],
)
def test_a_model_above_the_limit_is_refused_before_it_is_converted(
    parameters, precision, said, model, folder, tmp_path, monkeypatch
):
    def describe_as(parameters):
        described = tflite.dataclasses.replace(describe(model), parameters=int(parameters))
        monkeypatch.setattr(tflite, "read_description", lambda path: described)

    monkeypatch.setattr(tflite, "_convert", lambda *args: 1 / 0)
    options = {"calibration": pixels(1, (16, 16))} if precision == "int8" else {}
    describe_as(parameters)
    with pytest.raises(ValueError, match=said):
        export_tflite(folder, tmp_path / "m.tflite", precision=precision, **options)
    describe_as(0.998 * parameters)
    with pytest.raises(ZeroDivisionError):
        export_tflite(folder, tmp_path / "m.tflite", precision=precision, **options)
    assert [*tmp_path.iterdir()] == []


@pytest.fixture
def function(folder, tmp_path):
    """Makes a SavedModel of a function of images, which says of itself what `folder` does."""

    def write(compute, **variables):
        module = tf.train.Checkpoint(**variables)
        spec = tf.TensorSpec((None, 16, 16, 3), name="images")
        module.serve = tf.function(lambda images: {"logits": compute(images)}, input_signature=[spec])
        path = tmp_path / "saved"
        tf.saved_model.save(module, str(path), signatures={"serving_default": module.serve})
        for file in (folder / "assets").iterdir():
            (path / "assets" / file.name).write_bytes(file.read_bytes())
        return path

    return write


def test_operations_that_litert_has_not_are_refused_and_leave_nothing(function, tmp_path, capfd):
    saved = function(lambda images: tf.linalg.logdet(tf.linalg.diag(images[:, 0, 0] + 1)))
    with pytest.raises(ValueError, match="none of these operations built in: Cholesky, MatrixDiagPartV3$"):
        export_tflite(saved, tmp_path / "model.tflite")
    assert [*tmp_path.iterdir()] == [saved]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_variable_that_stays_one_is_refused_and_leaves_nothing(batch_size, function, tmp_path):
    """Assigned to in the graph, it cannot become a constant."""
    variable = tf.Variable(tf.zeros(3))
    saved = function(lambda images: variable.assign_add(images[0, 0, 0]) + images[:, 0, 0], v=variable)
    with pytest.raises(ValueError, match="would hold operations that do not run: .*VAR_HANDLE"):
        export_tflite(saved, tmp_path / "model.tflite", batch_size=batch_size)
    assert [*tmp_path.iterdir()] == [saved]


def test_numbers_that_are_none_are_refused_and_leave_nothing(function, tmp_path):
    saved = function(lambda images: images[:, 0, 0] * np.nan)
    with pytest.raises(ValueError, match="the LiteRT file computes NaN or infinite logits"):
        export_tflite(saved, tmp_path / "model.tflite")
    assert [*tmp_path.iterdir()] == [saved]


def test_converting_is_quiet_and_hides_nothing_else(folder, tmp_path, capfd, monkeypatch):
    real = tflite.write_tflite

    def write(*args):
        tflite.os.write(2, b"W0000 00:00:1 1 other.cc:1] look here\n")
        real(*args)

    monkeypatch.setattr(tflite, "write_tflite", write)
    for precision, batch_size in (("dynamic_int8", None), ("int8", 2)):
        options = {"calibration": pixels(2, (16, 16))} if precision == "int8" else {}
        path = tmp_path / f"{precision}{batch_size}.tflite"
        export_tflite(folder, path, precision=precision, batch_size=batch_size, **options)
        out, err = capfd.readouterr()
        assert (out, err) == ("", "W0000 00:00:1 1 other.cc:1] look here\n")


@pytest.mark.parametrize("stop", [OSError("the disk is full"), KeyboardInterrupt()])
def test_nothing_is_left_when_writing_stops(stop, folder, tmp_path, monkeypatch, capfd):
    def write(path, content, description):
        path.write_bytes(content[:100])
        raise stop

    monkeypatch.setattr(tflite, "write_tflite", write)
    with pytest.raises(type(stop)):
        export_tflite(folder, tmp_path / "m.tflite")
    assert [*tmp_path.iterdir()] == []
    tflite.os.write(2, b"standard error is back\n")
    assert capfd.readouterr().err == "standard error is back\n"
