"""Encoded images to model input as TensorFlow graphs, pixel for pixel as `Preprocessing` does it."""

import tensorflow as tf

from keras_vit.preprocessing import LUMA


def decode(encoded):
    """An encoded image (JPEG, PNG, BMP, GIF's first frame, WebP) as uint8 (height, width, 3).

    JPEG is decoded with the accurate transform, which gives Pillow's pixels.
    """
    image = tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: tf.io.decode_jpeg(encoded, channels=3, dct_method="INTEGER_ACCURATE"),
        lambda: tf.io.decode_image(encoded, channels=3, expand_animations=False),
    )
    return tf.ensure_shape(image, (None, None, 3))


def with_channels(image, channels):
    """A decoded image with as many channels as the model reads: 3, or 1 for grey."""
    if channels == 3:
        return image
    if channels == 1:
        return tf.tensordot(tf.cast(image, tf.float32), tf.constant(LUMA)[:, tf.newaxis], 1)
    raise ValueError(f"image files hold 1 or 3 channels, but the model reads {channels}")


def is_readable(path):
    """Whether the file can be read and decoded."""
    try:
        decode(tf.io.read_file(path))
    except tf.errors.OpError:
        return False
    return True


def prepare(image, preprocessing):
    """A decoded image as the model reads it: resized, cropped and scaled as `preprocessing` says."""
    return preprocessing.normalise(resized(image, preprocessing))


def resized(image, preprocessing):
    """A decoded image as `Preprocessing.resized` makes it: float32 in [0, 255], at the model's size."""
    pixels = tf.cast(image, tf.float32)
    if preprocessing.image_size is None:
        return pixels
    size, height, width = preprocessing.image_size, *preprocessing.image_size
    if preprocessing.resize == "squash":
        pixels = resize(pixels, size, preprocessing)
    else:
        enlarged, top, left = _crop_window(tf.shape(pixels)[:2], preprocessing)
        pixels = resize(pixels, enlarged, preprocessing)[top : top + height, left : left + width]
    return tf.ensure_shape(pixels, (height, width, preprocessing.channels))


def resize(pixels, size, preprocessing):
    resized = tf.image.resize(
        pixels, size, method=preprocessing.interpolation, antialias=preprocessing.antialias
    )
    return tf.clip_by_value(resized, 0, 255)  # cubics overshoot


def _crop_window(old, preprocessing):
    """`Preprocessing.crop_window` in a graph."""
    wanted = preprocessing.before_crop
    old = tf.cast(old, tf.float64)
    factor = tf.reduce_max(tf.constant(wanted, tf.float64) / old)
    enlarged = tf.maximum(tf.cast(tf.round(old * factor), tf.int32), wanted)
    corner = (enlarged - tf.constant(preprocessing.image_size)) // 2
    return enlarged, corner[0], corner[1]
