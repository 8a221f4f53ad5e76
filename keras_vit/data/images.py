"""Encoded images to model input as TensorFlow graphs, pixel for pixel as `Preprocessing` does it."""

import numpy as np
import tensorflow as tf

from keras_vit.preprocessing import LUMA

JPEG = {"channels": 3, "dct_method": "INTEGER_ACCURATE"}
JPEG_MARGIN = 2  # pixels left and right of a window whose colours reach into it


def decode(encoded):
    """An encoded image (JPEG, PNG, BMP, GIF's first frame, WebP) as uint8 (height, width, 3).

    JPEG is decoded with the accurate transform, which gives Pillow's pixels; TensorFlow's default, with
    which the official models were trained, gives others by up to a few of 255.
    """
    image = tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: tf.io.decode_jpeg(encoded, **JPEG),
        lambda: tf.io.decode_image(encoded, channels=3, expand_animations=False),
    )
    return tf.ensure_shape(image, (None, None, 3))


def decode_window(encoded, window):
    """A rectangle of an encoded image: the same pixels as of `decode`, at less cost where it is a JPEG.

    A JPEG is decoded inside the rectangle only. Its colours are stored at half the width and
    interpolated, so a few columns more are decoded and dropped.

    Args:
        encoded: As `decode` takes it.
        window: Makes (top, left, height, width) in pixels, int32 (4,), of the image's (height, width).

    Returns:
        uint8 (height, width, 3).

    Example:
        >>> png = tf.io.encode_png(tf.zeros((8, 9, 3), tf.uint8))
        >>> decode_window(png, lambda shape: tf.concat([[1, 2], shape - 3], 0)).shape
        TensorShape([5, 6, 3])
    """

    def of_jpeg():
        shape = tf.io.extract_jpeg_shape(encoded)[:2]
        top, left, height, width = tf.unstack(window(shape))
        start = tf.maximum(left - JPEG_MARGIN, 0)
        stop = tf.minimum(left + width + JPEG_MARGIN, shape[1])
        wider = tf.io.decode_and_crop_jpeg(encoded, tf.stack([top, start, height, stop - start]), **JPEG)
        return wider[:, left - start : left - start + width]

    def of_others():
        image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
        top, left, height, width = tf.unstack(window(tf.shape(image)[:2]))
        return image[top : top + height, left : left + width]

    return tf.ensure_shape(tf.cond(tf.io.is_jpeg(encoded), of_jpeg, of_others), (None, None, 3))


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
    return normalise(resized(image, preprocessing), preprocessing)


def normalise(pixels, preprocessing):
    """`Preprocessing.normalise` in a graph, element by element: numbers per channel cost ten times more."""
    shift, scale = (
        np.float32(values) * np.float32(255) for values in (preprocessing.mean, preprocessing.std)
    )
    if pixels.shape.is_fully_defined():
        shift, scale = (np.broadcast_to(values, pixels.shape) for values in (shift, scale))
    return (pixels - shift) / scale


def resized(image, preprocessing):
    """A decoded image as `Preprocessing.resized` makes it: float32 in [0, 255], at the model's size."""
    if preprocessing.image_size is None:
        return tf.cast(image, tf.float32)
    size, height, width = preprocessing.image_size, *preprocessing.image_size
    if preprocessing.resize == "squash":
        pixels = resize(image, size, preprocessing)
    else:
        enlarged, top, left = preprocessing.crop_window(*tf.unstack(tf.shape(image)[:2]))
        pixels = resize(image, enlarged, preprocessing)[top : top + height, left : left + width]
    return tf.ensure_shape(pixels, (height, width, preprocessing.channels))


def resize(pixels, size, preprocessing):
    """An image, uint8 or float32 in [0, 255], as float32 in [0, 255] of another size."""
    method = preprocessing.interpolation
    resized = tf.image.resize(pixels, size, method=method, antialias=preprocessing.antialias)
    resized = tf.cast(resized, tf.float32)
    return tf.clip_by_value(resized, 0, 255) if method == "bicubic" else resized  # cubics overshoot
