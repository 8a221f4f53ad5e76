"""The checksums of PNG files."""

import struct
import zlib


def check_chunks(content):
    """Raise ValueError for a PNG file that is cut off or has a wrong checksum, which Pillow may miss.

    >>> check_chunks(tf.io.encode_png(tf.zeros((2, 2, 1), tf.uint8)).numpy())
    """
    if not content.startswith(b"\x89PNG\r\n\x1a\n"):
        raise ValueError("not a PNG file")
    start, name = 8, b""
    while name != b"IEND":
        length, name = struct.unpack_from(">I4s", content, start)
        end = start + 8 + length
        (checksum,) = struct.unpack_from(">I", content, end)
        if zlib.crc32(content[start + 4 : end]) != checksum:
            raise ValueError("a damaged PNG file")
        start = end + 4
