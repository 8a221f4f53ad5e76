"""Rows of boxes: the objects of an image, as labels, files and augmentation hold them."""

import numpy as np

COLUMNS = ("left", "top", "right", "bottom", "class", "crowd", "area")
MAX_BOXES = 100  # of an image in a batch
PADDING = -1  # the class of rows that fill up a batch
DECIMALS = 9  # of pixels


def encode_boxes(rows):
    """Rows of `COLUMNS` as bytes: small, and equal for equal rows.

    >>> decode_boxes(encode_boxes([[0, 0, 1, 1, 3, 0, 1]])).shape
    (1, 7)
    """
    return np.asarray(rows, "<f8").reshape(-1, len(COLUMNS)).tobytes()


def decode_boxes(encoded):
    """The float64 rows of `encode_boxes`.

    >>> decode_boxes(b"").shape
    (0, 7)
    """
    return np.frombuffer(encoded, "<f8").reshape(-1, len(COLUMNS))


def in_pixels(rows, size):
    """Rows of `COLUMNS` with sides and areas in pixels, which are those of the file that they were read from.

    A fraction in float64, times the side, is exact up to the last bits, which rounding to nine decimals
    removes. So an object of exactly 32 × 32 pixels has this size, as in the evaluation of COCO.

    Args:
        rows: float64 (boxes, 7), in fractions.
        size: The (height, width) of the image.

    Example:
        >>> in_pixels([[1 / 49, 2 / 7, 33 / 49, 34 / 7, 3, 0, 1024 / (49 * 7)]], (7, 49)).tolist()
        [[1.0, 2.0, 33.0, 34.0, 3.0, 0.0, 1024.0]]
    """
    height, width = map(int, size)
    scale = [width, height, width, height, 1, 1, height * width]
    return np.round(np.asarray(rows, "float64").reshape(-1, len(COLUMNS)) * scale, DECIMALS)
