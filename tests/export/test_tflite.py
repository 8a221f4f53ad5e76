import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from reference.comparing import assert_close
from reference.small import HYBRID, NO_TRANSFORMER, small

from keras_vit import from_pretrained
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.tflite import export_tflite
from keras_vit.export.verify import run_live

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
    "root block": {**HYBRID, "resnet": ()},
    "no transformer": {**HYBRID, **NO_TRANSFORMER, "resnet": (1,)},
    "dropout": {"dropout_rate": 0.3, "attention_dropout_rate": 0.3, "stochastic_depth_rate": 0.3},
    "no head": {"num_classes": None},
}


def pixels(count, size):
    return np.random.default_rng(0).uniform(size=(count, *size, 3)).astype("float32")


def convert(model, folder):
    saved = export_saved_model(model, folder / "saved_model")
    return export_tflite(saved, folder / "model.tflite")


def outputs(path, images):
    return Interpreter(model_path=str(path)).get_signature_runner("serving_default")(images=images)


@pytest.mark.parametrize("name", MODELS)
def test_litert_computes_what_the_model_does(name, tmp_path):
    model = small(**MODELS[name])
    path = convert(model, tmp_path)
    for batch in (1, 5):
        images = pixels(batch, model.image_size)
        found = outputs(path, images)
        if name == "no head":
            assert {*found} == {"representation"}
        else:
            assert {*found} == {"logits", "probabilities"}
            np.testing.assert_allclose(found["probabilities"].sum(1), 1, rtol=1e-5)
        assert_close(found.get("logits", found.get("representation")), run_live(model, images), 1e-5)
    assert_only_builtins(path)


def assert_only_builtins(path):
    file = schema.ModelT.InitFromObj(schema.Model.GetRootAs(path.read_bytes(), 0))
    used = {max(code.builtinCode, code.deprecatedBuiltinCode) for code in file.operatorCodes}
    names = {name: code for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
    assert names["FULLY_CONNECTED"] in used or names["CONV_2D"] in used
    assert not used & {names[name] for name in ("CUSTOM", "VAR_HANDLE", "READ_VARIABLE", "CALL_ONCE")}
    assert not [code.customCode for code in file.operatorCodes if code.customCode]


def test_a_model_of_any_size_stays_one(golden, tmp_path):
    model = from_pretrained(golden / "token.npz", image_size=(None, None))
    path = convert(model, tmp_path)
    for size in ((32, 32), (24, 48)):
        images = pixels(2, size)
        assert_close(outputs(path, images)["logits"], run_live(model, images), 1e-5)


def test_another_suffix_is_refused(tmp_path):
    with pytest.raises(ValueError, match="a LiteRT file ends in .tflite; got '.*model.lite'"):
        export_tflite(tmp_path, tmp_path / "model.lite")


def test_what_exists_is_not_overwritten(tmp_path):
    path = tmp_path / "model.tflite"
    path.write_text("mine")
    with pytest.raises(ValueError, match="model.tflite' exists; .*/model-2.tflite' is free"):
        export_tflite(tmp_path, path)
    assert path.read_text() == "mine"


def saved(function, folder, **variables):
    """A SavedModel of one function of images."""
    module = tf.train.Checkpoint(**variables)
    module.serve = tf.function(function, input_signature=[tf.TensorSpec((None, 4), name="images")])
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.serve})
    return folder


def test_operations_that_litert_has_not_are_refused_and_leave_nothing(tmp_path):
    folder = saved(lambda images: tf.linalg.logdet(tf.linalg.diag(images + 1)), tmp_path / "saved")
    with pytest.raises(Exception, match="(?i)custom|flex|not supported|built in"):
        export_tflite(folder, tmp_path / "model.tflite")
    assert [*tmp_path.iterdir()] == [folder]


def test_a_variable_that_stays_one_is_refused_and_leaves_nothing(tmp_path):
    """Assigned to in the graph, it cannot become a constant."""
    variable = tf.Variable(tf.zeros(4))
    folder = saved(lambda images: variable.assign_add(images[0]) + images, tmp_path / "saved", v=variable)
    with pytest.raises(ValueError, match="would hold operations that do not run: .*VAR_HANDLE"):
        export_tflite(folder, tmp_path / "model.tflite")
    assert [*tmp_path.iterdir()] == [folder]
