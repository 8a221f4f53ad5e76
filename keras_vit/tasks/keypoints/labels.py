"""An object has points with names, such as the joints of a person, of which some may be hidden or unknown."""

import collections

import numpy as np

from keras_vit.labels.label_kind import LabelKind

UNLABELED, HIDDEN, VISIBLE = range(3)  # a point's visibility, as in COCO's files
BOX_ROWS, COLUMNS = 2, 4  # of a label in records: rows before the points, and numbers in a row
CORNER, OPPOSITE = 0, 1  # the rows of a box
WHOLE = 3  # the column of CORNER that is 1 where there is no box
AREA, VISIBILITY, MIRRORED = 2, 2, 3  # columns of CORNER and of points
BOX_AREA = 0.53  # of an object without an area, as a fraction of its box: as in Ultralytics and mmpose


class Keypoints(LabelKind):
    """The points of one object: float32 (points, 3) of x, y and visibility; outputs are heat maps.

    The visibility is 0 of a point without a label, 1 of a hidden one, and 2 of a visible one. As of boxes, x
    and y are fractions of the image's sides from edge to edge: the center of the first pixel is at half a
    pixel. In a batch the image is the part that the model receives.

    In records a label is float64 (2 + points, 4), in fractions of the whole image. The first row is the left
    and the top of the object's box, its area, and 1 where the box is the whole image because there is
    none; the second row is the right and the bottom. Each further row is a point: x, y, visibility, and the
    number of the point that takes its place in a mirrored image.

    Example:
        >>> kind = Keypoints()
        >>> label = label_of([[0.25, 0.5, 2], [0, 0, 0]], box=(0, 0, 0.5, 1), area=0.3, flip_index=(1, 0))
        >>> kind.format(label, ["left_eye", "right_eye"])
        '1 of 2'
        >>> kind.counts([encode(label)], ["left_eye", "right_eye"])
        {'keypoints': {'left_eye': [1, 1], 'right_eye': [0, 0]}}
    """

    name = "keypoints"
    noun = ("keypoint", "keypoints")
    axes = 2
    moves = True

    def geometry(self):
        from keras_vit.tasks.keypoints import points  # needs TensorFlow

        return points

    def check(self, labels, num_outputs):
        if labels.ndim != 3 or labels.shape[1:] != (num_outputs, 3):
            raise ValueError(
                f"expected {num_outputs} keypoints (x, y, visibility) per sample, one for each output; got "
                f"labels of shape {labels.shape[1:]}"
            )

    def shared_values(self, values):
        return values

    def parse(self, text):
        raise ValueError(f"expected keypoints, which a table cannot hold; got {text!r}")

    def counts(self, labels, names):
        """The objects in which each point has a label, and in which it is visible."""
        labeled, visible = collections.Counter(), collections.Counter()
        for label in labels:
            marks = decode(label)[BOX_ROWS:, VISIBILITY]
            labeled.update(np.flatnonzero(marks > UNLABELED).tolist())
            visible.update(np.flatnonzero(marks == VISIBLE).tolist())
        return {"keypoints": {name: [labeled[k], visible[k]] for k, name in enumerate(names)}}

    def format(self, label, names):
        """The number of points with a label."""
        return f"{np.count_nonzero(np.asarray(label)[-len(names) :, VISIBILITY])} of {len(names)}"

    def stored(self, label, names):
        return decode(label).tolist()


def label_of(points, box=None, area=None, flip_index=None):
    """The label of an object in records.

    Args:
        points: (points, 3), in fractions of the image.
        box: (left, top, right, bottom), in fractions of the image; None: the whole image.
        area: Of the object, as a fraction of the image; None: 0.53 of its box.
        flip_index: For each point the number of the one that takes its place in a mirrored image; None: its
            own.

    Returns:
        float64 (2 + points, 4). A point without a label is at 0.

    Example:
        >>> label_of([[0.25, 0.5, 2]])[:2].tolist()
        [[0.0, 0.0, 0.53, 1.0], [1.0, 1.0, 0.0, 0.0]]
    """
    points = np.asarray(points, "float64").reshape(-1, 3)
    left, top, right, bottom = (0, 0, 1, 1) if box is None else box
    area = BOX_AREA * (right - left) * (bottom - top) if area is None else area
    label = np.zeros((BOX_ROWS + len(points), COLUMNS))
    label[CORNER], label[OPPOSITE, :2] = (left, top, area, box is None), (right, bottom)
    label[BOX_ROWS:, :3] = np.where(points[:, 2:] > UNLABELED, points, 0)
    label[BOX_ROWS:, MIRRORED] = np.arange(len(points)) if flip_index is None else flip_index
    return label


def encode(label):
    """A label as bytes: small, and equal for equal labels.

    >>> decode(encode(label_of([[0.25, 0.5, 2]]))).shape
    (3, 4)
    """
    return np.asarray(label, "<f8").tobytes()


def decode(encoded):
    """The float64 label of `encode`."""
    return np.frombuffer(encoded, "<f8").reshape(-1, COLUMNS)


KIND = Keypoints()
