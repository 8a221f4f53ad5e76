"""Folders of images and masks."""

import collections
import concurrent.futures
import dataclasses
import functools
import os
import re

import numpy as np

from keras_vit.data.files import CLASSES, file_headers, read_text, refuse_unreadable
from keras_vit.data.folder_splits import split_fields
from keras_vit.data.image_headers import Header
from keras_vit.data.matched_files import read_pairs, refuse_other_sizes
from keras_vit.labels import IGNORE
from keras_vit.messages import listed
from keras_vit.progress import Progress
from keras_vit.tasks.segmentation.samples import MaskSamples, read_mask

MASKS = "masks"
NO_CLASS = "-"  # stands in classes.txt for a value whose pixels are ignored


@dataclasses.dataclass(frozen=True)
class _Pair:
    """An image and its mask.

    Args:
        split, image, mask: The split, and the paths.
        header: Of the image; None if it cannot be read.
        size: The mask's (width, height).
        pixels: The pixel count of each of its values.
        reason: Why the mask cannot be read.
    """

    split: str
    image: str
    mask: str
    header: Header | None
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
    if on_bad_image == "keep":
        raise ValueError("on_bad_image='keep' is for images without masks, which are all read")
    files = [folder / name for folder, names in files.items() for name in names]
    paths, stated_by = read_pairs(root, files, MASKS, (".png",), "mask")
    classes = read_classes(root)
    pairs = _check_pairs(paths, classes.colors, decode=on_bad_image == "skip")
    readable = [pair for pair in pairs if pair.header and not pair.reason]
    refuse_other_sizes([(pair.header.size, pair.mask, pair.size) for pair in readable], "mask")
    undecoded = [pair.image for pair in pairs if not pair.header]
    reasons = {pair.mask: pair.reason for pair in pairs if pair.reason}
    bad_images = refuse_unreadable(undecoded, on_bad_image, "image(s) or mask(s)", reasons)
    _refuse_other_values(pairs, classes)
    pixels, splits = collections.Counter(), {}
    for pair in readable:
        pixels.update(pair.pixels)
    for split in {pair.split for pair in pairs}:
        pairs_of_split = [pair for pair in readable if pair.split == split]
        images, masks = (tuple(getattr(pair, name) for pair in pairs_of_split) for name in ("image", "mask"))
        is_turned = any(pair.header.orientation > 1 for pair in pairs_of_split)
        splits[split] = MaskSamples(images, masks, classes.table, classes.colors, exif=is_turned)
    _refuse_one_class(root, pixels, classes)
    names = classes.names or tuple(map(str, range(max({*pixels} - {IGNORE}) + 1)))
    fields = {"class_names": names, **split_fields(splits, stated_by, seed), "bad_images": bad_images}
    used = {os.fspath(root / CLASSES), *(path for pair in pairs for path in (pair.image, pair.mask))}
    return used, fields


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


def _check_pairs(paths, colors, decode):
    """A `_Pair` for each of (split, image, mask)."""
    headers = file_headers([image for _, image, _ in paths], decode)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        checked = pool.map(functools.partial(_check_mask, colors=colors), paths, headers)
        return [*Progress(checked, "checking masks", total=len(paths), unit="mask")]


def _check_mask(paths, header, colors):
    """The `_Pair` of (split, image, mask) and the image's header."""
    try:
        mask = read_mask(paths[2], colors=colors)
    except ValueError as error:
        return _Pair(*paths, header, reason=str(error))
    counts = enumerate(np.bincount(mask.ravel()).tolist())
    return _Pair(*paths, header, mask.shape[::-1], {value: count for value, count in counts if count})


def _refuse_other_values(pairs, classes):
    """Raise ValueError for masks with values for which `classes.txt` has no line."""
    known = classes.values
    unknown = {pair.mask: sorted(pair.pixels.keys() - known) for pair in pairs}
    wrong = [f"{mask} ({listed(values)})" for mask, values in unknown.items() if values]
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
