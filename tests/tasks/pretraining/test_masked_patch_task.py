import numpy as np
import pytest

from keras_vit.training import RunConfig, find_recipe


def objective(target):
    options = {"objective": "masked_patch", "target": target}
    return RunConfig("digits", find_recipe("masked_patch"), "mu/8", **options).task


@pytest.mark.parametrize("target", ["mean_color", "downsized"])
def test_colors_have_the_weighted_cross_entropy_of_each_patch(target, rng):
    y, logits = rng.integers(0, 8, (2, 3)), rng.standard_normal((2, 3, 8))
    weights = np.array([[1.0, 0, 0], [1, 1, 0]])
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    each = -np.take_along_axis(logs, y[..., np.newaxis], -1)[..., 0]
    loss = objective(target).loss(None, None)(y, logits, weights)
    assert float(loss) == pytest.approx((weights * each).sum() / 3, rel=1e-5)


def test_pixels_have_the_weighted_squared_error(rng):
    y, p, weights = rng.standard_normal((4, 3)), rng.standard_normal((4, 3)), np.array([1.0, 0, 2, 0.5])
    expected = (weights * ((y - p) ** 2).mean(1)).sum() / 3.5
    assert float(objective("pixels").loss(None, None)(y, p, weights)) == pytest.approx(expected, rel=1e-5)
