"""Folders of images and masks."""

import concurrent.futures
import dataclasses
import os
import pathlib

import numpy as np
from PIL import Image
from tqdm import tqdm

from keras_vit.data.files import IMAGE_SUFFIXES, SPLIT_NAMES, file_orientations, visible_files
from keras_vit.data.masks import MaskSamples, read_mask
from keras_vit.data.samples import hold_out_missing
from keras_vit.messages import listed
from keras_vit.preprocessing.image_files import TRANSPOSED
from keras_vit.tasks.segmentation_scores import IGNORE

IMAGES, MASKS = "images", "masks"
CLASSES = "classes.txt"
NO_CLASS = "-"  # stands in classes.txt for a value whose pixels are ignored
LAYOUT = (
    f"{IMAGES}/NAME.jpg with {MASKS}/NAME.png, both perhaps in folders of splits, as {IMAGES}/train and "
    f"{MASKS}/train or as train/{IMAGES} and train/{MASKS}"
)


@dataclasses.dataclass(frozen=True)
class _Mask:
    """What is known of a mask: its (width, height), the values in it, or why it cannot be read."""

    size: tuple[int, int] | None = None
    values: tuple[int, ...] = ()
    reason: str = ""


def load_mask_folder(root, *, on_bad_image="fail", seed=0):
    """Load a folder of images and masks of the same names, in subfolders or not; hidden files are skipped.

    Args:
        root: The folder, a pathlib.Path: images/NAME.jpg (or another kind of image) with masks/NAME.png, or
            both within train, val and test, above or below images and masks. `classes.txt` has a class name
            per line, for the values from 0 on, with "-" for values to ignore; without it the classes are the
            numbers from 0 to the largest in a mask.
        on_bad_image: As of `load_dataset`; it is for images and masks that cannot be read.
        seed: Of the split.

    Returns:
        As `load_folder`.

    Raises:
        ValueError: for another layout, or a mask that is missing, has another size than its image in its EXIF
            orientation, or values without a class; for an unreadable image or mask.

    Example:
        >>> for name in ("images", "masks"):
        ...     (tmp / name).mkdir()
        ...     for number in range(10):
        ...         Image.fromarray(np.eye(8, dtype="uint8")).save(tmp / name / f"{number}.png")
        >>> found = load_mask_folder(tmp)
        >>> found["class_names"], len(found["splits"]["train"])
        (('0', '1'), 7)
    """
    files = [file for in_folder in visible_files(root).values() for file in in_folder]
    found = _read_pairs(root, files)
    names, values = _read_classes(root)
    table = values and values + (IGNORE,) * (256 - len(values))
    used, bad, splits, present = {os.fspath(root / CLASSES)}, [], {}, set()
    checked = {split: _check_pairs(pairs) for split, pairs in found.items()}
    _refuse_other_sizes(row for rows in checked.values() for row in rows)
    for split, rows in checked.items():
        readable = [row for row in rows if row[2] and not row[3].reason]
        bad += [image for image, _, orientation, _ in rows if not orientation]
        bad += [mask for _, mask, _, known in rows if known.reason]
        present.update(*(known.values for _, _, _, known in readable))
        used.update(path for image, mask, *_ in rows for path in (image, mask))
        is_turned = any(orientation > 1 for _, _, orientation, _ in readable)
        splits[split] = MaskSamples(
            tuple(row[0] for row in readable), tuple(row[1] for row in readable), table, exif=is_turned
        )
    if bad and on_bad_image == "fail":
        reasons = {row[1]: row[3].reason for rows in checked.values() for row in rows}
        words = [f"{path} ({reasons[path]})" if reasons.get(path) else path for path in bad]
        raise ValueError(
            f"{len(bad)} image(s) or mask(s) cannot be read: {listed(words)}; remove them or give "
            "--on_bad_image skip"
        )
    if values is None:
        names = tuple(map(str, range(max(present - {IGNORE}, default=0) + 1)))
    else:
        _refuse_other_values(checked, len(values))
    if len(names) < 2:
        raise ValueError(
            f"the masks in {os.fspath(root)!r} have one class only: {names[0]!r}; expected two or more "
            f"values, of which {IGNORE} is no class"
        )
    paths = (os.fspath(root / file) for file in files)
    return {
        "class_names": names,
        "splits": hold_out_missing(splits, seed),
        "bad_images": tuple(bad),
        "ignored_files": tuple(path for path in paths if path not in used),
    }


def _read_pairs(root, files):
    """By split, the paths of images and masks; ValueError if there are none, or a mask is missing."""
    images, masks = ({}, {})
    for file in files:
        for kind, found in ((IMAGES, images), (MASKS, masks)):
            if place := _place(file, kind):
                found.setdefault(place, []).append(file)
    images = {
        place: [f for f in found if f.suffix.lower() in IMAGE_SUFFIXES] for place, found in images.items()
    }
    images = {place: found for place, found in images.items() if found}
    if not images:
        raise ValueError(f"no images and masks in {os.fspath(root)!r}; expected {LAYOUT}")
    pairs, missing = {}, []
    for (split, name), found in sorted(images.items(), key=lambda item: (item[0][0], str(item[0][1]))):
        if len(found) > 1:
            raise ValueError(f"expected one image for each mask; got {', '.join(map(str, found))}")
        own = [file for file in masks.get((split, name), ()) if file.suffix.lower() == ".png"]
        if own:
            pairs.setdefault(split, []).append((os.fspath(root / found[0]), os.fspath(root / own[0])))
        else:
            missing.append(str(found[0]))
    if missing:
        raise ValueError(
            f"{len(missing)} image(s) in {os.fspath(root)!r} have no mask: {listed(missing)}; "
            f"expected {LAYOUT}"
        )
    if "train" not in pairs:
        raise ValueError(f"{os.fspath(root)!r} has no images to train on; it has {', '.join(pairs)}")
    return pairs


def _place(file, kind):
    """The split of a file in a folder of that kind, and its name without the suffix; None elsewhere."""
    parts = file.with_suffix("").parts
    if kind not in parts[:2]:
        return None
    above, below = parts[: parts.index(kind)], parts[parts.index(kind) + 1 :]
    if above:
        split = SPLIT_NAMES.get(above[0].lower())
        return split and (split, pathlib.PurePath(*below))
    if len(below) > 1 and below[0].lower() in SPLIT_NAMES:
        return SPLIT_NAMES[below[0].lower()], pathlib.PurePath(*below[1:])
    return "train", pathlib.PurePath(*below)


def _read_classes(root):
    """The class names, and the class of each value; (None, None) without `classes.txt`."""
    path = root / CLASSES
    if not path.is_file():
        return None, None
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{os.fspath(path)!r} is not a readable text file: {error}") from None
    lines = [line.strip() for line in text.rstrip().splitlines()]
    names = [line for line in lines if line != NO_CLASS]
    if len(lines) > IGNORE or len({*names}) < len(names) or "" in lines or not names:
        raise ValueError(
            f"{os.fspath(path)}: expected up to {IGNORE} lines, each with the name of another class, or "
            f"{NO_CLASS!r} for a value to ignore"
        )
    return tuple(names), tuple(IGNORE if line == NO_CLASS else names.index(line) for line in lines)


def _check_pairs(pairs):
    """For each pair: the paths, the image's EXIF orientation (None: it is unreadable), and the `_Mask`."""
    orientations = file_orientations([image for image, _ in pairs])
    with concurrent.futures.ThreadPoolExecutor() as pool:
        masks = pool.map(_check_mask, [mask for _, mask in pairs])
        masks = [*tqdm(masks, "checking masks", len(pairs), unit="mask", delay=2, disable=None)]
    return [(*pair, orientation, mask) for pair, orientation, mask in zip(pairs, orientations, masks)]


def _check_mask(path):
    try:
        pixels = read_mask(path)
    except ValueError as error:
        return _Mask(reason=str(error))
    values = np.flatnonzero(np.bincount(pixels.ravel(), minlength=256))
    return _Mask(pixels.shape[::-1], tuple(values.tolist()))


def _refuse_other_sizes(rows):
    """Raise ValueError for masks of another size than their images."""
    wrong = []
    for image, mask, orientation, known in rows:
        if orientation and not known.reason:
            with Image.open(image) as opened:
                size = opened.size[::-1] if orientation >= TRANSPOSED else opened.size
            if size != known.size:
                wrong.append(f"{mask} ({_pixels(known.size)}, but its image has {_pixels(size)})")
    if wrong:
        raise ValueError(f"{len(wrong)} mask(s) have another size than their image: {listed(wrong)}")


def _pixels(size):
    return f"{size[0]}×{size[1]} pixels"


def _refuse_other_values(checked, lines):
    """Raise ValueError for masks with values for which `classes.txt` has no line."""
    wrong = []
    for rows in checked.values():
        for _, mask, _, known in rows:
            if other := [value for value in known.values if lines <= value != IGNORE]:
                wrong.append(f"{mask} ({listed(other)})")
    if wrong:
        raise ValueError(
            f"{len(wrong)} mask(s) have values without a class: {listed(wrong)}; {CLASSES} names those from "
            f"0 to {lines - 1}, and {IGNORE} is ignored"
        )
