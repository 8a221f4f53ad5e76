"""Boxes that are stored with images, as rows of `labels.boxes.COLUMNS`; what is wrong with them is named."""

import dataclasses
import io
import math

import numpy as np
from PIL import Image

from keras_vit.data.files import CLASSES, numbered_names, read_text
from keras_vit.preprocessing.image_files import TRANSPOSED

OUTSIDE = 1.5  # pixels by which a box may end outside its image, as rounded ones do
ORIENTATION = 0x0112  # the EXIF tag
CATEGORIES = ("category", "categories", "category_id", "label")  # names of the classes of objects


@dataclasses.dataclass
class StoredObject:
    """An object in a file of labels.

    Args:
        where: Its place, for messages.
        sides: Left, top, right and bottom: pixels, or fractions of the image's sides.
        name: Of its class, a str, or its number.
        crowd: Whether it is a crowd, or too difficult to count.
        area: Its own area in pixels; None for that of the box.
    """

    where: str
    sides: tuple[float, float, float, float]
    name: str | int
    crowd: bool = False
    area: float | None = None


def with_extent(box, where):
    """(left, top, right, bottom) of [left, top, width, height].

    >>> with_extent([1, 2, 3, 4], "a.json")
    (1.0, 2.0, 4.0, 6.0)
    """
    left, top, width, height = numbers_of(box, 4, where)
    return left, top, left + width, top + height


def numbers_of(values, count, where):
    """The numbers of a box, or ValueError with the place if they are not so many, or not finite.

    >>> numbers_of(["1", 2.5], 2, "a.txt, line 1")
    [1.0, 2.5]
    """
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != count or not all(map(math.isfinite, numbers)):
        raise ValueError(f"{where}: expected {count} numbers of a box; got {values!r}")
    return numbers


def checked_rows(objects, size, numbers, are_fractions=False):
    """The rows of `labels.boxes.COLUMNS` of an image, and what is wrong with its boxes.

    Args:
        objects: A list of `StoredObject`.
        size: (width, height) of the image.
        numbers: dict from the names of classes to their numbers.
        are_fractions: Whether the sides of the objects are fractions.

    Returns:
        (rows, reasons).

    Example:
        >>> objects = [StoredObject("a.json", (0, 0, 4, 8), name) for name in ("dog", "cow")]
        >>> checked_rows(objects, (8, 8), {"cat": 0, "dog": 1})
        ([(0.0, 0.0, 0.5, 1.0, 1, False, 0.5)], ["a.json (unknown class 'cow')"])
    """
    rows, reasons, seen = [], [], set()
    sides = np.array([*size, *size], "float64")
    for one in objects:
        box = np.array(one.sides) / (1 if are_fractions else sides)
        far = OUTSIDE / sides
        reason = None
        if one.name not in numbers:
            reason = f"unknown class {one.name!r}"
        elif box[0] > box[2] or box[1] > box[3]:
            reason = f"sides in the wrong order: {_in_words(one.sides)}"
        elif (box < -far).any() or (box > 1 + far).any():
            reason = f"outside of its image of {size[0]}×{size[1]} pixels: {_in_words(one.sides)}"
        elif (key := (*one.sides, one.name)) in seen:
            reason = f"the same box and class twice: {_in_words(one.sides)}"
        if reason:
            reasons.append(f"{one.where} ({reason})")
            continue
        seen.add(key)
        area = (box[2] - box[0]) * (box[3] - box[1])
        if one.area is not None:
            area = float(one.area) / (size[0] * size[1])
        rows.append((*box.tolist(), numbers[one.name], one.crowd, float(area)))
    return rows, reasons


def _in_words(sides):
    return "left, top, right, bottom " + ", ".join(f"{side:g}" for side in sides)


def objects_of(value, where):
    """The `StoredObject`s of a struct of lists, or a list of structs, with `bbox` and one of `CATEGORIES`.

    A box is [left, top, width, height], in pixels; `area`, `iscrowd` and `is_crowd` may be there.

    Raises:
        ValueError: for other values, with the place.

    Example:
        >>> [found] = objects_of({"bbox": [[1, 2, 3, 4]], "category": [5]}, "row 0")
        >>> found.sides, found.name
        ((1.0, 2.0, 4.0, 6.0), 5)
    """
    if isinstance(value, list):
        is_struct = all(isinstance(row, dict) for row in value)
        value = {key: [row.get(key) for row in value] for key in value[0]} if is_struct and value else value
    if value in (None, []):
        return []
    keys = value.keys() if isinstance(value, dict) else ()
    classes = next((value[name] for name in CATEGORIES if name in keys), None)
    if "bbox" not in keys or not isinstance(classes, list) or len(classes) != len(value["bbox"] or ()):
        has = ", ".join(keys) or repr(value)[:40]
        raise ValueError(f"{where}: expected bbox and category, a value of each object; got {has}")
    count = len(classes)
    areas = value.get("area") or [None] * count
    crowds = value.get("iscrowd") or value.get("is_crowd") or [False] * count
    rows = zip(value["bbox"], classes, crowds, areas, strict=True)
    return [
        StoredObject(where, with_extent(box, where), name, bool(crowd), area)
        for box, name, crowd, area in rows
    ]


def numbered_rows(value, size, where):
    """The rows of `checked_rows` of an object's value with numbers of classes, as lists.

    Args:
        value, where: As for `objects_of`.
        size: (width, height) of the image; None if it cannot be read.

    Raises:
        ValueError: for a wrong box, with the place.

    Example:
        >>> numbered_rows({"bbox": [[0, 0, 4, 8]], "category": [5]}, (8, 8), "row 0")
        [[0.0, 0.0, 0.5, 1.0, 5, 0, 0.5]]
    """
    objects = objects_of(value, where)
    if size is None:
        raise ValueError(f"{where}: its image cannot be read")
    for one in objects:
        if isinstance(one.name, bool) or not isinstance(one.name, int) or one.name < 0:
            raise ValueError(f"{where}: expected the number of a class; got {one.name!r}")
    rows, reasons = checked_rows(objects, size, {one.name: one.name for one in objects})
    if reasons:
        raise ValueError(f"a box is wrong: {reasons[0]}")
    return [[*row[:5], int(row[5]), row[6]] for row in rows]


def box_class_names(root, values, names=None):
    """The names of classes of `numbered_rows`: those given, the lines of `classes.txt`, or the numbers.

    Args:
        root: The folder, pathlib.Path.
        values: The results of `numbered_rows` of all images.
        names: The names, where they are known.

    Raises:
        ValueError: if there are fewer names than classes.

    Example:
        >>> box_class_names(tmp, [[[0.0, 0.0, 0.5, 1.0, 2, 0, 0.5]]])
        ('0', '1', '2')
    """
    count = max((row[4] for rows in values for row in rows), default=-1) + 1
    if names is None:
        path = root / CLASSES
        is_named = path.is_file()
        names = read_text(path).rstrip().splitlines() if is_named else numbered_names(max(count, 1), path)
    names = tuple(name.strip() for name in names)
    if len(names) < count or len({*names}) < len(names) or "" in names:
        raise ValueError(f"expected the names of at least {count} classes, all different; got {len(names)}")
    return names


def size_of(content):
    """The (width, height) of an encoded image (bytes) in its EXIF orientation; None if it cannot be read.

    >>> size_of(b"no image") is None
    True
    """
    try:
        with Image.open(io.BytesIO(content)) as image:
            is_turned = image.getexif().get(ORIENTATION, 1) >= TRANSPOSED
            return image.size[::-1] if is_turned else image.size
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None
