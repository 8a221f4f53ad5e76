"""The part of an image that a model receives, in TensorFlow graphs; see `crops.py`."""

import tensorflow as tf

from keras_vit.data.decoding.model_input import with_channels
from keras_vit.tasks.keypoints.crops import MARGIN
from keras_vit.tasks.keypoints.labels import BOX_ROWS, CORNER, OPPOSITE, WHOLE


def window_of(label, size, image_size):
    """As `crops.window_of`, of a label in records, in a TensorFlow graph: float64 (4,).

    >>> from keras_vit.tasks.keypoints.labels import label_of
    >>> label = label_of([[0, 0, 0]], box=(0.1, 0.2, 0.2, 0.6))
    >>> window_of(label, [100, 100], (64, 48)).numpy().round(3).tolist()
    [-3.75, 15.0, 37.5, 50.0]
    """
    label = tf.cast(label, tf.float64)
    sides = tf.cast(tf.reverse(tf.stack(size), [0]), tf.float64)
    corner, opposite = label[CORNER, :2] * sides, label[OPPOSITE, :2] * sides
    aspect = image_size[1] / image_size[0]
    extent = opposite - corner
    width = tf.maximum(extent[0], extent[1] * aspect)
    is_whole = label[CORNER, WHOLE] > 0
    extent = tf.stack([width, width / aspect]) * tf.where(is_whole, tf.constant(1.0, tf.float64), MARGIN)
    return tf.concat([(corner + opposite - extent) / 2, extent], axis=0)


def scaled(window, factor):
    """A window around the same center, of which the object is larger by a factor.

    >>> scaled(tf.constant([0.0, 0.0, 8.0, 4.0], tf.float64), 2.0).numpy().tolist()
    [2.0, 1.0, 4.0, 2.0]
    """
    sides = window[2:] / tf.cast(factor, tf.float64)
    return tf.concat([window[:2] + (window[2:] - sides) / 2, sides], axis=0)


def turned(label, angle, window, size):
    """A label in records whose points turn around the center of a window, as `cropped` turns the pixels.

    Args:
        label: (2 + points, 4). Its box stays.
        angle: In radians; positive: clockwise.
        window: float64 (4,): left, top, width and height, which `window_of` returns.
        size: (height, width) of the image.

    Example:
        >>> from keras_vit.tasks.keypoints.labels import label_of
        >>> window = tf.constant([0.0, 0.0, 7.0, 7.0], tf.float64)
        >>> turned(label_of([[0.75, 0.5, 2]]), np.pi / 2, window, [8, 8])[2:, :2].numpy().round(3).tolist()
        [[0.5, 0.75]]
    """
    label = tf.cast(label, tf.float64)
    sides = tf.cast(tf.reverse(tf.stack(size), [0]), tf.float64)
    center = window[:2] + window[2:] / 2 + 0.5
    x, y = tf.unstack(label[BOX_ROWS:, :2] * sides - center, axis=1)
    sine, cosine = tf.sin(tf.cast(angle, tf.float64)), tf.cos(tf.cast(angle, tf.float64))
    places = tf.stack([cosine * x - sine * y, sine * x + cosine * y], axis=1)
    points = tf.concat([(places + center) / sides, label[BOX_ROWS:, 2:]], axis=1)
    return tf.concat([label[:BOX_ROWS], points], axis=0)


def cropped(image, window, preprocessing, angle=None):
    """The pixels of a window, interpolated bilinearly, and black outside of the image.

    Args:
        image: uint8 (height, width, 3).
        window: float64 (4,): left, top, width and height, which `window_of` returns.
        preprocessing: `Preprocessing`, of which the size and the channels are used.
        angle: By which the window's content is turned, in radians; positive: clockwise. None: 0.

    Returns:
        float32 (height, width, channels) in [0, 255].

    Example:
        >>> image = tf.constant(np.arange(16).reshape(4, 4, 1).repeat(3, 2), tf.uint8)
        >>> window = tf.constant([1.0, 1.0, 1.0, 1.0], tf.float64)
        >>> cropped(image, window, keras_vit.Preprocessing(2))[..., 0].numpy().tolist()
        [[5.0, 6.0], [9.0, 10.0]]
    """
    height, width = preprocessing.image_size
    center, steps = window[:2] + window[2:] / 2, window[2:] / [max(width - 1, 1), max(height - 1, 1)]
    angle = tf.cast(0.0 if angle is None else angle, tf.float64)
    sine, cosine, zero = tf.sin(angle), tf.cos(angle), tf.zeros((), tf.float64)
    rows = [cosine * steps[0], sine * steps[1]], [-sine * steps[0], cosine * steps[1]]
    first = [
        middle - x * (width - 1) / 2 - y * (height - 1) / 2
        for middle, (x, y) in zip(tf.unstack(center), rows)
    ]
    matrix = tf.stack([*rows[0], first[0], *rows[1], first[1], zero, zero])
    pixels = tf.cast(with_channels(image, preprocessing.channels), tf.float32)
    warped = tf.raw_ops.ImageProjectiveTransformV3(
        images=pixels[tf.newaxis],
        transforms=tf.cast(matrix, tf.float32)[tf.newaxis],
        output_shape=(height, width),
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
    )
    return tf.ensure_shape(warped[0], (height, width, preprocessing.channels))


def place_of(window, size, image_size):
    """The scale and the offset of `points.moved` from an image to the window that a model receives.

    >>> window = tf.constant([0.0, 0.0, 3.0, 3.0], tf.float64)
    >>> [numbers.numpy().tolist() for numbers in place_of(window, [8, 8], (4, 4))]
    [[2.0, 2.0], [0.0, 0.0]]
    """
    sides = tf.cast(tf.stack(size), tf.float64)
    corner, extent = tf.reverse(window[:2], [0]), tf.reverse(window[2:], [0])
    target = tf.constant(image_size, tf.float64)
    factor = (target - 1) / extent
    return sides * factor / target, (0.5 - (corner + 0.5) * factor) / target
