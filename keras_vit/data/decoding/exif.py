"""The EXIF orientation of encoded images, in TensorFlow graphs."""

import struct
import zlib

import numpy as np
import tensorflow as tf

from keras_vit.data.decoding.encoded_images import PNG
from keras_vit.preprocessing.image_files import (
    ORIENTATION,
    PREFIX,
    REVERSED,
    SHORT,
    TRANSPOSED,
    orientation_tags,
)

MAX_SEGMENTS = 10_000  # It bounds the time that a malicious file takes.
BIG, LITTLE = (1 << 24, 1 << 16, 1 << 8, 1), (1, 1 << 8, 1 << 16, 1 << 24)

# JPEG, PNG and WebP files are chains of segments, of which one holds the EXIF data. By container, a row of:
# the first byte of the file; where the first segment starts; of a segment, the offset of its content, the
# bytes that its length excludes, and the multiple to which it is padded.
CONTAINERS = np.array(
    [(-1, 2**31 - 1, 0, 0, 1), (0xFF, 2, 4, 2, 1), (0x89, 8, 8, 12, 1), (ord("R"), 12, 8, 8, 2)], "int32"
)
HEAD = 10  # first bytes of a segment, which have its length and type
LENGTH = np.zeros((4, HEAD), "int32")  # the weights with which the first bytes of a segment sum to its length
LENGTH[1, 2:4], LENGTH[2, :4], LENGTH[3, 4:8] = BIG[2:], BIG, LITTLE
IS_EXIF = np.full((4, HEAD), -1, "int32")  # the first bytes of the segment with EXIF data; -1 matches any
IS_EXIF[1, :2], IS_EXIF[1, 4:] = [*b"\xff\xe1"], [*PREFIX]
IS_EXIF[2, 4:8], IS_EXIF[3, :4] = [*b"eXIf"], [*b"EXIF"]
# The lowest and the highest first bytes of a JPEG whose only application segment is that of JFIF.
PLAIN = np.frombuffer(b"\xff\xd8\xff\xe0\0\x10" + bytes(14) + b"\xff\xc0", "uint8")
PLAIN_TO = np.frombuffer(b"\xff\xd8\xff\xe0\0\x10" + 14 * b"\xff" + b"\xff\xdf", "uint8")
LEAST = np.zeros((4, HEAD), "int32")  # The search ends at a segment with one of the first bytes below this.
LEAST[1, :2] = 0xFF, 0xE0  # application segments and comments, which come first in a JPEG


def orientation(encoded):
    """The EXIF orientation of a JPEG, PNG or WebP file.

    Args:
        encoded: The content of the file, a string tensor ().

    Returns:
        int32 (), from 1 to 8: 1 where there is no EXIF data or it is malformed.

    Example:
        >>> from PIL import Image
        >>> exif = Image.Exif()
        >>> exif[0x0112] = 6
        >>> Image.new("RGB", (8, 8)).save("photo.jpg", exif=exif)
        >>> int(orientation(tf.io.read_file("photo.jpg")))
        6

    Source: the standards JEITA CP-3451 (EXIF), ITU-T T.81 (JPEG), ISO/IEC 15948 (PNG) and RFC 9649 (WebP).
    """
    return _orientation(tf.convert_to_tensor(encoded))


@tf.function(autograph=False, experimental_attributes={"_noinline": True})  # traced once for all pipelines
def _orientation(encoded):
    return tf.cond(_is_plain(encoded), lambda: tf.constant(1), lambda: _searched(encoded))


def _is_plain(encoded):
    """Whether the bytes are those of a JPEG of the usual form without EXIF data; the search takes longer."""
    head = tf.io.decode_raw(tf.strings.substr(encoded, 0, len(PLAIN)), tf.uint8, fixed_length=len(PLAIN))
    return tf.reduce_all((head >= PLAIN) & (head <= PLAIN_TO))


def _searched(encoded):
    start, end = _exif_range(encoded)
    exif = _part(encoded, start, end - start)
    return tf.cond(tf.strings.length(exif) > 0, lambda: _orientation_tag(exif), lambda: tf.constant(1))


def without_orientation(encoded):
    """The same file with the EXIF orientation 1, so that it is shown as it is stored.

    Args:
        encoded: As for `orientation`.

    Returns:
        A string tensor ().

    Example:
        >>> from PIL import Image
        >>> exif = Image.Exif()
        >>> exif[0x0112] = 6
        >>> Image.new("RGB", (8, 8)).save("photo.jpg", exif=exif)
        >>> int(orientation(without_orientation(tf.io.read_file("photo.jpg"))))
        1
    """
    return _without_orientation(tf.convert_to_tensor(encoded))


@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def _without_orientation(encoded):
    def reset():
        inputs = [encoded, *_exif_range(encoded)]
        return tf.ensure_shape(tf.numpy_function(_reset, inputs, tf.string, stateful=False), ())

    return tf.cond(_orientation(encoded) > 1, reset, lambda: encoded)


def _reset(encoded, start, end):
    """The content of a file (bytes) whose EXIF data, at a range of bytes, get the orientation 1."""
    content = bytearray(np.asarray(encoded, object).item())
    for offset, order, _ in orientation_tags(bytes(content[start:end])):
        struct.pack_into(f"{order}H", content, start + offset, 1)
    if content.startswith(PNG):  # The chunk begins with its name, and ends with a checksum.
        content[end - 4 : end] = struct.pack(">I", zlib.crc32(content[start - 4 : end - 4]))
    return bytes(content)


def upright(image, orientation):
    """A stored image (height, width, channels) in its EXIF orientation, an int32 () from 1 to 8.

    Example:
        >>> upright(tf.reshape(tf.range(6), (2, 3, 1)), tf.constant(6))[..., 0].numpy().tolist()
        [[3, 0], [4, 1], [5, 2]]
    """

    def turned():
        swapped = lambda: tf.transpose(image, (1, 0, 2))  # noqa: E731
        transposed = tf.cond(orientation >= TRANSPOSED, swapped, lambda: image)
        rows, columns = tf.unstack(tf.where(tf.gather(REVERSED, orientation), -1, 1))
        return transposed[::rows, ::columns]

    return tf.cond(orientation > 1, turned, lambda: image)


def upright_shape(shape, orientation):
    """Convert the (height, width) of the stored image to that of the upright one, and back."""
    return tf.where(orientation >= TRANSPOSED, shape[::-1], shape)


def stored_window(window, shape, orientation):
    """Map a window of the upright image to the stored image.

    Args:
        window: (top, left, height, width) in the upright image, int32 (4,).
        shape: (height, width) of the upright image, int32 (2,).
        orientation: int32 (), from 1 to 8.

    Returns:
        int32 (4,).

    Example:
        >>> stored_window(tf.constant([0, 1, 2, 1]), tf.constant([3, 2]), tf.constant(6)).numpy().tolist()
        [0, 0, 1, 2]
    """
    corner, size = window[:2], window[2:]
    corner = tf.where(tf.gather(REVERSED, orientation), shape - corner - size, corner)
    return tf.concat([upright_shape(corner, orientation), upright_shape(size, orientation)], 0)


def _exif_range(encoded):
    """Where the content of the EXIF segment of a file starts, and where the segment ends.

    Without one, the start is the end of the file.
    """
    size = tf.strings.length(encoded)
    container = tf.argmax(_bytes(encoded, 0, 1) == CONTAINERS[:, 0])  # 0 for other files
    _, first, offset, overhead, multiple = tf.unstack(tf.gather(CONTAINERS, container))
    weights, is_exif, least = (tf.gather(table, container) for table in (LENGTH, IS_EXIF, LEAST))

    def step(position, _):
        head = _bytes(encoded, position, HEAD)
        length = overhead + _number(head, weights)
        length += -length % multiple
        is_here = tf.reduce_all((head == is_exif) | (is_exif < 0))
        ends = tf.reduce_any(head < least) | (length < offset)
        return tf.where(ends, size, position + length), tf.where(is_here, position + offset, size)

    def goes_on(position, content):
        return (position >= 0) & (position < size) & (content >= size)

    end, content = tf.while_loop(goes_on, step, (first, size), maximum_iterations=MAX_SEGMENTS)
    return content, end


def _orientation_tag(exif):
    """The orientation in the first image file directory of EXIF data."""
    start = tf.where(_starts(_bytes(exif, 0, len(PREFIX)), PREFIX), len(PREFIX), 0)
    tiff = _part(exif, start, tf.strings.length(exif))
    head = _bytes(tiff, 0, 8)
    is_little = _starts(head, b"II*\0")
    long, short = tf.where(is_little, LITTLE, BIG), tf.where(is_little, LITTLE[:2], BIG[2:])
    directory = _number(head[4:8], long)
    count = _number(_bytes(tiff, directory, 2), short)
    entries = tf.cast(tf.io.decode_raw(_part(tiff, directory + 2, 12 * count), tf.uint8), tf.int32)
    entries = entries[: tf.size(entries) // 12 * 12]  # without a truncated one
    numbers = _number(tf.reshape(entries, (-1, 6, 2)), short)
    is_orientation = (numbers[:, 0] == ORIENTATION) & (numbers[:, 1] == SHORT)
    value = tf.reduce_max(tf.where(is_orientation, numbers[:, 4], 1))
    is_sound = (is_little | _starts(head, b"MM\0*")) & (value >= 1) & (value <= 8)
    return tf.where(is_sound, value, 1)


def _part(content, position, count):
    """At most `count` bytes from a position; none where it is outside of the content."""
    size = tf.strings.length(content)
    start = tf.where((position >= 0) & (position < size), position, size)
    return tf.strings.substr(content, start, tf.maximum(count, 0))


def _bytes(content, position, count):
    """`count` bytes from a position as int32, padded with zeros after the end."""
    part = _part(content, position, count)
    return tf.cast(tf.io.decode_raw(part, tf.uint8, fixed_length=count), tf.int32)


def _number(values, weights):
    return tf.reduce_sum(values * weights, axis=-1)


def _starts(values, prefix):
    return tf.reduce_all(values[: len(prefix)] == tf.constant([*prefix]))
