"""An image has any number of objects, each with a class and a box around it."""

import collections

import numpy as np

from keras_vit.labels.label_kind import IndependentClasses

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


class Boxes(IndependentClasses):
    """Rows of `COLUMNS`, in fractions of the image's sides and area; outputs are boxes and logits of tokens.

    A crowd, 1 or 0, is a box around an unknown number of objects: it is not trained on, and what is found in
    it is not wrong. The area is that of the object, which may be less than that of its box.
    """

    name = "detection"
    axes = 2
    moves = True

    def check(self, labels, num_outputs):
        if labels.ndim != 3 or labels.shape[2] != len(COLUMNS):
            raise ValueError(
                f"expected boxes (boxes, {len(COLUMNS)}) per sample, with the columns {', '.join(COLUMNS)}; "
                f"got labels of shape {labels.shape[1:]}"
            )
        classes = labels[..., 4]
        if classes.size and not PADDING <= classes.min() <= classes.max() < num_outputs:
            worst = classes.min() if classes.min() < PADDING else classes.max()
            raise ValueError(f"expected boxes of classes below {num_outputs}; got class {worst:g}")

    def parse(self, text):
        raise ValueError(f"expected boxes, which a table cannot hold; got {text!r}")

    def format(self, label, names):
        """The number of objects of each class, the most frequent first."""
        rows = np.asarray(label)
        classes = rows[(rows[:, 4] >= 0) & (rows[:, 5] == 0), 4].astype(int)
        counts = collections.Counter(classes.tolist()).most_common()
        return ", ".join(f"{count} {names[number]}" for number, count in counts) or "none"

    def stored(self, label, names):
        rows = decode_boxes(label).tolist()
        return [[names[int(row[4])] if names else int(row[4]), *row[:4], *row[5:]] for row in rows]


KIND = Boxes()
