"""Folders of images and masks."""

import collections
import dataclasses
import functools
import os
import re

import numpy as np

from keras_vit.data.files import CLASSES, read_text
from keras_vit.data.folder_splits import split_fields
from keras_vit.data.matched_files import read_maps, read_pairs
from keras_vit.labels import IGNORE
from keras_vit.messages import listed
from keras_vit.tasks.segmentation.samples import MaskSamples, read_mask

MASKS = "masks"
NO_CLASS = "-"  # stands in classes.txt for a value whose pixels are ignored


@dataclasses.dataclass(frozen=True)
class _Mask:
    """A mask: its (width, height), the pixel count of each of its values, and why it cannot be read."""

    size: tuple[int, int] | None = None
    pixels: dict[int, int] = dataclasses.field(default_factory=dict)
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class _Classes:
    """The class names and the classes of mask values, of `classes.txt` if there is one.

    Args:
        names: The class names; None: the numbers from 0 to the largest value.
        table: As the values of `MaskReader`.
        colors: The color of each line of `classes.txt`, whose number is then a value; None: of masks without
            colors.
    """

    names: tuple[str, ...] | None = None
    table: tuple[int | None, ...] | None = None
    colors: tuple[int, ...] | None = None

    @property
    def values(self):
        """The values that may be in a mask."""
        table = self.table or range(IGNORE + 1)
        return {value for value, number in enumerate(table) if number is not None}


def load_mask_folder(root, files, *, on_bad_image="fail", seed=0):
    """Load a folder of images and masks of the same names, in subfolders or not.

    Args:
        root: The folder, a pathlib.Path: images/NAME.jpg (or another kind of image) with masks/NAME.png, or
            both within train, val and test, above or below images and masks. `classes.txt` has a class name
            per line, for the values from 0 on, with "-" for values to ignore; or on each line a name, a tab
            and its value (0 to 255) or, for masks in color, its color (#rrggbb). Without it the classes are
            the numbers from 0 to the largest in a mask. 255 is ignored unless a line has this value.
        files: As for `visible_files`.
        on_bad_image: As for `load_dataset`; it is for images and masks that cannot be read.
        seed: Of the split.

    Returns:
        (the paths of the files that are used, fields of a `Dataset`).

    Raises:
        ValueError: for another layout, or a mask that is missing, has another size than its image in its EXIF
            orientation, or values without a class; for an unreadable image or mask; if fewer than two classes
            have pixels.

    Example:
        >>> from PIL import Image
        >>> for name in ("images", "masks"):
        ...     (tmp / name).mkdir()
        ...     for number in range(10):
        ...         Image.fromarray(np.eye(8, dtype="uint8")).save(tmp / name / f"{number}.png")
        >>> _, found = load_mask_folder(tmp, keras_vit.data.files.visible_files(tmp))
        >>> found["class_names"], len(found["splits"]["train"])
        (('0', '1'), 7)
    """
    files = [folder / name for folder, names in files.items() for name in names]
    pairs, stated_by = read_pairs(root, files, MASKS, (".png",), "mask")
    classes = read_classes(root)
    check = functools.partial(_check, colors=classes.colors)
    masks, by_split, bad_images = read_maps(pairs, check, "mask", on_bad_image)
    _refuse_other_values(masks, classes)
    splits = {
        split: MaskSamples(*files[:2], classes.table, classes.colors, files[2])
        for split, files in by_split.items()
    }
    pixels = collections.Counter()
    for mask in masks.values():
        pixels.update(mask.pixels)
    _refuse_one_class(root, pixels, classes)
    names = classes.names or tuple(map(str, range(max({*pixels} - {IGNORE}) + 1)))
    fields = {"class_names": names, **split_fields(splits, stated_by, seed), "bad_images": bad_images}
    return {os.fspath(root / CLASSES), *(path for pair in pairs for path in pair[1:])}, fields


def read_classes(root):
    """The `_Classes` of `classes.txt`, or those without it."""
    path = root / CLASSES
    if not path.is_file():
        return _Classes()
    lines = [[cell.strip() for cell in line.split("\t")] for line in read_text(path).rstrip().split("\n")]
    names = [line[0] for line in lines if line[0] != NO_CLASS]
    keys = [line[1] if len(line) == 2 else None for line in lines]
    values = [number if key is None else _parse_key(key) for number, key in enumerate(keys)]
    kinds = {key and key.startswith("#") for key in keys}  # None: no key; False: a value; True: a color
    if not _is_table(lines, names, values, kinds):
        raise ValueError(
            f"{os.fspath(path)}: expected up to {IGNORE} lines NAME, NAME<tab>0 to {IGNORE}, or "
            f"NAME<tab>#ff0000, with {NO_CLASS!r} for ignored pixels, and no name twice; got "
            f"{listed(map('<tab>'.join, lines))}"
        )
    colors = tuple(values) if True in kinds else None
    values = range(len(lines)) if colors else values
    table = [*[None] * IGNORE, IGNORE]
    for value, (name, *_) in zip(values, lines):
        table[value] = IGNORE if name == NO_CLASS else names.index(name)
    return _Classes(tuple(names), tuple(table), colors)


def _is_table(lines, names, values, kinds):
    """Whether the cells of the lines of `classes.txt` name classes, each once."""
    return (
        len(lines) <= IGNORE + (None not in kinds)
        and 0 < len(names) <= IGNORE
        and all(len(line) <= 2 and line[0] for line in lines)
        and len({*names}) == len(names)
        and len({*values}) == len(values)
        and None not in values
        and len(kinds) == 1
    )


def read_named_classes(root, noun):
    """As `read_classes`, of masks in files of another kind, whose values are not read before training.

    Raises:
        ValueError: if there is no `classes.txt`.
    """
    classes = read_classes(root)
    if classes.names is None:
        raise ValueError(f"masks in {noun} files need {os.fspath(root / CLASSES)!r}, a class name a line")
    return classes


def _parse_key(key):
    """The value of a class, or its color as a number; None for other texts."""
    if re.fullmatch("#[0-9a-fA-F]{6}", key):
        return int(key[1:], 16)
    return int(key) if re.fullmatch("[0-9]{1,3}", key) and int(key) <= IGNORE else None


def _check(path, colors):
    """The `_Mask` of a file."""
    try:
        mask = read_mask(path, colors=colors)
    except ValueError as error:
        return _Mask(reason=str(error))
    counts = enumerate(np.bincount(mask.ravel()).tolist())
    return _Mask(mask.shape[::-1], {value: count for value, count in counts if count})


def _refuse_other_values(masks, classes):
    """Raise ValueError for masks with values for which `classes.txt` has no line."""
    known = classes.values
    unknown = {path: sorted(mask.pixels.keys() - known) for path, mask in masks.items()}
    wrong = [f"{path} ({listed(values)})" for path, values in unknown.items() if values]
    if wrong:
        named = sorted(known - {IGNORE})
        expected = f"from 0 to {named[-1]}" if named == [*range(len(named))] else listed(named)
        raise ValueError(
            f"{len(wrong)} mask(s) have values without a class: {listed(wrong)}; {CLASSES} names those "
            f"{expected}, and {IGNORE} is ignored"
        )


def _refuse_one_class(root, pixels, classes):
    """Raise ValueError if fewer than two classes have pixels, as in binary masks of 0 and 255."""
    table = classes.table or range(IGNORE + 1)
    if len({table[value] for value in pixels} - {IGNORE}) > 1:
        return
    counts = [
        f"{count:,} of value {value}{' (ignored)' * (table[value] == IGNORE)}"
        for value, count in sorted(pixels.items())
    ]
    advice = f"; if {IGNORE} is a class, write a name, a tab and a value on each line of {CLASSES}, such as "
    raise ValueError(
        f"the masks in {os.fspath(root)!r} have fewer than two classes: their pixels are {listed(counts)}"
        + (advice + f"'object<TAB>{IGNORE}'") * (IGNORE in pixels and table[IGNORE] == IGNORE)
    )
