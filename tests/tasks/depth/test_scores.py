import numpy as np
import pytest
from reference.depth import depth_scores as reference_scores

from keras_vit.tasks import get_task
from keras_vit.tasks.depth.scores import DepthPredictions, aligned, depth_scores
from keras_vit.tasks.task import concatenate


def random_map(rng):
    """A label, perhaps with zeros, negative numbers or missing pixels, and an estimate (height, width, 1)."""
    shape = (*rng.integers(1, 9, 2), 1)
    label = rng.uniform(0.5, 12, shape).astype("float32")
    label[rng.random(shape) < rng.choice([0, 0.3, 0.9])] = rng.choice([np.nan, 0, -1, np.inf])
    return label, (label * rng.uniform(0.6, 1.6, shape)).astype("float32")


@pytest.mark.parametrize("quantity", ["metric", "relative", "disparity"])
def test_1000_random_maps_have_the_scores_of_their_definition(quantity, rng):
    maps = [random_map(rng) for _ in range(1000)]
    estimates = [np.where(np.isfinite(o) & (o > 0), o, 1).astype("float32") for _, o in maps]
    if quantity == "disparity":
        estimates = [1 / estimate for estimate in estimates]
    labels = [label for label, _ in maps]
    found = DepthPredictions.of(estimates, labels, quantity, max_depth=10.0)
    expected = [reference_scores(*pair, quantity, max_depth=10.0) for pair in zip(labels, estimates)]
    counted = [one for one in expected if one]
    assert 500 < len(counted) < 1000
    for one, row in zip(expected, found.image_scores):
        if one is None:
            assert np.isnan(row).all()
        elif quantity == "metric":  # Of few pixels a fit depends on rounding.
            np.testing.assert_allclose(row, [*one.values()], rtol=1e-9, atol=1e-9)
    if quantity == "metric":
        means = {name: np.mean([one[name] for one in counted]) for name in counted[0]}
        scores = depth_scores(found)
        assert scores.pop("samples") == 1000 and scores == pytest.approx(means)
    else:
        many = [i for i, one in enumerate(expected) if one and found.pixels[i] >= 6]
        rows = [[*expected[i].values()] for i in many]
        np.testing.assert_allclose(found.image_scores[many], rows, rtol=1e-6, atol=1e-6)


def test_depths_of_disparities_near_0_are_capped():
    """As by MiDaS's authors: at the largest depth of the data set, or else at the farthest label."""
    depths = np.linspace(1, 50, 10_000).reshape(100, 100, 1)
    disparity = 1 / depths
    disparity[-1, -1], disparity[-1, -2] = -1e-6, 1e-6
    scores = depth_scores(DepthPredictions.of([disparity], [depths], "disparity"))
    assert scores["abs_rel"] < 1e-3 and scores["rmse"] < 0.01
    scores = depth_scores(DepthPredictions.of([disparity], [depths], "disparity", max_depth=80.0))
    assert scores["rmse"] == pytest.approx(30 * np.sqrt(2) / 100, rel=0.01)


@pytest.mark.parametrize("max_depth", [np.inf, 80.0])
def test_noisy_disparities_have_the_scores_of_their_definition(max_depth, rng):
    depths = np.exp(rng.uniform(0, np.log(50), (20, 30, 1)))
    disparity = 1 / depths + rng.normal(0, 0.02, depths.shape)
    found = DepthPredictions.of([disparity], [depths], "disparity", max_depth=max_depth)
    expected = reference_scores(depths, disparity, "disparity", max_depth=max_depth)
    np.testing.assert_allclose(found.image_scores[0], [*expected.values()], rtol=1e-9)


def test_scores_of_parts_are_joined():
    label = np.array([[[1.0], [2.0]]])
    parts = [DepthPredictions.of([label * factor], [label]) for factor in (1.1, 2.0)]
    scores = depth_scores(concatenate(parts))
    assert scores["samples"] == 2 and scores["abs_rel"] == pytest.approx(0.55) and scores["a1"] == 0.5
    np.testing.assert_allclose(concatenate(parts).errors, [0.1, 1.0])


def test_values_that_are_no_depths_have_errors_only(rng):
    label = rng.standard_normal((5, 6, 3))
    label[2, 3, 1], label[0, 0] = np.nan, np.nan
    predictions = DepthPredictions.of([label + 2], [label], "values")
    scores = depth_scores(predictions)
    assert (scores["rmse"], scores["mae"]) == pytest.approx((2, 2)) and scores["abs_rel"] is None
    assert predictions.errors == pytest.approx([2]) and predictions.pixels.tolist() == [29]
    label[..., 0] = np.nan  # Each channel may lack other pixels.
    assert DepthPredictions.of([label + 2], [label], "values").pixels.tolist() == [29]


def test_without_a_label_nothing_is_scored():
    predictions = DepthPredictions.of([np.ones((2, 2, 1))], [np.full((2, 2, 1), np.nan)])
    scores = depth_scores(predictions)
    assert scores.pop("samples") == 1 and {*scores.values()} == {None}
    assert get_task("depth").correct(predictions).tolist() == [False]  # It is none of the best.


def test_an_alignment_minimizes_the_squared_differences(rng):
    depths = rng.uniform(1, 5, (20, 30))
    disparity = 4 / depths + 0.5
    depths[3:9] = np.nan
    found = aligned(disparity, depths)
    np.testing.assert_allclose(found[~np.isnan(depths)], depths[~np.isnan(depths)], rtol=1e-9)
    np.testing.assert_allclose(aligned(np.full((2, 2), 3.0), np.ones((2, 2)), "relative"), np.ones((2, 2)))


def test_labels_of_other_channels_are_refused():
    with pytest.raises(ValueError, match="expected labels of 1 channel.*got 3"):
        DepthPredictions.of([np.ones((2, 2, 1))], [np.ones((2, 2, 3))])
