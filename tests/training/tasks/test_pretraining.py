"""What holds for runs of several objectives; tests/training also interrupts and distributes them."""

import numpy as np
import pytest

from keras_vit.training.run import train

pytestmark = pytest.mark.slow


def losses(config, path):
    workdir, _ = train(config, path, verbose=0)
    return [row["loss"] for row in workdir.steps()]


@pytest.mark.tensorflow_only("on JAX test_sharded_steps divides the batch among devices")
@pytest.mark.parametrize("objective", ["mae", "igpt", "dino"])
def test_micro_batches_of_two_replicas_train_as_one_device_does(objective, labeled, check_replicas):
    # Each replica divides its 3 images into micro-batches of 1 and 2. AdamW would make steps from rounding.
    plain = {"optimizer": "sgd", "base_lr": 0.1, "dropout_rate": 0.0, "total_steps": 4, "batch_size": 6}
    check_replicas(labeled(objective, **plain, accumulation_steps=1), accumulation_steps=2)


# Steps of DINO differ more at its temperatures; models/pretraining/test_dino.py compares some at larger ones.
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("objective", ["mae", "igpt"])
def test_remat_and_mixed_precision_train_nearly_the_same(objective, labeled, tmp_path):
    plain = {"dropout_rate": 0.0, "total_steps": 4, "accumulation_steps": 1}
    expected = losses(labeled(objective, **plain), tmp_path / "float32")
    found = losses(labeled(objective, **plain, remat=True), tmp_path / "remat")
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    found = losses(labeled(objective, **plain, dtype="mixed_bfloat16"), tmp_path / "bfloat16")
    np.testing.assert_allclose(found, expected, rtol=0.05)
    found = losses(labeled(objective, **plain, dtype="mixed_float16"), tmp_path / "float16")
    np.testing.assert_allclose(found, expected, rtol=0.02)
