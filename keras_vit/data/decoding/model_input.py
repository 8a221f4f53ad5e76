"""Encoded images to model input in TensorFlow graphs, with the same pixels as `Preprocessing`."""

import contextlib
import os

import numpy as np
import tensorflow as tf

from keras_vit.data.decoding.encoded_images import JPEG, assert_bounded, decode_stored
from keras_vit.data.decoding.exif import orientation, stored_window, upright, upright_shape
from keras_vit.data.image_headers import shown
from keras_vit.preprocessing import read_image
from keras_vit.preprocessing.image_files import BOX, TIFF, check_file, image_bytes, needs_pillow
from keras_vit.preprocessing.inputs import LUMA

JPEG_MARGIN = 2  # columns left and right of a window from which its chroma is interpolated


def read(path):
    """The content of an image file, a string tensor () for `decode`; TIFF, AVIF and HEIC become BMP.

    Example:
        >>> from PIL import Image
        >>> Image.new("RGB", (5, 4)).save("image.tif")
        >>> decode(read("image.tif")).shape
        TensorShape([4, 5, 3])
    """
    content = tf.io.read_file(tf.convert_to_tensor(path))

    def converted():
        return tf.ensure_shape(tf.numpy_function(_as_bmp, [path], tf.string, stateful=False), ())

    is_tiff = tf.reduce_any(tf.strings.substr(content, 0, 4) == TIFF)
    has_box = tf.strings.substr(tf.strings.join([content, bytes(8)]), 4, 4) == BOX
    return tf.cond(is_tiff | has_box, converted, lambda: content)


def _as_bmp(path):
    path = os.fsdecode(np.asarray(path, object).item())  # Outside of a graph the bytes are an array ().
    return image_bytes(read_image(path), "BMP")


def decodable(content):
    """An encoded image (bytes) for `decode`, into which Pillow converts TIFF, AVIF and HEIC.

    What cannot be read stays as it is, so that decoding refuses it.

    Example:
        >>> decodable(image_bytes(np.zeros((4, 5, 3), "uint8"), "TIFF"))[:2]
        b'BM'
    """
    if needs_pillow(content):
        with contextlib.suppress(ValueError):
            return image_bytes(read_image(content), "BMP")
    return content


def decode(encoded, exif=True):
    """An encoded image (JPEG, PNG, BMP, GIF's first frame, WebP) as uint8 (height, width, 3).

    JPEG is decoded with the accurate DCT, as by Pillow. TensorFlow's default, with which the official
    models were trained, differs by up to a few of 255.

    Args:
        encoded: The content of the file, a string tensor ().
        exif: Whether to apply the EXIF orientation; `vit_jax` and big_vision do not.
    """
    image = decode_stored(encoded)
    if exif:
        with tf.control_dependencies([image]):  # Else an error here would cancel the search and be lost.
            turn = orientation(encoded)
        image = upright(image, turn)
    return tf.ensure_shape(image, (None, None, 3))


def decode_window(encoded, window, exif=True):
    """A rectangle of an encoded image: the pixels of `decode`, computed faster for a JPEG.

    A JPEG is decoded inside the rectangle only. Its chroma is stored at half the width and interpolated,
    so a few more columns are decoded and dropped.

    Args:
        encoded, exif: As for `decode`.
        window: A function from the image's (height, width) to (top, left, height, width), int32 (4,).

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
        return cut(decode_stored(encoded), window)

    return tf.ensure_shape(tf.cond(tf.io.is_jpeg(encoded), of_jpeg, of_others), (None, None, 3))


def cut(image, window):
    """A rectangle of a decoded image, or of a map; the window is as of `decode_window`."""
    top, left, height, width = tf.unstack(window(tf.shape(image)[:2]))
    return image[top : top + height, left : left + width]


def with_channels(image, channels):
    """A decoded image with the model's channels: 3, or 1 for gray."""
    if channels == 3:
        return image
    if channels == 1:
        return tf.tensordot(tf.cast(image, tf.float32), tf.constant(LUMA)[:, tf.newaxis], 1)
    raise ValueError(f"image files have 1 or 3 channels, but the model reads {channels}")


def decode_and_prepare(encoded, preprocessing, exif=True):
    """An encoded image as model input: float32 (height, width, channels)."""
    return prepared(decode(encoded, exif), preprocessing)


def prepared(image, preprocessing):
    """A decoded image, uint8 (height, width, 3), as model input.

    Args:
        preprocessing: `Preprocessing`, or a dict of them, one for each input of the model.

    Returns:
        float32 (height, width, channels), or a dict of these.
    """
    if isinstance(preprocessing, dict):
        return {name: prepared(image, one) for name, one in preprocessing.items()}
    return preprocessing.normalize(preprocessing.resized(with_channels(image, preprocessing.channels)))


def first_of(preprocessing):
    """The `Preprocessing`, or the first one of a dict, with whose input the labels move.

    >>> first_of({"images": keras_vit.Preprocessing(8), "others": keras_vit.Preprocessing(9)}).image_size
    (8, 8)
    """
    return next(iter(preprocessing.values())) if isinstance(preprocessing, dict) else preprocessing


def check_image(content):
    """Raise ValueError, with the reason, for an encoded image (bytes) that cannot be decoded.

    >>> check_image(b"no image")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: not a readable image: 8 bytes (expected JPEG, PNG, ...)
    """
    try:
        if not needs_pillow(content):
            _decoded_header_of(content)
            return
    except (tf.errors.OpError, UnicodeDecodeError):  # TensorFlow's message may hold bytes of the image.
        pass
    read_image(content)
    if not needs_pillow(content):
        raise ValueError("TensorFlow cannot decode it")


def file_header(path):
    """The `Header` of an image file; None if it cannot be read and decoded.

    Example:
        >>> file_header("nowhere.png") is None
        True
    """
    try:
        check_file(path)  # A pipe or a device would never end.
        turn, shape = _decoded_header(os.fsencode(path))
        return shown(int(turn), *shape[1::-1].numpy().tolist())
    except (OSError, ValueError, tf.errors.OpError):
        return None


@tf.function(input_signature=[tf.TensorSpec((), tf.string)], autograph=False)
def _decoded_header(path):
    return _decoded_header_of(read(path))


@tf.function(input_signature=[tf.TensorSpec((), tf.string)], autograph=False)
def _decoded_header_of(encoded):
    """The orientation and the shape of the decoded image, without which TensorFlow would not decode it."""
    return orientation(encoded), tf.shape(decode(encoded, exif=False))
