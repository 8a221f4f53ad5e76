"""The size and EXIF orientation of JPEG and PNG files, a hundred times faster than by decoding them."""

import functools
import os
import stat
import struct
from typing import NamedTuple

from keras_vit.preprocessing import bounds
from keras_vit.preprocessing.image_files import TRANSPOSED, exif_orientation

HEAD = 4096  # bytes that are read first, in which most headers end
JPEG, JPEG_END, PNG = b"\xff\xd8", b"\xff\xd9", b"\x89PNG\r\n\x1a\n"
EXIF, EXIF_PREFIX, FIRST_APPLICATION = 0xE1, b"Exif\0\0", 0xE0
FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended and progressive
MAX_SEGMENTS = 10_000  # It bounds the time that a malicious file takes.


class Header(NamedTuple):
    """What is known of an image before its pixels.

    Args:
        orientation: In which decoding turns what is stored, 1 to 8; of TIFF, AVIF and HEIC files always 1.
        size: (width, height) in this orientation, as the image is shown.
    """

    orientation: int
    size: tuple[int, int]


def shown(orientation, width, height):
    """The `Header` of an image that is stored in this width and height.

    >>> shown(6, 40, 30)
    Header(orientation=6, size=(30, 40))
    """
    return Header(orientation, (height, width) if orientation >= TRANSPOSED else (width, height))


def read_header(path):
    """The `Header` of a JPEG or PNG file whose header and end are those of a whole image.

    Args:
        path: The path of the file.

    Returns:
        `Header`; None for another or an unusual file, whose decoding says whether it is an image.

    Example:
        >>> keras.utils.save_img(tmp / "a.png", np.zeros((8, 8, 3)))
        >>> read_header(tmp / "a.png")
        Header(orientation=1, size=(8, 8))

    Source: the standards ITU-T T.81 (JPEG), ISO/IEC 15948 (PNG) and JEITA CP-3451 (EXIF).
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # A pipe would wait for its writer.
    except OSError:
        return None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > bounds.MAX_BYTES:
            return None
        head = os.pread(file, HEAD, 0)
        read = functools.partial(_read, file, head)
        if head.startswith(JPEG):
            return _of_jpeg(read) if read(status.st_size - 2, 2) == JPEG_END else None
        return _of_png(read, status.st_size) if head.startswith(PNG) else None
    except (OSError, struct.error):
        return None
    finally:
        os.close(file)


def _read(file, head, start, count):
    return head[start : start + count] if start + count <= len(head) else os.pread(file, count, start)


def _of_jpeg(read):
    """The `Header` of a JPEG, whose segments are read up to the frame's header."""
    offset, turn, is_first = len(JPEG), None, True
    for _ in range(MAX_SEGMENTS):
        start, marker, length = struct.unpack(">BBH", read(offset, 4))
        if start != 0xFF or length < 2:
            return None
        if marker in FRAMES:
            bits, height, width, channels = struct.unpack(">BHHB", read(offset + 4, 6))
            is_usual = bits == 8 and channels in (1, 3) and 0 < height * width <= bounds.MAX_PIXELS
            return shown(turn or 1, width, height) if is_usual else None
        # EXIF data come before segments of other kinds.
        is_first = is_first and marker >= FIRST_APPLICATION
        if is_first and turn is None and marker == EXIF:
            content = read(offset + 4, length - 2)
            turn = exif_orientation(content) if content.startswith(EXIF_PREFIX) else None
        offset += 2 + length
    return None


def _of_png(read, size):
    """The `Header` of a PNG, whose chunks are read to the end."""
    offset, turn, width, height = len(PNG), None, 0, 0
    for _ in range(MAX_SEGMENTS):
        length, chunk = struct.unpack(">I4s", read(offset, 8))
        if chunk == b"IHDR":
            width, height = struct.unpack(">II", read(offset + 8, 8))
            if not 0 < height * width <= bounds.MAX_PIXELS:
                return None
        elif chunk == b"eXIf" and turn is None:
            turn = exif_orientation(read(offset + 8, length))
        offset += 12 + length
        if chunk == b"IEND":
            return shown(turn or 1, width, height) if offset == size and height * width else None
    return None
