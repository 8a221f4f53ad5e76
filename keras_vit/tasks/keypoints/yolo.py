"""YOLO's `data.yaml` with `kpt_shape`, and a text file of boxes with keypoints for each image."""

from keras_vit.tasks.detection.stored_boxes import StoredObject, numbers_of
from keras_vit.tasks.detection.yolo import contents_of, read_yolo, shape_of_points
from keras_vit.tasks.keypoints.labels import UNLABELED, VISIBLE
from keras_vit.tasks.keypoints.stored_objects import PosedObject, points_of

SHAPE, FLIP, NAMES = "kpt_shape", "flip_idx", "kpt_names"


def read_yolo_pose(folder, settings):
    """The images, and what the points are, by YOLO's files.

    Args, Returns, Raises: See `coco.read_coco`; None without a `kpt_shape`. Of points with two numbers those
    at 0, 0 or below 0 have no label, and the others are visible, as are those with a score.
    """
    configs = (item for item in contents_of(folder).items() if {"names", SHAPE} <= item[1].keys())
    path, content = next(configs, (None, None))
    if content is None:
        return None
    count, numbers = shape_of_points(content, path) or (0, 0)
    if count < 1 or numbers not in (2, 3):
        raise ValueError(f"{path}: expected {SHAPE} of a number of points, and 2 or 3; got {content[SHAPE]}")
    used, labeled, _ = read_yolo(folder, _posed)
    known = {"names": _names(content.get(NAMES), count, f"{path}, {NAMES}")}
    if settings.get("names") and len(settings["names"]) != count:
        raise ValueError(f"{path}: expected {SHAPE} of {len(settings['names'])} points; got {count}")
    if content.get(FLIP) not in (None, "", []):
        known["flip_index"] = _indices(content[FLIP], count, f"{path}, {FLIP}")
    return used, labeled, known


def _indices(values, count, where):
    texts = values if isinstance(values, list) else []
    if len(texts) != count or not all(isinstance(text, str) and text.strip().isdecimal() for text in texts):
        raise ValueError(f"{where}: expected {count} numbers, one for each keypoint; got {values!r:.80}")
    return tuple(map(int, texts))


def _names(names, count, where):
    """The names of points: a list, or one for each class, of which all have to be equal; else numbers."""
    if isinstance(names, dict):
        lists = [*names.values()]
        names = lists[0] if lists and all(names_of_class == lists[0] for names_of_class in lists) else names
    if names is None:
        return tuple(map(str, range(count)))
    if not isinstance(names, list) or len(names) != count or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{where}: expected {count} names of keypoints, the same of all classes")
    return tuple(names)


def _posed(line, where, names, shape):
    """The `PosedObject` of a line: class x y width height, then x y or x y visibility of each point."""
    count, size = shape
    numbers = numbers_of(line[1:], 4 + count * size, where) if len(line) == 5 + count * size else None
    if numbers is None:
        raise ValueError(
            f"{where}: expected a class, a box of 4 numbers and {count} keypoints of {size}, "
            f"{5 + count * size} numbers; got {len(line)}"
        )
    x, y, width, height, *rest = numbers
    box = StoredObject(where, (x - width / 2, y - height / 2, x + width / 2, y + height / 2), "object")
    rows = [rest[first : first + size] for first in range(0, len(rest), size)]
    rest = [number for x, y, *mark in rows for number in (x, y, _mark(x, y, *mark))]
    return PosedObject(where, points_of(rest, count, where), box)


def _mark(x, y, mark=None):
    """The visibility of a point; a fraction is the score of a model, whose points are visible."""
    if mark is None:
        return VISIBLE if (x or y) and min(x, y) >= 0 else UNLABELED
    return VISIBLE if 0 < mark < 1 else mark
