"""Boxes that are stored with images, as rows of `box_rows.COLUMNS`; what is wrong with them is named."""

import dataclasses
import math

import numpy as np

from keras_vit.data.files import CLASSES, numbered_names, read_names
from keras_vit.messages import article
from keras_vit.rules import number

OUTSIDE = 1.5  # pixels by which a box may end outside its image, as rounded ones do
CROWDS = dict.fromkeys(("0", "0.0", "false", ""), False) | dict.fromkeys(("1", "1.0", "true"), True)
CATEGORIES = ("category", "categories", "category_id", "label")  # names of the classes of objects


@dataclasses.dataclass
class StoredObject:
    """An object in a file of labels.

    Args:
        where: Its place, for messages.
        sides: Left, top, right and bottom: pixels, or fractions of the image's sides; None: the whole image.
        name: Of its class, a str, or its number.
        crowd: Whether it is a crowd, or too difficult to count.
        area: Its own area in pixels; None for that of the box.

    Raises:
        ValueError: for an area that is no finite number from 0 on.
    """

    where: str
    sides: tuple[float, float, float, float] | None
    name: str | int
    crowd: bool = False
    area: float | None = None

    def __post_init__(self):
        try:
            self.area = None if self.area is None else float(self.area)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"{self.where}: expected an area; got {self.area!r:.40}") from None
        if self.area is not None and not 0 <= self.area < math.inf:
            raise ValueError(f"{self.where}: expected an area from 0 on; got {self.area:g}")


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
        numbers = [float(value) for value in values] if isinstance(values, list | tuple) else []
    except (TypeError, ValueError, OverflowError):
        numbers = []
    if len(numbers) != count or not all(map(math.isfinite, numbers)):
        raise ValueError(f"{where}: expected {count} numbers of a box; got {values!r:.80}")
    return numbers


def class_of(value, where, expected="the number or name of a class"):
    """A number or a name that identifies something, of which 1.0 is 1.

    Raises:
        ValueError: for a value of another type, with the place.

    Example:
        >>> class_of(1.0, "a.json"), class_of("cat", "a.json")
        (1, 'cat')
        >>> class_of([1], "a.json, image 0", "an id")
        Traceback (most recent call last):
        ValueError: a.json, image 0: expected an id; got a list
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{where}: expected {expected}; got {article(type(value).__name__)}")
    if value == "":
        raise ValueError(f"{where}: expected {expected}; got ''")
    return value


def is_crowd(value, where):
    """Whether an object is a crowd: 0, 1, false, true or these as text; nothing is 0.

    Raises:
        ValueError: for another value, with the place.

    Example:
        >>> is_crowd("0", "a.json"), is_crowd(1, "a.json"), is_crowd(None, "a.json")
        (False, True, False)
    """
    text = (
        str(value).strip().lower() if isinstance(value, str | int | float) else ("" if value is None else "?")
    )
    if text not in CROWDS:
        raise ValueError(f"{where}: expected 0 or 1 for whether an object is a crowd; got {value!r:.40}")
    return CROWDS[text]


def checked_rows(objects, size, numbers, are_fractions=False):
    """The rows of `labels.box_rows.COLUMNS` of an image, and what is wrong with its boxes.

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
            unit = "; expected parts of the image, from 0 to 1" if are_fractions else ""
            reason = f"outside of its image of {size[0]}×{size[1]} pixels: {_in_words(one.sides)}{unit}"
        elif (key := (*one.sides, one.name)) in seen:
            reason = f"the same box and class twice: {_in_words(one.sides)}"
        if reason:
            reasons.append(f"{one.where} ({reason})")
            continue
        seen.add(key)
        area = (box[2] - box[0]) * (box[3] - box[1])
        if one.area is not None:
            area = one.area / (size[0] * size[1])
        rows.append((*box.tolist(), numbers[one.name], one.crowd, float(area)))
    return rows, reasons


def _in_words(sides):
    return "left, top, right, bottom " + ", ".join(f"{side:g}" for side in sides)


def _as_columns(value):
    """A list of structs as a struct of lists; any other value as it is."""
    if not (isinstance(value, list) and value and all(isinstance(row, dict) for row in value)):
        return value
    keys = dict.fromkeys(key for row in value for key in row)
    return {key: [row.get(key) for row in value] for key in keys}


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
    value = _as_columns(value)
    if value in (None, []):
        return []
    keys = value.keys() if isinstance(value, dict) else ()
    classes = next((value[name] for name in CATEGORIES if name in keys), None)
    if "bbox" not in keys or not isinstance(classes, list):
        has = ", ".join(keys) or repr(value)[:40]
        raise ValueError(f"{where}: expected bbox and category, a value of each object; got {has}")
    count = len(classes)
    columns = {
        "bbox": value["bbox"] or [],
        "area": value.get("area") or [None] * count,
        "iscrowd": value.get("iscrowd") or value.get("is_crowd") or [False] * count,
    }
    for name, column in columns.items():
        if not isinstance(column, list) or len(column) != count:
            raise ValueError(
                f"{where}: expected {name} and category, a value of each object; got {column!r:.40}"
            )
    return [
        StoredObject(where, with_extent(box, where), class_of(name, where), is_crowd(crowd, where), area)
        for name, box, area, crowd in zip(classes, *columns.values())
    ]


def numbered_rows(value, size, where):
    """The rows of `checked_rows` of an object's value with numbers of classes, as lists, or what is wrong.

    Args:
        value, where: As for `objects_of`.
        size: (width, height) of the image; None if it cannot be read.

    Returns:
        A list of lists; {"wrong": reasons} of an image that cannot be read, and for wrong boxes.

    Raises:
        ValueError: for other values than boxes with numbers of classes, with the place.

    Example:
        >>> numbered_rows({"bbox": [[0, 0, 4, 8]], "category": [5]}, (8, 8), "row 0")
        [[0.0, 0.0, 0.5, 1.0, 5, 0, 0.5]]
    """
    objects = objects_of(value, where)
    if size is None:
        return {"wrong": [f"{where} (its image cannot be read)"]}
    if not all(number(above=0).accepts(side) and side == int(side) for side in size):
        raise ValueError(f"{where}: expected the width and height of the image in pixels; got {size!r:.80}")
    for one in objects:
        if not isinstance(one.name, int) or one.name < 0:
            raise ValueError(f"{where}: expected the number of a class; got {one.name!r}")
    rows, reasons = checked_rows(objects, size, {one.name: one.name for one in objects})
    if reasons:
        return {"wrong": reasons}
    return [[*row[:5], int(row[5]), row[6]] for row in rows]


def box_class_names(root, count, names=None):
    """The names of classes of boxes: those given, the lines of `classes.txt`, or the numbers.

    Args:
        root: The folder, pathlib.Path.
        count: The number of classes, at least.
        names: The names, where they are known.

    Raises:
        ValueError: if there are fewer names than classes, or equal ones.

    Example:
        >>> box_class_names(tmp, 3)
        ('0', '1', '2')
    """
    if names is None:
        path = root / CLASSES
        names = read_names(path) or numbered_names(max(count, 1), path)
    names = tuple(name.strip() for name in names)
    if len(names) < count or len({*names}) < len(names) or "" in names:
        raise ValueError(f"expected the names of at least {count} classes, all different; got {len(names)}")
    return names
