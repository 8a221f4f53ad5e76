"""Labels and captions that are stored with images, as numbers and texts."""

import itertools
import os

from keras_vit.data.files import CLASSES, numbered_names, read_names
from keras_vit.labels.label_kind import is_float32
from keras_vit.messages import listed

MOST_VALUES = 2**30  # of labels in memory
ROW_VALUES = (0.0, 1.0)  # of a class that an image lacks or has; all labels share these two objects


def parse_text(value, where, noun):
    """A text without spaces around it, or ValueError with the place of the value.

    >>> parse_text(" a daisy ", "a.txt", "a caption")
    'a daisy'
    """
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: expected {noun}; got {value!r}")
    return value.strip()


def parse_numbers(value, where, kind):
    """A label as its kind needs it, or ValueError with the place of the value.

    Args:
        value: A number, a list of numbers, or a text of numbers with spaces between them.
        where: The place.
        kind: A `LabelKind`.

    Returns:
        An int for class ids; for several labels a tuple of the numbers of classes; else a tuple of targets.

    Example:
        >>> from keras_vit.labels import label_kind
        >>> parse_numbers("7.0", "a.cls", label_kind("single_label"))
        7
        >>> parse_numbers([0.5, 2], "a.json", label_kind("regression"))
        (0.5, 2.0)
    """
    parts = value.split() if isinstance(value, str) else value if isinstance(value, list) else [value]
    number = _whole if kind.has_classes else float
    try:
        numbers = tuple(number(word) for word in parts)
        fits = not any(isinstance(word, bool) or number(word) != float(word) for word in parts)
    except (TypeError, ValueError, OverflowError):
        fits = False
    if fits and kind.is_class_id:
        fits = len(numbers) == 1
    elif fits and kind.has_classes:
        fits = min(numbers, default=0) >= 0
    elif fits:
        fits = bool(numbers) and all(map(is_float32, numbers))
    if not fits:
        expected = (
            "an integer" if kind.is_class_id else "numbers of classes" if kind.has_classes else "numbers"
        )
        raise ValueError(f"{where}: expected {expected} as label; got {value!r}")
    return numbers[0] if kind.is_class_id else numbers


def _whole(word):
    """The int that a number or a text is, of which "1.0" is 1; ValueError for fractions."""
    try:
        return int(word)
    except ValueError:
        if not float(word).is_integer():
            raise
        return int(float(word))


def is_unknown(value):
    """Whether a result of `parse_numbers` is that of a sample of an unknown class.

    >>> is_unknown(-1), is_unknown((-1.0,))
    (True, False)
    """
    return isinstance(value, int) and value < 0


def what_is_wrong(value):
    """What is wrong with a stored value, a list of str, of a value like {"wrong": ["no such class"]}.

    >>> what_is_wrong({"wrong": ["no such class"]}), what_is_wrong(7)
    (['no such class'], [])
    """
    return value["wrong"] if isinstance(value, dict) else []


def label_maker(root, values, kind, names=None):
    """The names of the classes or targets of values, and a function from a value to the label of a sample.

    Args:
        root: The folder, whose `classes.txt` may have a line for the name of each class or target.
        values: All results of `parse_numbers`.
        kind: Their `LabelKind`.
        names: The names, where they are known.

    Raises:
        ValueError: if there are fewer than two classes, fewer names than classes, or different numbers of
            targets.
    """
    if not kind.has_classes:
        return _target_names(root, values), tuple
    names = _class_names(root, values, names)
    if kind.is_class_id:
        return names, int
    if len(names) * len(values) > MOST_VALUES:
        raise ValueError(
            f"expected at most {MOST_VALUES:,} values of labels, one for each class of each image; got "
            f"{len(values)} images of {len(names)} classes"
        )
    return names, lambda own: tuple(ROW_VALUES[number in own] for number in range(len(names)))


def _class_names(root, values, names):
    """The names of classes by their numbers: those given, the lines of `classes.txt`, or the numbers."""
    numbers = itertools.chain.from_iterable(
        value if isinstance(value, tuple) else (value,) for value in values
    )
    count, file = max(numbers, default=-1) + 1, root / CLASSES
    if names is None:
        names = read_names(file) or numbered_names(count, file)
    if len({*names}) < len(names) or "" in names or len(names) < max(count, 2):
        raise ValueError(
            f"expected the names of at least {max(count, 2)} classes, each on a line of "
            f"{os.fspath(file)!r}; got {len(names)}"
        )
    return names


def _target_names(root, values):
    """The names of targets: the lines of `classes.txt`, if they are as many, or numbered ones."""
    lengths = sorted({len(value) for value in values})
    if len(lengths) > 1:
        raise ValueError(
            f"images in {os.fspath(root)!r} have different numbers of targets: {listed(lengths)}"
        )
    names = read_names(root / CLASSES)
    if [len({*names} - {""})] == [len(names)] == lengths:
        return names
    return tuple(f"target_{i}" for i in range(*lengths))
