import keras
import numpy as np
import pytest
import tensorflow as tf
from reference.comparing import assert_close
from reference.small import small

from keras_vit import from_pretrained
from keras_vit.export import saved_model
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.verify import run_live


@pytest.fixture(scope="module")
def model():
    """A model with dropout, with a preprocessing of its own and with a weight penalty."""
    model = small(
        dropout_rate=0.5, preprocessing={"image_size": 16, "mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.1)}
    )
    model.get_layer("head").kernel.regularizer = keras.regularizers.L2(0.1)
    return model


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    return export_saved_model(model, tmp_path_factory.mktemp("export") / "saved_model" / "1")


@pytest.fixture(scope="module")
def loaded(folder):
    return tf.saved_model.load(folder)


def pixels(count=3, size=(16, 16)):
    return np.random.default_rng(0).uniform(size=(count, *size, 3)).astype("float32")


def live(model, images):
    """What the model computes, by its own preprocessing of float images."""
    return model(model.preprocessing(images)).numpy() if len(images) else np.zeros((0, model.num_classes))


@pytest.mark.parametrize("batch", [0, 1, 7])
def test_the_loaded_object_computes_what_the_model_does(batch, model, loaded):
    outputs = loaded(pixels(batch))
    assert outputs.shape == (batch, 5)
    assert_close(outputs, live(model, pixels(batch)), 1e-5)
    np.testing.assert_array_equal(loaded(pixels(batch), training=False), outputs)


def test_dropout_is_active_in_training_only(loaded):
    images = pixels(4)
    outputs, trained, again = loaded(images), loaded(images, training=True), loaded(images, training=True)
    assert np.abs(trained - outputs).max() > 0.1
    assert np.abs(trained - again).max() > 0.1
    np.testing.assert_array_equal(loaded(images), outputs)


@pytest.mark.parametrize("batch", [0, 1, 7])
def test_serving_gives_logits_and_probabilities(batch, model, loaded):
    assert [*loaded.signatures] == ["serving_default"]
    outputs = loaded.signatures["serving_default"](images=tf.constant(pixels(batch)))
    assert {*outputs} == {"logits", "probabilities"}
    logits = live(model, pixels(batch)).astype("float64")
    assert_close(outputs["logits"], logits, 1e-5)
    scores = np.exp(logits - logits.max(1, keepdims=True, initial=-1e9))
    assert_close(outputs["probabilities"], scores / scores.sum(1, keepdims=True), 1e-5)


def test_images_go_in_as_floats_of_the_models_size(loaded):
    (_, inputs) = loaded.signatures["serving_default"].structured_input_signature
    assert inputs == {"images": tf.TensorSpec((None, 16, 16, 3), tf.float32, name="images")}


def test_its_lists_hold_every_variable(model, loaded):
    def sizes(variables):
        return [tuple(variable.shape) for variable in variables]

    assert sizes(loaded.variables) == sizes(model.variables)
    assert sizes(loaded.trainable_variables) == sizes(model.trainable_variables)
    assert len(loaded.variables) > len(loaded.trainable_variables)  # the dropouts' seeds
    assert all(variable.trainable for variable in loaded.trainable_variables)
    for variable, weight in zip(loaded.trainable_variables, model.trainable_variables):
        np.testing.assert_array_equal(variable, weight.numpy())


def test_its_penalties_are_the_models(model, loaded):
    (penalty,) = loaded.regularization_losses
    assert float(penalty()) == pytest.approx(0.1 * float(np.sum(model.get_layer("head").kernel.numpy() ** 2)))


def test_gradients_reach_every_trainable_variable(model, loaded):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(loaded(pixels(), training=False) ** 2)
    gradients = tape.gradient(loss, loaded.trainable_variables)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(model.preprocessing(pixels())) ** 2)
    expected = tape.gradient(loss, [weight.value for weight in model.trainable_variables])
    for gradient, wanted, weight in zip(gradients, expected, model.trainable_variables):
        assert gradient is not None, weight.path
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(gradient, wanted, atol=2e-4 * scale + 1e-5, err_msg=weight.path)


def test_the_loaded_object_can_be_trained(folder):
    loaded = tf.saved_model.load(folder)
    labels = tf.constant([0, 1, 2])
    losses = []
    for _ in range(20):
        with tf.GradientTape() as tape:
            logits = loaded(pixels(), training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        for variable, gradient in zip(
            loaded.trainable_variables, tape.gradient(loss, loaded.trainable_variables)
        ):
            variable.assign_sub(0.05 * tf.clip_by_norm(gradient, 1.0))
        losses.append(float(loss))
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


def test_keras_takes_it_as_a_layer(model, folder):
    layer = keras.layers.TFSMLayer(folder, call_training_endpoint="serve_training")
    assert_close(layer(pixels()), live(model, pixels()), 1e-5)
    assert np.abs(layer(pixels(), training=True) - layer(pixels())).max() > 0.1
    assert len(layer.trainable_weights) == len(model.trainable_weights)

    inputs = keras.Input((16, 16, 3))
    outer = keras.Model(inputs, keras.layers.Dense(2)(layer(inputs)))
    outer.compile("sgd", "mse")
    before = [weight.numpy() for weight in layer.trainable_weights]
    outer.fit(pixels(), np.ones((3, 2)), verbose=0)
    assert any((weight.numpy() != old).any() for weight, old in zip(layer.trainable_weights, before))


def test_keras_finds_the_serving_signature_too(model, folder):
    outputs = keras.layers.TFSMLayer(folder, call_endpoint="serving_default")(pixels())
    assert_close(outputs["logits"], live(model, pixels()), 1e-5)


@pytest.mark.parametrize("size", [12, 192])
def test_weights_are_stored_once(size, tmp_path):
    model = small(hidden_size=size, mlp_dim=4 * size)
    folder = export_saved_model(model, tmp_path / "1")
    stored = sum(file.stat().st_size for file in (folder / "variables").iterdir())
    assert 4 * model.count_params() <= stored <= 4 * model.count_params() * 1.01 + 64 * 1024


def test_a_model_without_a_head_gives_its_representation(tmp_path):
    model = small(num_classes=None, representation_size=6)
    loaded = tf.saved_model.load(export_saved_model(model, tmp_path / "1"))
    expected = model(model.preprocessing(pixels()))
    assert_close(loaded(pixels()), expected, 1e-5)
    outputs = loaded.signatures["serving_default"](images=tf.constant(pixels()))
    assert {*outputs} == {"representation"}
    assert_close(outputs["representation"], expected, 1e-5)


def test_a_model_of_any_size_stays_one(golden, tmp_path):
    model = from_pretrained(golden / "token.npz", image_size=(None, None))
    loaded = tf.saved_model.load(export_saved_model(model, tmp_path / "1"))
    for size in ((32, 32), (24, 48)):
        images = pixels(2, size)
        assert_close(loaded(images), run_live(model, images), 1e-5)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_exists_is_not_overwritten(kind, model, tmp_path):
    path = tmp_path / "1"
    path.mkdir() if kind == "folder" else path.write_text("mine")
    with pytest.raises(ValueError, match="'.*/1' exists; .* is free"):
        export_saved_model(model, path)
    assert [*tmp_path.iterdir()] == [path]
    assert kind == "folder" or path.read_text() == "mine"


def test_nothing_is_left_when_writing_fails(model, tmp_path, monkeypatch):
    save = tf.saved_model.save

    def fail(*args, **options):
        save(*args, **options)
        raise OSError("the disk is full")

    monkeypatch.setattr(saved_model.tf.saved_model, "save", fail)
    with pytest.raises(OSError, match="the disk is full"):
        export_saved_model(model, tmp_path / "1")
    assert [*tmp_path.iterdir()] == []
