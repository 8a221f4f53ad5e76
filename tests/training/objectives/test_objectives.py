"""What holds for runs of several objectives; tests/training also interrupts and distributes them."""

import numpy as np
import pytest

from keras_vit.training.run import train

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("eager")]


def losses(config, path):
    workdir, _ = train(config, path, verbose=0)
    return [row["loss"] for row in workdir.steps()]


# Steps of DINO differ more at its temperatures; tests/models/test_dino.py compares some at larger ones.
@pytest.mark.parametrize("objective", ["mae", "igpt"])
def test_remat_and_mixed_precision_train_nearly_the_same(objective, labelled, tmp_path):
    plain = {"dropout_rate": 0.0, "total_steps": 4, "accumulation_steps": 1}
    expected = losses(labelled(objective, **plain), tmp_path / "float32")
    found = losses(labelled(objective, **plain, remat=True), tmp_path / "remat")
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    found = losses(labelled(objective, **plain, dtype="mixed_bfloat16"), tmp_path / "bfloat16")
    np.testing.assert_allclose(found, expected, rtol=0.05)
    found = losses(labelled(objective, **plain, dtype="mixed_float16"), tmp_path / "float16")
    np.testing.assert_allclose(found, expected, rtol=0.02)
