import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from made.disks import largest_file
from made.exports import pixels
from reference.comparing import assert_close
from reference.small import one_block, run_live

from keras_vit import VisionTransformer
from keras_vit.export import saved_model as exporting
from keras_vit.export.description import read_description
from keras_vit.export.saved_model import export_saved_model


def test_dropout_is_active_in_training_only(loaded):
    images = pixels(4)
    outputs, trained, again = loaded(images), loaded(images, training=True), loaded(images, training=True)
    assert np.abs(trained - outputs).max() > 0.1
    assert np.abs(trained - again).max() > 0.1
    np.testing.assert_array_equal(loaded(images), outputs)


def test_its_input_is_float_images_of_the_models_size(loaded):
    (_, inputs) = loaded.signatures["serving_default"].structured_input_signature
    assert inputs == {"images": tf.TensorSpec((None, 16, 16, 3), tf.float32, name="images")}


def test_its_lists_hold_every_variable_and_penalty(model, loaded):
    assert [v.shape for v in loaded.variables] == [v.shape for v in model.variables]
    assert len(loaded.variables) > len(loaded.trainable_variables)  # the dropouts' seeds
    assert all(variable.trainable for variable in loaded.trainable_variables)
    for variable, weight in zip(loaded.trainable_variables, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(variable, weight.numpy())
    (penalty,) = loaded.regularization_losses
    assert float(penalty()) == pytest.approx(0.1 * float(np.sum(model.get_layer("head").kernel.numpy() ** 2)))


@pytest.mark.slow
def test_gradients_reach_every_trainable_variable(model, loaded):
    assert_close(loaded(pixels()), run_live(model, pixels()), 1e-5)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(loaded(pixels(), training=False) ** 2)
    gradients = tape.gradient(loss, loaded.trainable_variables)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(model.preprocessing.normalize(pixels() * 255)) ** 2)
    expected = tape.gradient(loss, [weight.value for weight in model.trainable_variables])
    for gradient, live, weight in zip(gradients, expected, model.trainable_variables):
        assert gradient is not None, weight.path
        np.testing.assert_allclose(gradient, live, atol=2e-4 * np.abs(live).max() + 1e-5, err_msg=weight.path)


@pytest.mark.slow
def test_keras_loads_it_as_a_layer(model, saved_model):
    layer = keras.layers.TFSMLayer(saved_model, call_training_endpoint="serve_training")
    assert_close(layer(pixels()), run_live(model, pixels()), 1e-5)
    assert np.abs(layer(pixels(), training=True) - layer(pixels())).max() > 0.1
    assert len(layer.trainable_weights) == len(model.trainable_weights)


@pytest.mark.slow
def test_a_representation_is_exported_without_the_head(tmp_path):
    model = one_block(distillation=True, class_names=("red", "green", "blue", "gray", "pink"))
    folder = export_saved_model(model, tmp_path / "1", representation=True, warmup=())
    loaded = tf.saved_model.load(folder)
    expected = model.feature_extractor("representation")(model.preprocessing(pixels()))["representation"]
    assert_close(loaded(pixels()), expected, 1e-5)
    assert not any(variable.shape[-1:] == (5,) for variable in loaded.variables)
    assert not hasattr(loaded, "labels")


COLORS = ("red", "green", "blau", "größer", "pink")


@pytest.mark.slow
def test_a_frozen_model_in_float16_is_exported_in_float32_and_not_changed(tmp_path):
    model = one_block(dtype="float16", dropout_rate=0.5, class_names=COLORS)
    model.get_layer("encoder_block_0").mlp.trainable = False
    model.get_layer("patch_embedding").trainable = False
    before = {variable.path: variable.numpy() for variable in model.variables}
    folder = export_saved_model(model, tmp_path / "1", task="multi_label", warmup=())
    folder = folder.rename(tmp_path / "moved")
    loaded = tf.saved_model.load(folder)

    exact = VisionTransformer.from_config({**model.get_config(), "dtype": "float32"})
    for weight, source in zip(exact.weights, model.weights):
        weight.assign(source.value)
    assert {variable.dtype for variable in loaded.trainable_variables} == {tf.float32}
    assert_close(loaded(pixels()), run_live(exact, pixels()), 1e-5)

    assert [variable.path for variable in model.variables] == [*before]
    for variable in model.variables:
        np.testing.assert_array_equal(variable, before[variable.path])

    seeds = [variable for variable in model.variables if "int" in variable.dtype]
    frozen = len(model.weights) - len(model.trainable_weights)
    assert frozen == 6 and seeds
    assert len(loaded.variables) - len(loaded.trainable_variables) == frozen + len(seeds)
    for variable, weight in zip(loaded.trainable_variables, model.trainable_weights, strict=True):
        np.testing.assert_array_equal(variable, weight.numpy())

    for asset, file in ((loaded.labels, "labels.txt"), (loaded.description, "keras_vit.json")):
        assert asset.asset_path.numpy().decode() == str(folder / "assets" / file)
    assert (folder / "assets/labels.txt").read_text(encoding="utf-8").splitlines() == [*COLORS]
    description = read_description(folder)
    assert (description.task, description.class_names) == ("multi_label", COLORS)


def test_weights_that_are_not_finite_are_named(tmp_path):
    model = one_block()
    model.get_layer("encoder_norm").gamma.assign(np.full(12, np.inf))
    model.get_layer("head").bias.assign([0, 1, np.nan, 2, 3])
    with pytest.raises(ValueError, match="not finite.*: encoder_norm/gamma, head/bias$"):
        export_saved_model(model, tmp_path / "1")
    assert [*tmp_path.iterdir()] == []


def test_wrong_arguments_models_and_backends_are_refused(model, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"warmup must be a tuple, each item a positive int; got \(0,\)"):
        export_saved_model(model, tmp_path / "1", warmup=(0,))
    with pytest.raises(ValueError, match="seed must be an int; got '1'"):
        export_saved_model(model, tmp_path / "1", seed="1")
    with pytest.raises(ValueError, match="expected a model of images to export; got Seq"):
        export_saved_model(keras.Sequential([keras.layers.Dense(2)]), tmp_path / "1")
    monkeypatch.setattr(exporting.keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="^SavedModels are written on the TensorFlow backend, not on jax"):
        export_saved_model(model, tmp_path / "1")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
def test_a_write_that_fails_ends_in_one_line(model, tmp_path):
    with pytest.raises(OSError) as error, largest_file(10_000):
        export_saved_model(model, tmp_path / "1")
    assert re.fullmatch(r"'.*/1' cannot be written: \S+/variables/\S+; File too large.*", str(error.value))
    assert [*tmp_path.iterdir()] == []
