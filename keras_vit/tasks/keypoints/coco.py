"""COCO's JSON files of images and keypoints."""

import functools

from keras_vit.messages import listed
from keras_vit.tasks.detection.coco import by_id, contents_of, images_of
from keras_vit.tasks.keypoints.reader import SETTINGS
from keras_vit.tasks.keypoints.stored_objects import CENTER, PosedObject, points_of


def read_coco(folder, settings):
    """The images, and what the points are, by COCO's files that have keypoints.

    Files of other annotations, such as `instances_train2017.json`, are left out.

    Args:
        folder: The `BoxFiles`.
        settings: What `keypoints.json` says, a dict of the arguments of `KeypointReader`.

    Returns:
        (the paths of the label files, list of `LabeledImage`s with `PosedObject`s, a dict of arguments of
        `KeypointReader`); None without such files.

    Raises:
        ValueError: for a value that is missing, of another type, or an id that is there twice; if categories
            have different keypoints, and `settings` name none.
    """
    contents = {path: content for path, content in contents_of(folder).items() if _has_keypoints(content)}
    if not contents:
        return None
    labeled, known = [], {}
    for path, content in contents.items():
        rows = by_id(content, "categories", f"{path}, category")
        annotations = [row for row in _rows(content["annotations"]) if row.get("keypoints")]
        used = {row["category_id"] for row in annotations if isinstance(row.get("category_id"), int | str)}
        for number, (where, category) in rows.items():
            if not category.get("keypoints") or number not in (used or rows):
                continue
            points = {"names": _names(category["keypoints"], where), "skeleton": _skeleton(category, where)}
            if known and points["names"] != known["names"] and not settings.get("names"):
                raise ValueError(
                    f"{where}: expected the keypoints of all categories with annotations, or names in "
                    f"{SETTINGS}; got others"
                )
            known = {**points, **{name: value for name, value in known.items() if value}}
        names = settings.get("names") or known.get("names") or _numbers(content)
        known.setdefault("names", names)
        make = functools.partial(_posed, len(names))
        classes = dict.fromkeys(rows, "object")
        labeled += images_of(folder, path, content, classes, make, needs_boxes=False)
    return {*contents}, labeled, known


def _posed(count, stored, annotation):
    """The `PosedObject` of an annotation, without points if its category has none."""
    points = annotation.get("keypoints")
    triples = points_of(points, count, stored.where, CENTER) if points else []
    return PosedObject(stored.where, triples, stored)


def _has_keypoints(content):
    return any(row.get("keypoints") for key in ("categories", "annotations") for row in _rows(content[key]))


def _rows(value):
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _names(names, where):
    if not isinstance(names, list) or not names or not all(isinstance(n, str) and n.strip() for n in names):
        raise ValueError(f"{where}: expected keypoints, a list of names; got {names!r:.80}")
    return tuple(name.strip() for name in names)


def _numbers(content):
    """Numbers as names, of files whose categories have none."""
    first = next((row["keypoints"] for row in _rows(content["annotations"]) if row.get("keypoints")), None)
    return tuple(map(str, range(len(first) // 3 if isinstance(first, list) else 1)))


def _skeleton(category, where):
    """Pairs of numbers from 0 on, which COCO counts from 1; a file with a 0 counts from 0."""
    lines = category.get("skeleton") or []
    if not isinstance(lines, list) or not all(
        isinstance(line, list) and len(line) == 2 and all(type(end) is int for end in line) for line in lines
    ):
        raise ValueError(f"{where}: expected a skeleton of pairs of numbers; got {listed([lines])}")
    first = 0 if any(0 in line for line in lines) else 1
    return tuple((start - first, end - first) for start, end in lines)
