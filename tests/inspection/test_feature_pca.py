import numpy as np
import pytest
from sklearn.decomposition import PCA

from keras_vit.inspection import feature_pca


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


@pytest.mark.parametrize("features, count", [([], 3), (np.zeros((2, 2)), 3), (np.zeros((2, 2, 3)), 4)])
def test_other_shapes_are_refused(features, count):
    with pytest.raises(ValueError, match="expected"):
        feature_pca(features, count)
