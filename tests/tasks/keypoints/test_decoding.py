"""Points from heat maps in TensorFlow graphs, compared with those of NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.tasks.keypoints.crops import to_image
from keras_vit.tasks.keypoints.decoding import points_of
from keras_vit.tasks.keypoints.estimating import decoded


@pytest.mark.parametrize("size", [(64, 48), (12, 9), (3, 2), (1, 1)], ids=str)
def test_points_are_those_of_numpy(size):
    """Gaussians with noise, of which some are beyond the edges, and a flat map, in windows of their own."""
    rng = np.random.default_rng(0)
    height, width = size
    centers = rng.uniform(-1, (width, height), (20, 4, 2))
    rows, columns = np.mgrid[:height, :width]
    distances = (columns - centers[..., :1, np.newaxis]) ** 2 + (rows - centers[..., 1:, np.newaxis]) ** 2
    maps = np.exp(-distances / 8) + 0.002 * rng.random(distances.shape)
    maps[0, 0] = 0
    maps = np.moveaxis(maps, 1, -1).astype("float32")
    windows = np.concatenate([rng.uniform(-9, 9, (20, 2)), rng.uniform(20, 400, (20, 2))], axis=1)
    places, scores = decoded(maps)
    found = tf.function(points_of)(tf.constant(maps), tf.constant(windows, tf.float32))
    np.testing.assert_allclose(found[..., :2], to_image(places, windows, size), rtol=1e-4, atol=2e-3)
    np.testing.assert_array_equal(found[..., 2], scores.astype("float32"))
