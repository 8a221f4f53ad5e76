"""Encoded images to the pixels that are stored, in TensorFlow graphs: as Pillow decodes them, or refused.

TensorFlow takes any size that a header declares, places a GIF's first frame by the largest one, reads all of
them for it, and takes the palette indices of a BMP for grey values.
"""

import numpy as np
import tensorflow as tf

from keras_vit import preprocessing

JPEG = {"channels": 3, "dct_method": "INTEGER_ACCURATE"}
PNG = b"\x89PNG"
HEAD = 66  # bytes of a file that tell the size of a BMP, GIF or WebP, and a BMP's form
# By format: where its name stands, and for height and width the first of four bytes, the lowest of their bits
# and how many, and what to add.
SIZES = (
    ((0, b"GIF8"), (8, 0, 16, 0), (6, 0, 16, 0)),
    ((0, b"BM"), (22, 0, 32, 0), (18, 0, 32, 0)),
    ((12, b"VP8X"), (27, 0, 24, 1), (24, 0, 24, 1)),
    ((12, b"VP8L"), (22, 6, 14, 1), (21, 0, 14, 1)),
    ((12, b"VP8 "), (28, 0, 14, 0), (26, 0, 14, 0)),
)
MAX_BLOCKS = 10_000  # runs of full blocks, and blocks, in which a GIF's first frame may be stored


def decode_stored(encoded):
    """An encoded image (JPEG, PNG, BMP, GIF's first frame, WebP) as it is stored: uint8 (height, width, 3).

    What a GIF's first frame leaves open is black.

    Args:
        encoded: The content of the file, a string tensor ().

    Raises:
        tf.errors.InvalidArgumentError: for another format, a damaged file, an image of more than
            `keras_vit.preprocessing.MAX_PIXELS`, and a BMP with fewer colours or compressed.

    Example:
        >>> decode_stored(tf.io.encode_png(tf.zeros((8, 9, 3), tf.uint8))).shape
        TensorShape([8, 9, 3])
    """

    def of_jpeg():
        with tf.control_dependencies([assert_bounded(_jpeg_size(encoded))]):
            return tf.io.decode_jpeg(encoded, **JPEG)

    def of_png():
        with tf.control_dependencies([assert_bounded(_png_size(encoded))]):
            return tf.io.decode_png(encoded, channels=3)

    # Each tf.data iterator optimizes the graph of its function, which is short without the rare formats.
    of_others = tf.function(_of_others, autograph=False, experimental_attributes={"_noinline": True})
    return tf.cond(
        tf.io.is_jpeg(encoded),
        of_jpeg,
        lambda: tf.cond(tf.strings.substr(encoded, 0, 4) == PNG, of_png, lambda: of_others(encoded)),
    )


def is_bounded(encoded):
    """Whether an image has no more than `MAX_PIXELS` and `MAX_BYTES` of `keras_vit.preprocessing`: a bool ().

    Raises:
        tf.errors.InvalidArgumentError: for a damaged JPEG or PNG.

    Example:
        >>> bool(is_bounded(tf.io.encode_png(tf.zeros((8, 9, 3), tf.uint8))))
        True
    """
    size = tf.case(
        [
            (tf.io.is_jpeg(encoded), lambda: _jpeg_size(encoded)),
            (tf.strings.substr(encoded, 0, 4) == PNG, lambda: _png_size(encoded)),
        ],
        default=lambda: _size_of_others(encoded),
    )
    return _is_bounded(size) & (tf.strings.length(encoded) <= preprocessing.MAX_BYTES)


def assert_bounded(size):
    """An operation that fails for an image of a (height, width) that is too large to be decoded."""
    message = f"an image has more than {preprocessing.MAX_PIXELS} pixels: (height, width) is"
    return tf.raw_ops.Assert(condition=_is_bounded(size), data=[message, size])


def _is_bounded(size):
    return tf.reduce_prod(tf.cast(size, tf.int64)) <= preprocessing.MAX_PIXELS


def _jpeg_size(encoded):
    """(height, width) as the header declares them."""
    return tf.io.extract_jpeg_shape(encoded, tf.int64)[:2]


def _png_size(encoded):
    size = tf.io.decode_raw(tf.strings.substr(encoded, 16, 8), tf.int32, little_endian=False)
    return tf.cast(size[::-1], tf.int64)


def _of_others(encoded):
    with tf.control_dependencies([assert_bounded(_size_of_others(encoded))]):
        return tf.case(
            [
                (tf.strings.substr(encoded, 0, 4) == b"GIF8", lambda: _of_gif(encoded)),
                (tf.strings.substr(encoded, 0, 2) == b"BM", lambda: _of_bmp(encoded)),
                (tf.strings.substr(encoded, 0, 4) == b"RIFF", lambda: _of_webp(encoded)),
            ],
            default=lambda: tf.io.decode_image(encoded, channels=3, expand_animations=False),
        )


def _head(encoded):
    """The first bytes of a file, filled with zeros."""
    return tf.strings.substr(tf.strings.join([encoded, bytes(HEAD)]), 0, HEAD)


def _size_of_others(encoded):
    """(height, width) of a BMP, GIF (of its screen) or WebP as the header declares them; of others, 0."""
    head = _head(encoded)
    names, *sides = zip(*SIZES)
    places, names = zip(*names)
    is_it = tf.strings.substr(head, places, [len(name) for name in names]) == names
    place, shift, bits, more = np.moveaxis(np.array(sides), -1, 0)  # each (2, formats)
    values = tf.cast(tf.io.decode_raw(head, tf.uint8), tf.int64)
    values = tf.tensordot(tf.gather(values, place[..., np.newaxis] + np.arange(4)), 256 ** np.arange(4), 1)
    values = values // 2**shift % 2**bits + more
    values = tf.minimum(values, 2**32 - values)  # a BMP's may be negative
    return tf.reduce_sum(tf.where(is_it, values, 0), axis=1)


def _of_webp(encoded):
    """A WebP without its alpha channel, with which TensorFlow does not decode it as RGB."""
    head = _head(encoded)
    form = tf.strings.substr(head, 12, 4)
    flags = tf.io.decode_raw(tf.strings.substr(head, 20, 5), tf.uint8)
    is_extended, is_lossless = form == b"VP8X", form == b"VP8L"
    is_animated = is_extended & (flags[0] & 2 > 0)
    has_alpha = (is_extended & (flags[0] & 16 > 0)) | (is_lossless & (flags[4] & 16 > 0))

    def decoded(channels):
        return tf.io.decode_image(encoded, channels=channels, expand_animations=False)[..., :3]

    # TensorFlow decodes those with an alpha channel, Pillow's way to put the frames together is another.
    with tf.control_dependencies([tf.debugging.Assert(~is_animated, ["a WebP must not be animated"])]):
        return tf.cond(has_alpha, lambda: decoded(4), lambda: decoded(3))


def _of_bmp(encoded):
    """A BMP, the colours of whose palette are looked up."""
    head = _head(encoded)
    numbers = tf.io.decode_raw(tf.strings.substr(head, 10, 24), tf.int32)
    offset, header, _, _, bits, compression = tf.unstack(numbers, 6)
    bits = bits // 2**16
    plain = (compression == 0) & ((bits == 8) | (bits == 24) | (bits == 32))
    masked = (compression == preprocessing.BMP_MASKED) & (bits == 32)
    masked &= tf.strings.substr(head, 54, 12) == preprocessing.BMP_MASKS
    is_read = (header >= 40) & (plain | masked)
    with tf.control_dependencies([tf.debugging.Assert(is_read, [preprocessing.BMP_WANTED])]):
        image = tf.io.decode_image(encoded, channels=3, expand_animations=False)

    def looked_up():
        colours = tf.strings.substr(encoded, 14 + header, (offset - 14 - header) // 4 * 4)
        colours = tf.reshape(tf.io.decode_raw(colours, tf.uint8), (-1, 4))[:, 2::-1]  # blue, green, red, 0
        return tf.gather(colours, tf.cast(image[..., 0], tf.int32))

    return tf.cond(bits == 8, looked_up, lambda: image)


def _of_gif(encoded):
    """A GIF's first frame, decoded alone and put where it lies on the canvas."""
    values = tf.cast(tf.io.decode_raw(tf.strings.join([encoded, bytes(HEAD)]), tf.uint8), tf.int32)
    length = tf.strings.length(encoded)

    def pair(place):  # (top, left) or (height, width)
        return tf.tensordot(tf.reshape(values[place : place + 4], (2, 2)), [1, 256], 1)[::-1]

    def table(flags):  # the bytes of the colours that follow
        return tf.where(flags >= 128, 3 * 2 ** (flags % 8 + 1), 0)

    def at(place):
        return values[tf.minimum(place, length)]

    def skip(place):  # a chain of blocks, each with its length in front, up to one of length 0
        def step(place):  # past all full blocks at once, and the one after them
            full = tf.argmin(tf.concat([values[place::256] == 255, [False]], 0), output_type=tf.int32)
            place += 256 * full
            return place + tf.where(at(place) > 0, 1 + at(place), 0)

        return 1 + _repeated(step, lambda place: (place < length) & (at(place) > 0), place)

    start = 13 + table(values[10])
    is_extension = lambda place: (place < length) & (at(place) == 0x21)  # noqa: E731
    start = tf.minimum(_repeated(lambda place: skip(place + 2), is_extension, start), length)
    end = skip(start + 11 + table(values[start + 9]))
    corner, size, screen = (pair(place) for place in (start + 1, start + 5, 6))
    canvas = tf.maximum(screen, corner + size)
    with tf.control_dependencies([assert_bounded(canvas)]):
        alone = [(0, start + 1), (start + 5, end - start - 5)]
        before, after = (tf.strings.substr(encoded, *part) for part in alone)
        frame = tf.strings.join([before, bytes(4), after, b";"])  # at the left top corner
        image = tf.io.decode_image(frame, channels=3, expand_animations=False)
    around = tf.stack([corner, canvas - corner - size], axis=1)
    return tf.pad(image, tf.concat([around, [[0, 0]]], 0))


def _repeated(step, goes_on, start):
    (end,) = tf.while_loop(goes_on, lambda x: (step(x),), (start,), maximum_iterations=MAX_BLOCKS)
    return end
