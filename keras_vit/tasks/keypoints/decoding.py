"""Points from heat maps, in TensorFlow graphs; see `estimating.py`."""

import numpy as np
import tensorflow as tf
from scipy.ndimage import gaussian_filter1d

from keras_vit.tasks.keypoints.crops import to_image
from keras_vit.tasks.keypoints.estimating import BLUR, LEAST, MOST, newton_step


def points_of(heat_maps, windows):
    """The points of heat maps, in the images whose parts these show.

    Args:
        heat_maps: float32 (batch, height, width, points), of a known height and width.
        windows: (…, 4), as of `crops.window_of`, for each map or for all.

    Returns:
        float32 (batch, points, 3): x and y in pixels of the image, and the score, as of
        `estimate_keypoints`.

    Example:
        >>> from keras_vit.tasks.keypoints.loss import heat_maps
        >>> maps = tf.cast(heat_maps(np.array([[[0.4, 0.7, 2]]]), (64, 48)), tf.float32)
        >>> points_of(maps, tf.constant([0.0, 0.0, 191, 255])).numpy().round().tolist()
        [[[77.0, 179.0, 1.0]]]
    """
    _, height, width, count = heat_maps.shape
    maps = tf.transpose(heat_maps, (0, 3, 1, 2))
    flat = tf.reshape(maps, (-1, count, height * width))
    best, scores = tf.argmax(flat, axis=2, output_type=tf.int32), tf.reduce_max(flat, axis=2)
    rows, columns = best // width, best % width
    near = tf.matmul(tf.matmul(_kernels(height, rows), maps), _kernels(width, columns), transpose_b=True)
    numerators, determinant = newton_step(tf.math.log(tf.clip_by_value(near, LEAST, MOST)))
    steps = tf.math.divide_no_nan(tf.stack(numerators, axis=-1), determinant[..., tf.newaxis])
    places = tf.cast(tf.stack([columns, rows], axis=-1), tf.float32) - steps
    places = to_image(places, windows, (height, width))
    return tf.concat([places, scores[..., tf.newaxis]], axis=2)


def _kernels(size, indices):
    """The weights of the blurred values before, at and after the indices of an axis: (…, 3, size)."""
    blur = gaussian_filter1d(np.eye(size), **BLUR, axis=0)
    before_and_after = np.clip(np.arange(size)[:, np.newaxis] + (-1, 0, 1), 0, size - 1)
    return tf.gather(tf.constant(blur[before_and_after], tf.float32), indices)
