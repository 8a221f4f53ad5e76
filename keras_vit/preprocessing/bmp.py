"""Which BMP files are read: those that Pillow and TensorFlow decode alike."""

import numpy as np

REQUIREMENT = "a BMP file must have 8, 24 or 32 bits per pixel and no compression"
HEADER_BYTES = 66  # the file header, the first version of the image header, and the three masks after it
BIT_FIELDS = 3  # the "compression" of pixels whose channels are given by masks
BGR_MASKS = bytes((0, 0, 255, 0, 0, 255, 0, 0, 255, 0, 0, 0))  # the masks that every 32-bit BMP implies


def parse_header(header):
    """The fields of a BMP's header that decoding depends on.

    Args:
        header: The first `HEADER_BYTES` bytes of the file as int64: a NumPy array, or a list of
            TensorFlow scalars.

    Returns:
        (offset of the pixels, size of the image header, bits per pixel, whether the file is supported).
    """

    def field(start, size):
        return sum(header[start + i] * 256**i for i in range(size))

    offset, size, bits, compression = field(10, 4), field(14, 4), field(28, 2), field(30, 4)
    is_plain = (compression == 0) & ((bits == 8) | (bits == 24) | (bits == 32))
    has_bgr_masks = sum(abs(header[54 + i] - mask) for i, mask in enumerate(BGR_MASKS)) == 0
    is_masked = (compression == BIT_FIELDS) & (bits == 32) & has_bgr_masks
    return offset, size, bits, (size >= 40) & (is_plain | is_masked)


def is_supported(content):
    """Whether a BMP file with these first bytes is read.

    >>> is_supported(b"BM")
    False
    """
    header = np.frombuffer(content[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0"), "uint8")
    return bool(parse_header(header.astype("int64"))[-1])
