"""What holds for runs of several objectives; tests/training also interrupts and distributes them."""

import dataclasses

import keras
import numpy as np
import pytest
from made.devices import devices
from made.workers import assert_near, end_of
from reference.comparing import arrays

from keras_vit.engine.strategy import TensorFlowDevices
from keras_vit.training.run import train

pytestmark = pytest.mark.slow


def losses(config, path):
    workdir, _ = train(config, path, verbose=0)
    return [row["loss"] for row in workdir.steps()]


@pytest.mark.tensorflow_only("on JAX test_sharded_steps divides the batch among devices")
@pytest.mark.parametrize(
    "labels", ["mae", "igpt", "dino", "boxes", "sigmoid", "softmax", "flexible", "taught", "features"]
)
def test_micro_batches_of_two_replicas_train_as_one_device_does(labels, labeled, tmp_path, monkeypatch):
    # Each replica divides its 3 images into micro-batches of 1 and 2. AdamW would make steps from rounding.
    plain = {"optimizer": "sgd", "base_lr": 0.1, "dropout_rate": 0.0, "total_steps": 4, "batch_size": 6}
    config = labeled(labels, **plain, accumulation_steps=1, mixup=0.0)
    ends = [_end(config, tmp_path / "one")]
    if labels not in ("sigmoid", "softmax"):  # Pairs are compared in whole batches.
        config = dataclasses.replace(config, recipe=config.recipe.with_changes(accumulation_steps=2))
    monkeypatch.setattr("keras_vit.training.run.make_devices", lambda name: TensorFlowDevices(devices(2)))
    ends.append(_end(config, tmp_path / "two", replicas=2))
    assert_near(*ends[::-1], rel=1e-4, abs=1e-12, of_weights=1e-4)


def _end(config, path, replicas=1):
    workdir, record = train(config, path, verbose=0)
    assert record["replicas"] == replicas
    file = workdir.pretrainer if workdir.pretrainer.exists() else workdir.model
    return end_of(path)[0], arrays(keras.saving.load_model(file))


# Steps of DINO differ more at its temperatures; tasks/pretraining/test_dino.py compares some at larger ones.
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("objective", ["mae", "igpt"])
def test_remat_and_mixed_precision_train_nearly_the_same(objective, labeled, tmp_path):
    plain = {"dropout_rate": 0.0, "total_steps": 4, "accumulation_steps": 1}
    expected = losses(labeled(objective, **plain), tmp_path / "float32")
    changes = {"remat": True}, {"dtype": "mixed_bfloat16"}, {"dtype": "mixed_float16"}
    for number, (change, rtol) in enumerate(zip(changes, (1e-5, 0.05, 0.02))):
        found = losses(labeled(objective, **plain, **change), tmp_path / str(number))
        np.testing.assert_allclose(found, expected, rtol=rtol)
