"""Encoded images to model input as TensorFlow graphs, pixel for pixel as `Preprocessing` does it."""

import io
import os

import numpy as np
import tensorflow as tf
from PIL import Image

from keras_vit.data.exif import orientation, stored_window, upright, upright_shape
from keras_vit.data.formats import JPEG, assert_bounded, decode_stored
from keras_vit.preprocessing import LUMA, check_image_file, read_image

JPEG_MARGIN = 2  # pixels left and right of a window whose colours reach into it
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # first bytes of files that TensorFlow does not decode


def read(path):
    """The content of an image file, a string tensor () as `decode` takes it; TIFF becomes BMP by Pillow.

    Example:
        >>> Image.new("RGB", (5, 4)).save("image.tif")
        >>> decode(read("image.tif")).shape
        TensorShape([4, 5, 3])
    """
    path = tf.convert_to_tensor(path)
    content = tf.io.read_file(path)

    def of_tiff():
        bmp = tf.numpy_function(_as_bmp, [path], tf.string, stateful=False)
        return tf.ensure_shape(bmp, ())

    is_tiff = tf.reduce_any(tf.strings.substr(content, 0, 4) == tf.constant(TIFF))
    return tf.cond(is_tiff, of_tiff, lambda: content)


def _as_bmp(path):
    path = os.fsdecode(np.asarray(path, object).item())  # bytes, which are an array () outside of a graph
    file = io.BytesIO()
    Image.fromarray(read_image(path)).save(file, "BMP")
    return file.getvalue()


def decode(encoded, exif=True):
    """An encoded image (JPEG, PNG, BMP, GIF's first frame, WebP) as uint8 (height, width, 3).

    JPEG is decoded with the accurate transform, which gives Pillow's pixels; TensorFlow's default, with
    which the official models were trained, gives others by up to a few of 255.

    Args:
        encoded: The content of the file, a string tensor ().
        exif: Whether to apply the EXIF orientation; `vit_jax` and big_vision do not.
    """
    image = decode_stored(encoded)
    if exif:
        with tf.control_dependencies([image]):  # an error would cancel the search, and be reported as that
            turn = orientation(encoded)
        image = upright(image, turn)
    return tf.ensure_shape(image, (None, None, 3))


def decode_window(encoded, window, exif=True):
    """A rectangle of an encoded image: the same pixels as of `decode`, at less cost where it is a JPEG.

    A JPEG is decoded inside the rectangle only. Its colours are stored at half the width and
    interpolated, so a few columns more are decoded and dropped.

    Args:
        encoded, exif: As `decode` takes them.
        window: Makes (top, left, height, width) in pixels, int32 (4,), of the image's (height, width).

    Returns:
        uint8 (height, width, 3).

    Example:
        >>> png = tf.io.encode_png(tf.zeros((8, 9, 3), tf.uint8))
        >>> decode_window(png, lambda shape: tf.concat([[1, 2], shape - 3], 0)).shape
        TensorShape([5, 6, 3])
    """
    if not exif:
        return _decode_stored_window(encoded, window)
    turn = orientation(encoded)

    def stored(shape):
        shape = upright_shape(shape, turn)
        return stored_window(window(shape), shape, turn)

    return tf.ensure_shape(upright(_decode_stored_window(encoded, stored), turn), (None, None, 3))


def _decode_stored_window(encoded, window):
    """`decode_window` without the EXIF orientation."""

    def of_jpeg():
        shape = tf.io.extract_jpeg_shape(encoded)[:2]
        top, left, height, width = tf.unstack(window(shape))
        start = tf.maximum(left - JPEG_MARGIN, 0)
        stop = tf.minimum(left + width + JPEG_MARGIN, shape[1])
        with tf.control_dependencies([assert_bounded(shape)]):
            wider = tf.io.decode_and_crop_jpeg(encoded, tf.stack([top, start, height, stop - start]), **JPEG)
        return wider[:, left - start : left - start + width]

    def of_others():
        image = decode_stored(encoded)
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


def file_orientation(path):
    """The EXIF orientation of an image file, an int; None if it cannot be read and decoded.

    Example:
        >>> file_orientation("nowhere.png") is None
        True
    """
    try:
        check_image_file(path)  # a pipe or a device would never end
        return int(_decoded_orientation(path))
    except (OSError, ValueError, tf.errors.OpError):
        return None


@tf.function(input_signature=[tf.TensorSpec((), tf.string)], autograph=False)
def _decoded_orientation(path):
    encoded = read(path)
    with tf.control_dependencies([decode(encoded, exif=False)]):
        return orientation(encoded)


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
        pixels = preprocessing.cropped(image, lambda size: resize(image, size, preprocessing))
    return tf.ensure_shape(pixels, (height, width, preprocessing.channels))


def resize(pixels, size, preprocessing):
    """An image, uint8 or float32 in [0, 255], as float32 in [0, 255] of another size."""
    method, size = preprocessing.interpolation, tf.cast(tf.stack(size), tf.int32)
    resized = tf.image.resize(pixels, size, method=method, antialias=preprocessing.antialias)
    resized = tf.cast(resized, tf.float32)
    return tf.clip_by_value(resized, 0, 255) if method == "bicubic" else resized  # cubics overshoot
