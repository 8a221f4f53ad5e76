"""The same global batch is the same step on any number of devices, micro-batches and workers."""

import os

import keras
import numpy as np
import pytest
from made.devices import data, devices
from reference.comparing import arrays
from reference.small import small

import keras_vit
from keras_vit.training import SGD, SoftmaxCrossEntropy, WarmupDecay

pytestmark = pytest.mark.tensorflow_only("tf.distribute")
if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    from keras_vit.training.strategy import scope


class Losses(keras.callbacks.Callback):
    """The loss of each step, or the mean over those of one execution."""

    def __init__(self):
        super().__init__()
        self.values = []

    def on_train_batch_begin(self, batch, logs=None):
        self.model.reset_metrics()

    def on_train_batch_end(self, batch, logs=None):
        self.values.append(logs["loss"])


def official_run(golden, replicas=0, plain=False, steps_per_execution=1, **options):
    """The twelve steps of the official fine-tuning: (losses, model, what it should give)."""
    expected = np.load(golden / "finetune.expected.npz")
    with scope(devices(replicas)):
        model = keras_vit.from_pretrained(
            golden / "token.npz", num_classes=5, head="reset", representation_size=None
        )
        trained = keras.Model(model.inputs, model.outputs[0]) if plain else model
        trained.compile(
            SGD(WarmupDecay(0.3, 12, 3), 0.9, global_clipnorm=1.0),
            SoftmaxCrossEntropy(),
            metrics=["accuracy"],
            steps_per_execution=steps_per_execution,
            **options,
        )
    images = (expected["images"].reshape(-1, 32, 32, 3).astype("float32") - 127.5) / 127.5
    batches = tf.data.Dataset.from_tensor_slices((images, expected["labels"].reshape(-1))).batch(8)
    losses = Losses()
    trained.fit(batches.repeat(), steps_per_epoch=12, verbose=0, callbacks=[losses], shuffle=False)
    return losses.values, model, expected


def assert_official(losses, model, expected, tmp_path, every=1):
    wanted = expected["losses"].reshape(-1, every).mean(axis=1)
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)
    keras_vit.save_weights(model, tmp_path / "final.npz", layout="vit_jax")
    compared = 0
    with np.load(tmp_path / "final.npz") as final:
        for key in expected.files:
            if key.startswith("final/"):
                want = expected[key]
                error = np.abs(final[key.removeprefix("final/")].reshape(want.shape) - want).max()
                assert error <= 1e-4 * np.abs(want).max(), key
                compared += 1
    assert compared == len(model.weights)


FULL = "FULL" in os.environ
LAYOUTS = [(0, 1), (0, 4), (2, 2)]  # (replicas, micro-batches)
LAYOUTS += [(0, 2), (2, 1), (2, 4), (4, 1), (4, 2), (4, 4)] * FULL


@pytest.mark.parametrize(("replicas", "accumulation_steps"), LAYOUTS)
def test_fine_tuning_follows_the_official_trajectory(replicas, accumulation_steps, golden, tmp_path):
    found = official_run(golden, replicas, accumulation_steps=accumulation_steps)
    assert_official(*found, tmp_path)


@pytest.mark.parametrize("replicas", [*[0] * FULL, 2])
def test_a_plain_keras_model_follows_it_too(replicas, golden, tmp_path):
    assert_official(*official_run(golden, replicas, plain=True), tmp_path)


def test_several_steps_in_one_execution_follow_it_on_one_device(golden, tmp_path):
    assert_official(*official_run(golden, steps_per_execution=3), tmp_path, every=3)


def test_several_steps_in_one_execution_are_refused_on_several_devices(golden):
    with pytest.raises(ValueError, match="steps_per_execution must be 1 on several replicas; got 3 on 2"):
        official_run(golden, replicas=2, steps_per_execution=3)


def test_keras_own_clipping_is_another_run(golden):
    """What the order of reduction and clipping is for: this fails where Keras mends its own."""
    finals = []
    for replicas in (0, 2):
        with scope(devices(replicas)):
            model = small(num_layers=1)
            model.compile(keras.optimizers.SGD(0.5, global_clipnorm=0.1), SoftmaxCrossEntropy())
        images, labels = data(16)
        model.fit(images, labels, batch_size=8, verbose=0, shuffle=False)
        finals.append(arrays(model)["head/bias"])
    assert np.abs(finals[0] - finals[1]).max() > 1e-3
