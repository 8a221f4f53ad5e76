import functools

import keras
import numpy as np
import pytest
from reference.comparing import gradient, numpy
from reference.depth import depth_loss

from keras_vit.tasks.depth.loss import AbsoluteRelativeError, DepthLoss, _median

CASES = {
    "metric": {"max_depth": 8.0},
    "metric of DINOv2": {"max_depth": 8.0, "variance_focus": 0.85, "scales": 1},
    "relative": {},
    "disparity": {},
    "values": {},
}


def maps(rng, quantity):
    """Labels with missing pixels, zeros and one too far, and outputs: float64 (3, 11, 14, channels)."""
    shape = (3, 11, 14, 3 if quantity == "values" else 1)
    labels, outputs = rng.uniform(0.2, 7, shape), rng.uniform(0.1, 9, shape)
    labels[rng.random(shape) < 0.2] = np.nan
    if quantity != "values":
        labels[:, 0, 0] = 0
    labels[1, 3] = np.nan
    labels[2, 4, 5] = 9
    return labels, outputs


@pytest.mark.parametrize("case", CASES)
def test_the_loss_and_its_gradient_are_those_of_their_definition(case, rng):
    """The gradient by differences of the reference in float64; the loss of JAX computes in float32."""
    quantity, options = case.partition(" ")[0], CASES[case]
    labels, outputs = maps(rng, quantity)
    is_float64 = keras.backend.backend() == "tensorflow"
    dtype, tolerance = ("float64", 1e-6) if is_float64 else ("float32", 1e-4)
    loss = DepthLoss(quantity, reduction=None, dtype=dtype, **options)
    pairs = labels.astype(dtype), outputs.astype(dtype)
    expected = [depth_loss(*pair, quantity, **options) for pair in zip(labels, outputs)]
    np.testing.assert_allclose(numpy(loss(*pairs)), expected, rtol=tolerance)
    found, step = gradient(lambda x: loss(pairs[0], x), pairs[1]), 1e-5
    for place in [(0, 2, 3, 0), (1, 4, 4, 0), (1, 3, 1, 0), (2, 4, 5, 0), (0, 8, 8, 0), (2, 10, 13, 0)]:
        changed = np.repeat(outputs[place[0]][np.newaxis], 2, axis=0)
        changed[(slice(None), *place[1:])] += step, -step
        high, low = (depth_loss(labels[place[0]], one, quantity, **options) for one in changed)
        assert found[place] == pytest.approx((high - low) / (2 * step), rel=1e-5, abs=tolerance)


def test_images_without_a_label_and_of_weight_0_do_not_count(rng):
    labels, outputs = (of.astype("float32") for of in maps(rng, "metric"))
    expected = numpy(DepthLoss(reduction=None)(labels, outputs))
    labels[1] = np.nan
    assert float(DepthLoss()(labels, outputs)) == pytest.approx((expected[0] + expected[2]) / 2, rel=1e-5)
    assert float(DepthLoss()(labels, outputs, np.array([0, 1, 2]))) == pytest.approx(expected[2], rel=1e-5)
    assert np.isfinite(gradient(lambda x: DepthLoss()(labels, x), outputs)).all()
    for quantity in ("relative", "disparity", "values"):
        nothing = np.full_like(labels, np.nan)
        assert float(DepthLoss(quantity)(nothing, outputs)) == 0
        assert (gradient(functools.partial(DepthLoss(quantity), nothing), outputs) == 0).all()


def test_scale_and_shift_do_not_matter_where_they_are_unknown(rng):
    labels, _ = (of.astype("float32") for of in maps(rng, "disparity"))
    known = np.nan_to_num(1 / np.where(labels > 0, labels, np.nan), nan=1.0)
    assert float(DepthLoss("disparity")(labels, 3 * known + 2)) == pytest.approx(0, abs=1e-5)
    assert float(DepthLoss("relative")(labels, 5 / known)) == pytest.approx(1e-3, abs=1e-4)
    assert float(DepthLoss("metric")(labels, 5 / known)) > 1


def test_the_metric_is_the_mean_error_of_the_images(rng):
    labels, outputs = (of.astype("float32") for of in maps(rng, "metric"))
    valid = (labels > 0) & (labels <= 8)
    errors = [np.mean(np.abs(o - y)[v] / y[v]) for o, y, v in zip(outputs, labels, valid)]
    metric = AbsoluteRelativeError(max_depth=8.0)
    metric.update_state(labels[:2], outputs[:2], np.array([1.0, 0.0]))
    metric.update_state(labels[2:], outputs[2:], np.array([1.0]))
    assert float(metric.result()) == pytest.approx((errors[0] + errors[2]) / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        ({"quantity": "depth"}, None, "quantity must be one of 'metric'"),
        ({"variance_focus": 2}, None, "variance_focus"),
        ({"scales": 0}, None, "scales"),
        ({}, (2, 4, 4), "expected maps .* of the shape of the outputs"),
        ({"quantity": "values"}, (2, 4, 4, 3), "expected maps .* of the shape of the outputs"),
    ],
)
def test_wrong_options_and_shapes_are_refused(options, shape, message):
    with pytest.raises(ValueError, match=message):
        loss = DepthLoss(**options)
        loss(np.ones(shape, "float32"), np.ones((2, 4, 4, 1), "float32"))


@pytest.mark.parametrize("shape", [(4, 1), (3, 5)])
def test_medians_are_those_of_numpy(shape, rng):
    maps = rng.standard_normal((5, *shape, 1)).astype("float32")
    maps[1] *= 1e-30
    maps[2] = np.round(maps[2])  # equal values, and zeros of both signs
    valid = rng.random(maps.shape) < 0.7
    valid[3], valid[4] = False, [[[True]], *[[[False]]] * (shape[0] - 1)]
    found = numpy(_median(keras.ops.convert_to_tensor(maps), keras.ops.convert_to_tensor(valid)))
    for image, counts, median in zip(maps, valid, found):
        values = image[counts]
        expected = np.percentile(values, 50, method="lower") if len(values) else 0.0
        assert median == expected
