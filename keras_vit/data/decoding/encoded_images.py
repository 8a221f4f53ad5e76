"""Encoded images to their stored pixels in TensorFlow graphs: as Pillow decodes them, or refused.

TensorFlow alone accepts any size that a header declares, decodes all frames of a GIF and positions the first
by the largest one, and takes the palette indices of a BMP for gray values.
"""

import numpy as np
import tensorflow as tf

from keras_vit.preprocessing import bounds
from keras_vit.preprocessing.image_files import BMP_FORMS, BMP_MASKED, BMP_REQUIREMENT, BMP_SIZES

JPEG = {"channels": 3, "dct_method": "INTEGER_ACCURATE"}
PNG = b"\x89PNG"
HEADER_BYTES = 66  # contain the size of a BMP, GIF or WebP, and the masks of a BMP
# By format: the offset and bytes of its name; and for height and width the offset of four bytes, the lowest
# bit and the number of bits of the field in them, and what to add.
SIZES = (
    ((0, b"GIF8"), (8, 0, 16, 0), (6, 0, 16, 0)),
    ((0, b"BM"), (22, 0, 32, 0), (18, 0, 32, 0)),
    ((12, b"VP8X"), (27, 0, 24, 1), (24, 0, 24, 1)),
    ((12, b"VP8L"), (22, 6, 14, 1), (21, 0, 14, 1)),
    ((12, b"VP8 "), (28, 0, 14, 0), (26, 0, 14, 0)),
)
MAX_BLOCKS = 10_000  # of extensions, and of data, before the end of a GIF's first frame


def decode_stored(encoded):
    """An encoded image (JPEG, PNG, BMP, GIF's first frame, WebP) as it is stored: uint8 (height, width, 3).

    Pixels that a GIF's first frame does not cover are black.

    Args:
        encoded: The content of the file, a string tensor ().

    Raises:
        tf.errors.InvalidArgumentError: for another format, a damaged file, an image of more than
            `keras_vit.preprocessing.MAX_PIXELS`, and a BMP with fewer colors or compressed.

    Example:
        >>> decode_stored(tf.io.encode_png(tf.zeros((8, 9, 3), tf.uint8))).shape
        TensorShape([8, 9, 3])
    """
    return _decode_stored(tf.convert_to_tensor(encoded))


# Every pipeline calls the same functions, which are traced once.
@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def _decode_stored(encoded):
    with tf.control_dependencies([assert_bounded(_size(encoded))]):
        return _by_format(
            encoded,
            lambda: tf.io.decode_jpeg(encoded, **JPEG),
            lambda: tf.io.decode_png(encoded, channels=3),
            lambda: _decode_others(encoded),
        )


def is_bounded(encoded):
    """Whether an image has at most `MAX_PIXELS` and `MAX_BYTES` of `keras_vit.preprocessing`: a bool ().

    Raises:
        tf.errors.InvalidArgumentError: for a damaged JPEG or PNG.

    Example:
        >>> bool(is_bounded(tf.io.encode_png(tf.zeros((8, 9, 3), tf.uint8))))
        True
    """
    return _has_bounded_pixels(_size(encoded)) & (tf.strings.length(encoded) <= bounds.MAX_BYTES)


def assert_bounded(size):
    """An operation that fails for an image whose (height, width) is too large to be decoded."""
    message = f"an image has more than {bounds.MAX_PIXELS} pixels: (height, width) is"
    return tf.raw_ops.Assert(condition=_has_bounded_pixels(size), data=[message, size])


def _by_format(encoded, of_jpeg, of_png, of_others):
    is_png = _starts_with(encoded, PNG)
    return tf.cond(tf.io.is_jpeg(encoded), of_jpeg, lambda: tf.cond(is_png, of_png, of_others))


def _has_bounded_pixels(size):
    return tf.reduce_prod(tf.cast(size, tf.int64)) <= bounds.MAX_PIXELS


def _starts_with(encoded, name):
    return tf.strings.substr(encoded, 0, len(name)) == name


def _size(encoded):
    """(height, width), int64, as the header declares them."""
    return _by_format(
        encoded,
        lambda: tf.io.extract_jpeg_shape(encoded, tf.int64)[:2],
        lambda: _png_size(encoded),
        lambda: _size_of_others(encoded),
    )


def _png_size(encoded):
    size = tf.io.decode_raw(tf.strings.substr(encoded, 16, 8), tf.int32, little_endian=False)
    return tf.cast(size[::-1], tf.int64)


# Each tf.data iterator optimizes the graph of its function, which is small without the rare formats.
@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def _size_of_others(encoded):
    """(height, width) of a BMP, GIF (of its screen) or WebP as the header declares them; of others, 0."""
    header = _header(encoded)
    names, *sides = zip(*SIZES)
    places, names = zip(*names)
    matches = tf.strings.substr(header, places, [len(name) for name in names]) == names
    start, shift, bits, more = np.moveaxis(np.array(sides), -1, 0)  # each (2, formats)
    values = tf.cast(tf.io.decode_raw(header, tf.uint8), tf.int64)
    values = tf.tensordot(tf.gather(values, start[..., np.newaxis] + np.arange(4)), 256 ** np.arange(4), 1)
    values = values // 2**shift % 2**bits + more
    values = tf.minimum(values, 2**32 - values)  # A BMP's may be negative.
    return tf.reduce_sum(tf.where(matches, values, 0), axis=1)


def _header(encoded):
    """The first bytes of a file, padded with zeros."""
    return tf.strings.substr(tf.strings.join([encoded, bytes(HEADER_BYTES)]), 0, HEADER_BYTES)


@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def _decode_others(encoded):
    return tf.case(
        [
            (_starts_with(encoded, b"GIF8"), lambda: _decode_gif(encoded)),
            (_starts_with(encoded, b"BM"), lambda: _decode_bmp(encoded)),
            (_starts_with(encoded, b"RIFF"), lambda: _decode_webp(encoded)),
        ],
        default=lambda: _decode_image(encoded),
    )


def _decode_image(encoded, channels=3):
    return tf.io.decode_image(encoded, channels=channels, expand_animations=False)


def _decode_webp(encoded):
    """A WebP without its alpha channel; TensorFlow does not decode one that has it as RGB."""
    header = _header(encoded)
    form = tf.strings.substr(header, 12, 4)
    flags = tf.io.decode_raw(tf.strings.substr(header, 20, 5), tf.uint8)
    is_extended, is_lossless = form == b"VP8X", form == b"VP8L"
    is_animated = is_extended & (flags[0] & 2 > 0)
    has_alpha = (is_extended & (flags[0] & 16 > 0)) | (is_lossless & (flags[4] & 16 > 0))
    # TensorFlow decodes animations with an alpha channel, and composes the frames unlike Pillow.
    with tf.control_dependencies([tf.debugging.Assert(~is_animated, ["a WebP must not be animated"])]):
        return tf.cond(has_alpha, lambda: _decode_image(encoded, 4), lambda: _decode_image(encoded))[..., :3]


def _decode_bmp(encoded):
    """A BMP, with the colors of its palette."""
    header = _header(encoded)
    form, masks = tf.strings.substr(header, 28, 6), tf.strings.substr(header, 54, 12)
    has_size = tf.reduce_any(tf.strings.substr(header, 14, 4) == BMP_SIZES)
    has_form = tf.reduce_any(form == BMP_FORMS) | (form + masks == BMP_MASKED)
    with tf.control_dependencies([tf.debugging.Assert(has_size & has_form, [BMP_REQUIREMENT])]):
        image = _decode_image(encoded)

    def with_palette():
        offset, size = tf.unstack(tf.io.decode_raw(tf.strings.substr(header, 10, 8), tf.int32), 2)
        colors = tf.strings.substr(encoded, 14 + size, (offset - 14 - size) // 4 * 4)
        colors = tf.reshape(tf.io.decode_raw(colors, tf.uint8), (-1, 4))[:, 2::-1]  # blue, green, red, 0
        return tf.gather(colors, tf.cast(image[..., 0], tf.int32))

    return tf.cond(form == BMP_FORMS[0], with_palette, lambda: image)


def _decode_gif(encoded):
    """A GIF's first frame, decoded alone and put at its position on the canvas."""
    values = tf.cast(tf.io.decode_raw(tf.strings.join([encoded, bytes(HEADER_BYTES)]), tf.uint8), tf.int32)
    length = tf.strings.length(encoded)

    def pair(place):  # (top, left) or (height, width)
        return tf.tensordot(tf.reshape(values[place : place + 4], (2, 2)), [1, 256], 1)[::-1]

    def palette_bytes(flags):
        return tf.where(flags >= 128, 3 * 2 ** (flags % 8 + 1), 0)

    def at(place):
        return values[tf.minimum(place, length)]

    def skip_blocks(place):  # each with its length first; the last has length 0
        def step(place):  # past all full blocks at once, and the one after them
            full = tf.argmin(tf.concat([values[place::256] == 255, [False]], 0), output_type=tf.int32)
            place += 256 * full
            return place + tf.where(at(place) > 0, 1 + at(place), 0)

        return 1 + _repeat(step, lambda place: (place < length) & (at(place) > 0), place)

    start = 13 + palette_bytes(values[10])
    is_extension = lambda place: (place < length) & (at(place) == 0x21)  # noqa: E731
    start = tf.minimum(_repeat(lambda place: skip_blocks(place + 2), is_extension, start), length)
    end = skip_blocks(start + 11 + palette_bytes(values[start + 9]))
    corner, size, screen = (pair(place) for place in (start + 1, start + 5, 6))
    canvas = tf.maximum(screen, corner + size)
    with tf.control_dependencies([assert_bounded(canvas)]):
        before = tf.strings.substr(encoded, 0, start + 1)
        after = tf.strings.substr(encoded, start + 5, end - start - 5)
        frame = tf.strings.join([before, bytes(4), after, b";"])  # at the top left corner
        image = _decode_image(frame)
    around = tf.stack([corner, canvas - corner - size], axis=1)
    return tf.pad(image, tf.concat([around, [[0, 0]]], 0))


def _repeat(step, condition, start):
    (end,) = tf.while_loop(condition, lambda x: (step(x),), (start,), maximum_iterations=MAX_BLOCKS)
    return end
