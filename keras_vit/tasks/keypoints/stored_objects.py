"""Objects with keypoints in files of labels and in shards: what is wrong with them is named."""

import dataclasses
import math

import numpy as np

from keras_vit.labels.box_rows import DECIMALS
from keras_vit.tasks.detection.stored_boxes import StoredObject, checked_rows, numbers_of, with_extent
from keras_vit.tasks.keypoints.labels import (
    AREA,
    BOX_ROWS,
    CORNER,
    HIDDEN,
    OPPOSITE,
    UNLABELED,
    VISIBILITY,
    VISIBLE,
    WHOLE,
    label_of,
)

OUTSIDE = 1.5  # pixels by which a point may be outside of its image, as rounded ones are
CENTER = 0.5  # of the first pixel from the edge of an image, which is at 0 in COCO's files


@dataclasses.dataclass
class PosedObject:
    """An object in a file of labels.

    Args:
        where: Its place, for messages.
        points: (x, y, visibility) of each point, in pixels from edge to edge, or fractions of the image's
            sides.
        box: Its `StoredObject`, whose sides are pixels or fractions, too, or None.
    """

    where: str
    points: list
    box: StoredObject

    name = "object"  # which `detection.folder` compares

    @property
    def sides(self):
        """All that tells one object from another."""
        return *(self.box.sides or ()), *self.points

    @property
    def is_labeled(self):
        """Whether it is one object and has a point with a label."""
        return not self.box.crowd and any(mark > UNLABELED for *_, mark in self.points)


def points_of(values, count, where, shift=0.0):
    """Triples (x, y, visibility) of a flat list of numbers, or of a list of triples.

    Args:
        values: x, y and visibility (0, 1 or 2) of each point.
        count: The number of points.
        where: The place, for messages.
        shift: Added to x and y.

    Raises:
        ValueError: for another number of values, a number that is not finite, or another visibility.

    Example:
        >>> points_of([1, 2, 2, 0, 0, 0], 2, "a.json", shift=0.5)
        [(1.5, 2.5, 2), (0.5, 0.5, 0)]
    """
    if isinstance(values, list | tuple) and values and all(isinstance(v, list | tuple) for v in values):
        values = [number for row in values for number in row]
    try:
        numbers = numbers_of(values, 3 * count, where)
    except ValueError:
        is_other_count = isinstance(values, list | tuple) and len(values) != 3 * count
        got = f"{len(values)} values" if is_other_count else f"{values!r:.80}"
        raise ValueError(
            f"{where}: expected x, y and visibility of {count} keypoints, {3 * count} numbers; got {got}"
        ) from None
    triples = [*zip(numbers[0::3], numbers[1::3], numbers[2::3])]
    for *_, mark in triples:
        if mark not in (UNLABELED, HIDDEN, VISIBLE):
            raise ValueError(f"{where}: expected a visibility of 0, 1 or 2 for each keypoint; got {mark:g}")
    return [(x + shift, y + shift, int(mark)) for x, y, mark in triples]


def checked_label(posed, size, flip_index, are_fractions=False):
    """The label of an object in records, and what is wrong with it.

    Args:
        posed: A `PosedObject`.
        size: (width, height) of the image.
        flip_index: As for `labels.label_of`.
        are_fractions: Whether its box and points are fractions.

    Returns:
        (label, reason), one of which is None.

    Example:
        >>> whole = StoredObject("a.json", None, "object")
        >>> label, _ = checked_label(PosedObject("a.json", [(4.0, 2.0, 2)], whole), (8, 8), (0,))
        >>> label[2:].tolist()
        [[0.5, 0.25, 2.0, 0.0]]
        >>> checked_label(PosedObject("a.json", [(14.0, 2.0, 2)], whole), (8, 8), (0,))[1]
        'a.json (a keypoint outside of its image of 8×8 pixels: x, y 14, 2)'
    """
    sides = np.array([1, 1] if are_fractions else size, "float64")
    points = np.array(posed.points, "float64").reshape(-1, 3)
    places, far = points[:, :2] / sides, OUTSIDE / np.array(size, "float64")
    is_outside = ((places < -far) | (places > 1 + far)).any(axis=1) & (points[:, 2] > UNLABELED)
    if is_outside.any():
        x, y = points[np.argmax(is_outside), :2]
        return None, (
            f"{posed.where} (a keypoint outside of its image of {size[0]}×{size[1]} pixels: "
            f"x, y {x:g}, {y:g})"
        )
    points = np.concatenate([places, points[:, 2:]], axis=1)
    area = (posed.box.area or 0) / math.prod(size)  # Some tools write 0 for none.
    if posed.box.sides is None:
        return label_of(points, area=area or None, flip_index=flip_index), None
    rows, reasons = checked_rows([posed.box], size, {posed.box.name: 0}, are_fractions)
    if reasons:
        return None, reasons[0]
    [[*box, _, _, _]] = rows
    if box[0] >= box[2] or box[1] >= box[3]:
        return None, f"{posed.where} (a box without an extent)"
    return label_of(points, box, area or None, flip_index), None


def label_of_json(value, count, flip_index, where="keypoints"):
    """The label in records of an object that is a JSON value, as of `json_of`.

    Args:
        value: A dict of `keypoints`, as of `points_of`, by pixels of which the first one is at 0; `width` and
            `height` of the image; and perhaps `bbox`, [left, top, width, height], and `area` in pixels.
        count: The number of points.
        flip_index: As for `labels.label_of`.
        where: The place, for messages.

    Raises:
        ValueError: for other values, with the place.

    Example:
        >>> value = {"keypoints": [[3.5, 1.5, 2]], "width": 8, "height": 8}
        >>> label_of_json(value, 1, (0,))[2:].tolist()
        [[0.5, 0.25, 2.0, 0.0]]
    """
    if not isinstance(value, dict) or "keypoints" not in value:
        got = ", ".join(value) or "none" if isinstance(value, dict) else f"{value!r:.40}"
        raise ValueError(f"{where}: expected an object with keypoints, width and height; got {got}")
    size = (value.get("width"), value.get("height"))
    if not all(isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in size):
        raise ValueError(f"{where}: expected the width and height of the image in pixels; got {size!r:.80}")
    points, box = points_of(value["keypoints"], count, where, CENTER), value.get("bbox")
    sides = None if box is None else with_extent(box, where)
    box = StoredObject(where, sides, "", area=value.get("area"))
    label, reason = checked_label(PosedObject(where, points, box), size, flip_index)
    if reason:
        raise ValueError(f"an object is wrong: {reason}")
    return label


def json_of(label, size):
    """A label in records as a JSON value.

    Args:
        label: float64 (2 + points, 4).
        size: The (width, height) of the image.

    Returns:
        dict of `keypoints`, lists [x, y, visibility] by pixels of which the first one is at 0, as in COCO's
        files; `width` and `height`; and with a box `bbox`, [left, top, width, height], and `area`.

    Example:
        >>> json_of(label_of([[0.5, 0.25, 2]]), (8, 8))
        {'keypoints': [[3.5, 1.5, 2]], 'width': 8, 'height': 8}
    """
    sides, points = np.array(size, "float64"), np.asarray(label, "float64")[BOX_ROWS:]
    places = np.where(points[:, 2:3] > UNLABELED, points[:, :2] * sides - CENTER, 0).round(DECIMALS)
    marks = points[:, VISIBILITY].astype(int)
    rows = [[*position, mark] for position, mark in zip(places.tolist(), marks.tolist())]
    value = {"keypoints": rows, "width": int(size[0]), "height": int(size[1])}
    if not label[CORNER][WHOLE]:
        corner, opposite = label[CORNER][:2] * sides, label[OPPOSITE][:2] * sides
        box = np.concatenate([corner, opposite - corner]).round(DECIMALS)
        value |= {"bbox": box.tolist(), "area": round(float(label[CORNER][AREA] * math.prod(size)), DECIMALS)}
    return value
