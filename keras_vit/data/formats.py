"""Encoded images to the pixels that are stored, in TensorFlow graphs: as Pillow decodes them, or refused.

TensorFlow takes any size that a header declares, places a GIF's first frame by the largest one, reads all of
them for it, and takes the palette indices of a BMP for grey values.
"""

import tensorflow as tf

from keras_vit import preprocessing

JPEG = {"channels": 3, "dct_method": "INTEGER_ACCURATE"}
PNG = b"\x89PNG"
VP8L = (
    21,
    4,
)  # where, and in how many bytes, a lossless WebP tells its size and whether it has an alpha channel
HEAD = 70  # bytes of a file that tell the size of a BMP or WebP, and a BMP's form
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
        with tf.control_dependencies([assert_bounded(tf.io.extract_jpeg_shape(encoded)[:2])]):
            return tf.io.decode_jpeg(encoded, **JPEG)

    def of_png():
        with tf.control_dependencies([assert_bounded(_png_size(encoded))]):
            return tf.io.decode_png(encoded, channels=3)

    return tf.cond(
        tf.io.is_jpeg(encoded),
        of_jpeg,
        lambda: tf.cond(tf.strings.substr(encoded, 0, 4) == PNG, of_png, lambda: _of_others(encoded)),
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
            (tf.io.is_jpeg(encoded), lambda: tf.io.extract_jpeg_shape(encoded)[:2]),
            (tf.strings.substr(encoded, 0, 4) == PNG, lambda: _png_size(encoded)),
        ],
        default=lambda: _size_of_others(_head(encoded)),
    )
    return _is_bounded(size) & (tf.strings.length(encoded) <= preprocessing.MAX_BYTES)


def assert_bounded(size):
    """An operation that fails for an image of a (height, width) that is too large to be decoded."""
    message = f"an image has more than {preprocessing.MAX_PIXELS} pixels: (height, width) is"
    return tf.raw_ops.Assert(condition=_is_bounded(size), data=[message, size])


def _is_bounded(size):
    return tf.reduce_prod(tf.cast(size, tf.int64)) <= preprocessing.MAX_PIXELS


def _png_size(encoded):
    """(height, width) as the header declares them."""
    return tf.io.decode_raw(tf.strings.substr(encoded, 16, 8), tf.int32, little_endian=False)[::-1]


def _of_others(encoded):
    head = _head(encoded)
    with tf.control_dependencies([assert_bounded(_size_of_others(head))]):
        return tf.case(
            [
                (_starts(head, b"GIF8"), lambda: _of_gif(encoded)),
                (_starts(head, b"BM"), lambda: _of_bmp(encoded, head)),
                (_starts(head, b"RIFF"), lambda: _of_webp(encoded, head)),
            ],
            default=lambda: tf.io.decode_image(encoded, channels=3, expand_animations=False),
        )


def _head(encoded):
    """The first bytes of a file, filled with zeros: int32 (HEAD,)."""
    start = tf.strings.substr(encoded, 0, HEAD)
    return tf.cast(tf.io.decode_raw(start, tf.uint8, fixed_length=HEAD), tf.int32)


def _size_of_others(head):
    """(height, width) of a BMP, GIF (of its canvas) or WebP; of others, 0."""
    packed = _number(head, *VP8L)
    sizes = (
        (_starts(head, b"GIF8"), (_number(head, 8, 2), _number(head, 6, 2))),
        (_starts(head, b"BM"), (tf.abs(_number(head, 22, 4)), tf.abs(_number(head, 18, 4)))),
        (_starts(head[12:], b"VP8X"), (_number(head, 27, 3) + 1, _number(head, 24, 3) + 1)),
        (_starts(head[12:], b"VP8L"), (packed // 2**14 % 2**14 + 1, packed % 2**14 + 1)),
        (_starts(head[12:], b"VP8 "), (_number(head, 28, 2) % 2**14, _number(head, 26, 2) % 2**14)),
    )
    return tf.add_n([tf.where(is_it, tf.stack(size), 0) for is_it, size in sizes])


def _of_webp(encoded, head):
    """A WebP without its alpha channel, with which TensorFlow does not decode it as RGB."""
    is_extended = _starts(head[12:], b"VP8X")
    is_lossless = _starts(head[12:], b"VP8L")
    is_animated = is_extended & (head[20] // 2 % 2 == 1)
    has_alpha = is_extended & (head[20] // 16 % 2 == 1)
    has_alpha |= is_lossless & (_number(head, *VP8L) // 2**28 % 2 == 1)

    def decoded(channels):
        return tf.io.decode_image(encoded, channels=channels, expand_animations=False)[..., :3]

    # TensorFlow decodes those with an alpha channel, Pillow's way to put the frames together is another.
    with tf.control_dependencies([tf.debugging.Assert(~is_animated, ["a WebP must not be animated"])]):
        return tf.cond(has_alpha, lambda: decoded(4), lambda: decoded(3))


def _of_bmp(encoded, head):
    """A BMP, the colours of whose palette are looked up."""
    offset, header, bits = _number(head, 10, 4), _number(head, 14, 4), _number(head, 28, 2)
    compression = _number(head, 30, 4)
    plain = (compression == 0) & ((bits == 8) | (bits == 24) | (bits == 32))
    masked = (compression == preprocessing.BMP_MASKED) & (bits == 32)
    masked &= _starts(head[54:], preprocessing.BMP_MASKS)
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
    size = tf.strings.length(encoded)

    def table(flags):  # the bytes of the colours that follow
        return tf.where(flags >= 128, 3 * 2 ** (flags % 8 + 1), 0)

    def at(place):
        return values[tf.minimum(place, size)]

    def skip(place):  # a chain of blocks, each with its length in front, up to one of length 0
        def step(place):  # past all full blocks at once, and the one after them
            full = tf.argmin(tf.concat([values[place::256] == 255, [False]], 0), output_type=tf.int32)
            place += 256 * full
            return place + tf.where(at(place) > 0, 1 + at(place), 0)

        return 1 + _repeated(step, lambda place: (place < size) & (at(place) > 0), place)

    start = 13 + table(values[10])
    is_extension = lambda place: (place < size) & (at(place) == 0x21)  # noqa: E731
    start = tf.minimum(_repeated(lambda place: skip(place + 2), is_extension, start), size)
    left, top, width, height = (_number(values, start + 1 + 2 * i, 2) for i in range(4))
    end = skip(start + 11 + table(values[start + 9]))
    canvas_width = tf.maximum(_number(values, 6, 2), left + width)
    canvas_height = tf.maximum(_number(values, 8, 2), top + height)
    with tf.control_dependencies([assert_bounded(tf.stack([canvas_height, canvas_width]))]):
        alone = [(0, start + 1), (start + 5, end - start - 5)]
        before, after = (tf.strings.substr(encoded, *part) for part in alone)
        frame = tf.strings.join([before, bytes(4), after, b";"])  # at the left top corner
        image = tf.io.decode_image(frame, channels=3, expand_animations=False)
    return tf.pad(
        image,
        [[top, canvas_height - top - height], [left, canvas_width - left - width], [0, 0]],
    )


def _repeated(step, goes_on, start):
    (end,) = tf.while_loop(goes_on, lambda x: (step(x),), (start,), maximum_iterations=MAX_BLOCKS)
    return end


def _number(values, place, count):
    """The unsigned number, lowest byte first, in `count` bytes (the highest of four has a sign)."""
    return tf.reduce_sum(values[place : place + count] * tf.constant([1 << 8 * i for i in range(count)]))


def _starts(values, wanted):
    return tf.reduce_all(values[: len(wanted)] == tf.constant([*wanted]))
