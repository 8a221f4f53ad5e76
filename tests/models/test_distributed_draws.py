"""What layers draw in training is a function of (seed, step, micro-batch, replica)."""

import keras
import numpy as np
import pytest
from made.devices import data, devices
from reference.comparing import arrays
from reference.small import small

from keras_vit.models import DistributedModel
from keras_vit.training import SGD, SoftmaxCrossEntropy

pytestmark = pytest.mark.tensorflow_only("tf.distribute")
if keras.backend.backend() == "tensorflow":
    from keras_vit.training.strategy import scope


RANDOM = {"dropout_rate": 0.3, "stochastic_depth_rate": 0.3}


def random_run(seed, epochs, initial_epoch=0, model=None, replicas=0, accumulation_steps=1):
    images, labels = data(8)
    if model is None:
        with scope(devices(replicas)):
            model = small(num_layers=1, **RANDOM)
            model.compile(SGD(0.2), SoftmaxCrossEntropy(), accumulation_steps=accumulation_steps, seed=seed)
    model.fit(
        images, labels, batch_size=4, epochs=epochs, initial_epoch=initial_epoch, verbose=0, shuffle=False
    )
    return model


@pytest.mark.parametrize(("replicas", "accumulation_steps"), [(0, 1), (2, 2)])
def test_dropout_is_a_function_of_seed_and_step(replicas, accumulation_steps):
    layout = {"replicas": replicas, "accumulation_steps": accumulation_steps, "epochs": 1}
    whole, again, other = (arrays(random_run(seed, **layout)) for seed in (1, 1, 2))
    np.testing.assert_equal(whole, again)
    assert any(np.abs(whole[name] - other[name]).max() > 1e-6 for name in whole)


def test_what_is_drawn_goes_on_where_it_was_and_not_from_what_was_drawn_between():
    whole = arrays(random_run(1, epochs=2))
    model = random_run(1, epochs=1)
    model(np.zeros((2, 16, 16, 3), "float32"), training=True)  # draws, and must not count
    np.testing.assert_equal(arrays(random_run(1, epochs=2, initial_epoch=1, model=model)), whole)


def test_masks_differ_between_steps_replicas_and_micro_batches():
    """A model of dropout alone, whose loss shows the mask of each part."""
    inputs = keras.Input((64,))
    for replicas, accumulation_steps in ((0, 2), (2, 2)):
        with scope(devices(replicas)):
            weight = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
            model = DistributedModel(inputs, weight(keras.layers.Dropout(0.5)(inputs)))
            model.compile(
                SGD(1.0, momentum=0.0),
                loss=lambda y, p: p[:, 0],
                accumulation_steps=accumulation_steps,
                seed=7,
            )
        parts = max(replicas, 1) * accumulation_steps
        # Each part of the batch has ones in columns of its own, so the step shows which were kept.
        images = np.kron(np.eye(parts), np.ones((1, 64 // parts))).astype("float32")
        steps = []
        for _ in range(2):
            before = weight.kernel.numpy()[:, 0]
            model.fit(images, np.zeros(parts), batch_size=parts, verbose=0, shuffle=False)
            steps.append((before - weight.kernel.numpy()[:, 0] > 0).reshape(parts, -1))
        masks = np.concatenate(steps)
        assert len(np.unique(masks, axis=0)) == 2 * parts
        assert 0.3 < masks.mean() < 0.7


def test_settings_survive_a_keras_file(tmp_path):
    model = random_run(5, epochs=1, accumulation_steps=2)
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert (loaded.accumulation_steps, loaded.random_seed) == (2, 5)
    assert isinstance(loaded.optimizer, SGD)
    expected = arrays(random_run(5, epochs=2, initial_epoch=1, model=model))
    np.testing.assert_equal(arrays(random_run(5, epochs=2, initial_epoch=1, model=loaded)), expected)


def test_the_seed_is_keras_own_where_none_is_given():
    seeds = []
    for seed in (1, 1, 2):
        model = small()
        keras.utils.set_random_seed(seed)
        model.compile(SGD(0.1), SoftmaxCrossEntropy())
        seeds.append(model.random_seed)
    assert seeds[0] == seeds[1] != seeds[2]


@pytest.mark.parametrize("steps", [0, -1, 1.5, None])
def test_micro_batches_must_be_a_positive_int(steps):
    with pytest.raises(ValueError, match="accumulation_steps must be a positive int; got"):
        small().compile(SGD(0.1), SoftmaxCrossEntropy(), accumulation_steps=steps)


def test_outputs_of_any_structure_are_put_together_from_micro_batches():
    inputs = keras.Input((4,))
    outputs = {"a": keras.layers.Dense(2, name="a")(inputs), "b": keras.layers.Dense(1, name="b")(inputs)}
    model = DistributedModel(inputs, outputs)
    model.compile(SGD(0.1), {"a": "mse", "b": "mse"}, metrics={"a": ["mae"]}, accumulation_steps=3)
    x = np.arange(28, dtype="float32").reshape(7, 4) / 28
    first = model.evaluate(x, {"a": x[:, :2], "b": x[:, :1]}, verbose=0, return_dict=True)
    history = model.fit(x, {"a": x[:, :2], "b": x[:, :1]}, batch_size=7, verbose=0).history
    assert history["loss"][0] == pytest.approx(first["loss"], rel=1e-5)
    assert history["a_mae"][0] == pytest.approx(first["a_mae"], rel=1e-5)
