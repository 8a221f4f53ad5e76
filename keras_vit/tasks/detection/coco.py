"""COCO's JSON files of images and boxes."""

import pathlib

from keras_vit.data.files import parse_json, read_text
from keras_vit.data.folder_splits import split_of_labels
from keras_vit.tasks.detection.labeled import LabeledImage, size_of_labels
from keras_vit.tasks.detection.stored_boxes import StoredObject, class_of, is_crowd, with_extent

KEYS = {"images", "annotations", "categories"}


def read_coco(folder):
    """The images and the classes of COCO's files.

    Several files may have boxes in one image, as `instances_train2017.json` and
    `person_keypoints_train2017.json`. Files of captions or of panoptic segments, without boxes, are left out.

    Args:
        folder: The `BoxFiles`.

    Returns:
        (the paths of the label files, list of `LabeledImage`, names of the classes); None without such files.

    Raises:
        ValueError: for a value that is missing, of another type, or an id that is there twice.
    """
    contents = contents_of(folder)
    if not contents:
        return None
    labeled, names = [], {}
    for path, content in contents.items():
        categories = by_id(content, "categories", f"{path}, category")
        categories = {
            number: str(class_of(value_of(category, "name", where), where, "a name"))
            for number, (where, category) in categories.items()
        }
        names |= dict.fromkeys(categories.values())
        labeled += images_of(folder, path, content, categories)
    return {*contents}, labeled, _class_names(contents.values(), names, labeled)


def contents_of(folder):
    """The contents of COCO's files with boxes, by their paths.

    Args:
        folder: The `BoxFiles`.
    """
    return {path: content for path in folder.paths[".json"] if (content := _content(path))}


def _content(path):
    """The content of a JSON file if it is COCO's, with boxes; None for other files."""
    with open(path, "rb") as file:
        head = file.read(2**16)
    if not head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return None
    try:
        content = parse_json(read_text(pathlib.Path(path)), repr(path))
    except ValueError:
        if b'"images"' in head or b'"annotations"' in head:
            raise
        return None
    if not isinstance(content, dict) or not content.keys() >= KEYS:
        return None
    annotations = content["annotations"]
    first = annotations[0] if isinstance(annotations, list) and annotations else None
    is_panoptic = isinstance(first, dict) and "segments_info" in first
    return None if is_panoptic else content


def images_of(folder, path, content, categories, make=lambda stored, annotation: stored, needs_boxes=True):
    """The `LabeledImage`s of a file.

    Args:
        folder: The `BoxFiles`.
        path, content: Of the file.
        categories: dict from the ids of categories to their names.
        make: A function from a `StoredObject` and its annotation to an object of the image.
        needs_boxes: Whether an annotation without a box is refused; else its sides are None.
    """
    split = split_of_labels(folder.root, path)
    stated_by = (folder.relative(path),) if split else ()
    images = {}
    for number, (where, image) in by_id(content, "images", f"{path}, image").items():
        file = folder.find(str(value_of(image, "file_name", where)), path, split, where)
        size = size_of_labels(image.get("width"), image.get("height"), where)
        images[number] = LabeledImage(path, file, [], split, stated_by, size)
    for number, annotation in enumerate(_list(content["annotations"], f"{path}, annotations")):
        number_or_id = annotation.get("id", number)
        where = f"{path}, annotation {number_or_id if isinstance(number_or_id, int | str) else number}"
        image_id = class_of(value_of(annotation, "image_id", where), where, "the id of an image")
        if image_id not in images:
            raise ValueError(f"{where}: expected the id of an image; got {image_id!r}")
        box = value_of(annotation, "bbox", where) if needs_boxes else annotation.get("bbox")
        sides = None if box is None else with_extent(box, where)
        category = class_of(value_of(annotation, "category_id", where), where)
        crowd = is_crowd(annotation.get("iscrowd"), where)
        name = categories.get(category, category)
        stored = StoredObject(where, sides, name, crowd, annotation.get("area"))
        images[image_id].objects.append(make(stored, annotation))
    return images.values()


def _class_names(contents, names, labeled):
    """The names of categories without that above all others, which Roboflow writes and no object has."""
    used = {item.name for image in labeled for item in image.objects}
    rows = [category for content in contents for category in content["categories"]]
    parents = {row.get("supercategory") for row in rows if isinstance(row.get("supercategory"), str)}
    tops = {row["name"] for row in rows if row.get("supercategory") in (None, "none", "")} & parents
    return tuple(name for name in names if name in used or name not in tops)


def by_id(content, key, place):
    """By id, the place and the row of a list of objects.

    Args:
        content: Of a file.
        key: Of the list.
        place: The beginning of a row's place, for messages.
    """
    rows = {}
    for number, row in enumerate(_list(content[key], f"{place.rpartition(', ')[0]}, {key}")):
        where = f"{place} {number}"
        row_id = class_of(value_of(row, "id", where), where, "an id")
        if row_id in rows:
            raise ValueError(f"{where}: expected an id of its own; got {row_id!r} twice")
        rows[row_id] = where, row
    return rows


def _list(value, where):
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise ValueError(f"{where}: expected a list of objects; got {str(value)[:40]}")
    return value


def value_of(row, key, where):
    """The value of a key of an object; ValueError, with the place, for another row or without the key."""
    if not isinstance(row, dict) or key not in row:
        got = (", ".join(map(str, row)) or "none") if isinstance(row, dict) else str(row)[:40]
        raise ValueError(f"{where}: expected the key {key!r}; got {got}")
    return row[key]
