import numpy as np
import pytest
from made.tables import by_table
from made.trained import NotInstalled, photograph, weights_folder
from PIL import Image
from sklearn.decomposition import PCA

import keras_vit
from keras_vit.inspection import feature_pca, foreground


def test_components_are_those_of_scikit_learn(rng):
    grids = [rng.standard_normal((5, 4, 7)) * np.arange(1, 8), rng.standard_normal((3, 2, 7))]
    samples = np.concatenate([grid.reshape(-1, 7) for grid in grids])
    expected = PCA(3).fit_transform(samples)
    found = np.concatenate([picture.reshape(-1, 3) for picture in feature_pca(grids)])
    assert found.min() == 0 and found.max() == 1
    for ours, theirs in zip(found.T, expected.T):
        inside = (ours > 0) & (ours < 1)
        assert abs(np.corrcoef(ours[inside], theirs[inside])[0, 1]) > 1 - 1e-6


def test_equal_images_have_equal_colors(rng):
    grid = rng.standard_normal((4, 4, 6))
    first, second = feature_pca([grid, grid])
    np.testing.assert_array_equal(first, second)
    assert feature_pca(grid).shape == (4, 4, 3)
    assert not feature_pca(np.ones((2, 2, 3))).any()


def test_masked_positions_alone_determine_the_components_and_the_others_are_white(rng):
    grid, mask = rng.standard_normal((6, 5, 7)) * np.arange(1, 8), rng.random((6, 5)) < 0.6
    picture = feature_pca(grid, masks=mask)
    assert (picture[~mask] == 1).all() and picture[mask].min() == 0
    alone = feature_pca(grid[mask][np.newaxis])
    np.testing.assert_allclose(picture[mask], alone[0], atol=1e-6)
    np.testing.assert_array_equal(feature_pca([grid], masks=[mask])[0], picture)


def test_components_of_rounding_errors_are_zero(rng):
    """Two positions have one component; the others would be noise, scaled to full colors."""
    grid, mask = rng.standard_normal((3, 2, 8)).astype("float32"), np.zeros((3, 2), bool)
    mask[1] = True
    picture = feature_pca(grid, masks=mask)[mask]
    assert sorted(picture[:, 0]) == [0, 1] and not picture[:, 1:].any()
    nearly_equal = np.float32(7) + 1e-6 * grid
    assert not feature_pca(nearly_equal).any() and foreground(nearly_equal).all()


@by_table(
    "features, options, message",
    [
        ([], {}, "expected arrays"),
        (np.zeros((2, 2)), {}, "expected arrays"),
        (np.zeros((2, 2, 3)), {"count": 4}, "expected at most 3 components, the channels; got 4"),
        (np.zeros((0, 5, 3)), {}, "at least one position; got none"),
        (np.zeros((2, 2, 3)), {"masks": np.zeros((2, 2), bool)}, "at least one position; got none"),
        (np.zeros((2, 2, 3)), {"masks": np.ones((2, 3), bool)}, r"bool masks of shapes \[\(2, 2\)\]; got"),
        (np.zeros((2, 2, 3)), {"masks": np.ones((2, 2))}, "float64"),
    ],
)
def test_features_and_masks_that_do_not_fit_are_refused(features, options, message):
    with pytest.raises(ValueError, match=message):
        feature_pca(features, **options)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_foreground_is_what_differs_from_most_of_the_image_and_border(rng, sign):
    is_object = np.zeros((12, 16), bool)
    is_object[4:12, 3:9] = True  # which reaches the border
    features = 0.1 * rng.standard_normal((12, 16, 8))
    features[is_object, 2] += sign * 5
    np.testing.assert_array_equal(foreground(features), is_object)


@pytest.mark.parametrize("shape", [(1, 1, 4), (3, 2, 1)])
def test_features_that_are_all_equal_are_foreground_everywhere(shape):
    assert foreground(np.ones(shape)).all()


@pytest.mark.slow
def test_the_foreground_of_a_photograph_is_its_flower():
    try:
        folder, pixels = weights_folder(), photograph("flower")
    except NotInstalled as error:
        pytest.skip(str(error))
    model = keras_vit.from_pretrained(folder, image_size=(None, None))
    (features,) = keras_vit.dense_features(model, [pixels], size=(15 * 14, 22 * 14))
    means = np.asarray(Image.fromarray(pixels).resize((22, 15), Image.Resampling.BOX), "float32")
    is_orange = means[..., 0] - means[..., 1] > 30  # on green
    found = foreground(features)
    assert (found & is_orange).sum() > 0.7 * (found | is_orange).sum()
