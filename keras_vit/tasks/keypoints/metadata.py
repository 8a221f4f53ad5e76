"""`metadata.jsonl` of Hugging Face's ImageFolder, with objects that have keypoints."""

from keras_vit.tasks.detection.labeled import LabeledImage
from keras_vit.tasks.detection.metadata import OBJECTS, image_of_row, rows_of
from keras_vit.tasks.detection.stored_boxes import StoredObject, is_crowd, with_extent
from keras_vit.tasks.keypoints.stored_objects import CENTER, PosedObject, points_of

POINTS = "keypoints"


def read_metadata(folder, settings):
    """The images, and what the points are, by all `metadata.jsonl`, whose splits are those of the folders.

    Args, Returns, Raises: See `coco.read_coco`; None without a row with keypoints.
    """
    rows = [(*line, _objects(*line[1:])) for line in rows_of(folder, OBJECTS)]
    if not any(POINTS in item for *_, objects in rows for item in objects):
        return None
    count = len(settings.get("names") or ()) or _count(rows)
    labeled = [_image(folder.root, *row, count) for row in rows]
    return {path for path, *_ in rows}, labeled, {"names": tuple(map(str, range(count)))}


def _objects(where, row):
    """The objects of a row: a list of structs, or a struct of lists."""
    value = row.get(OBJECTS)
    if value is None or isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return value or []
    lists = [*value.values()] if isinstance(value, dict) else [None]
    if not all(isinstance(column, list) and len(column) == len(lists[0]) for column in lists):
        raise ValueError(f"{where}: expected {OBJECTS}, a list of objects with keypoints; got {value!r:.40}")
    return [dict(zip(value, item)) for item in zip(*lists)]


def _count(rows):
    """The number of points of the first object that has some."""
    values = (item.get(POINTS) for *_, objects in rows for item in objects)
    first = next((points for points in values if points and isinstance(points, list)), [[]])
    return len(first) if isinstance(first[0], list) else len(first) // 3


def _image(root, path, where, row, objects, count):
    """The `LabeledImage` of a row."""
    file, size = image_of_row(root, path, row, where)
    posed = []
    for item in objects:
        if POINTS not in item:
            raise ValueError(f"{where}: expected {POINTS} of each object; got {', '.join(item) or 'none'}")
        sides = None if item.get("bbox") is None else with_extent(item["bbox"], where)
        crowd = is_crowd(item.get("iscrowd", item.get("is_crowd")), where)
        box = StoredObject(where, sides, "object", crowd, item.get("area"))
        points = points_of(item[POINTS], count, where, CENTER) if item[POINTS] else []
        posed.append(PosedObject(where, points, box))
    return LabeledImage(path, file, posed, size=size)
