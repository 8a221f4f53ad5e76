"""Data sets by name: `digits`, `folder:PATH`, `tfds:NAME` and `vtab:TASK`."""

import dataclasses
import io
import pathlib
from typing import Any

import numpy as np

from keras_vit.data.folder import IMAGE_SUFFIXES as IMAGE_SUFFIXES
from keras_vit.data.folder import load_folder
from keras_vit.data.samples import Samples, hold_out
from keras_vit.data.tfds import SPLITS, load_tfds
from keras_vit.data.vtab import load_vtab
from keras_vit.messages import listed

ON_BAD_IMAGE = ("fail", "skip")
TASKS = ("single_label", "multi_label", "regression")
NOUNS = {
    "single_label": ("class", "classes"),
    "multi_label": ("label", "labels"),
    "regression": ("target", "targets"),
}
NAMED = 10  # classes that a summary names


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A data set: its name, its classes, and the samples of each split.

    Args:
        name: As given to `load_dataset`.
        class_names: One name per class, in the order of the labels; for regression one per number.
        splits: Samples by split: "train", "validation" and "test".
        bad_images: Paths of images that cannot be read and were left out.
        task: "single_label" (a label is a class number, int32), "multi_label" (float32 (classes,) of 0 and
            1) or "regression" (float32 (numbers,)).
        ignored_files: Paths of a folder's other files, hidden ones left out.
        empty_folders: Paths of its sub-folders without images.
        version: The name and version of a data set of TensorFlow Datasets; None for others.

    Example:
        >>> print(load_dataset("digits").summary())
        10 classes (0, 1, 2, 3, 4, 5, 6, 7, 8, 9): 1302 train, 140 validation, 355 test
    """

    name: str
    class_names: tuple[str, ...]
    splits: dict[str, Any]
    bad_images: tuple[str, ...] = ()
    task: str = "single_label"
    ignored_files: tuple[str, ...] = ()
    empty_folders: tuple[str, ...] = ()
    version: str | None = None

    def summary(self):
        """The classes, the sample count of each split, and what was left out, in one line.

        >>> splits = {"test": load_dataset("digits").split("test")}
        >>> names = ("daisy", "rose", "tulip")
        >>> Dataset("folder:flowers", names, splits, ignored_files=("flowers/rose/1.xcf",)).summary()
        '3 classes (daisy, rose, tulip): 355 test; 1 file ignored (.xcf)'
        """
        splits = ", ".join(f"{len(samples)} {split}" for split, samples in self.splits.items())
        suffixes = sorted(
            {path.suffix.lower() or path.name for path in map(pathlib.PurePath, self.ignored_files)}
        )
        left_out = (
            (self.bad_images, "unreadable image", "left out", _file_names(self.bad_images)),
            (self.ignored_files, "file", "ignored", suffixes),
            (self.empty_folders, "folder", "without images", _file_names(self.empty_folders)),
        )
        parts = [
            f"{len(paths)} {noun}{'s' * (len(paths) > 1)} {state} ({listed(words)})"
            for paths, noun, state, words in left_out
            if paths
        ]
        if untrained := self._untrained():
            noun = NOUNS[self.task][len(untrained) > 1]
            parts.append(f"{len(untrained)} {noun} without training images ({listed(untrained)})")
        noun = NOUNS[self.task][len(self.class_names) > 1]
        names = listed(self.class_names, NAMED)
        return "; ".join([f"{len(self.class_names)} {noun} ({names}): {splits}", *parts])

    def _untrained(self):
        """The classes that no training image is known to have."""
        labels = self.splits["train"].labels if "train" in self.splits else None
        if self.task != "single_label" or labels is None:
            return []
        seen = {*labels}
        return [name for number, name in enumerate(self.class_names) if number not in seen]

    def split(self, name):
        if name not in self.splits:
            raise ValueError(f"split {name!r} is unknown; {self.name} has {', '.join(self.splits)}")
        return self.splits[name]


def load_dataset(name, seed=0, on_bad_image="fail", *, task="single_label", data_dir=None):
    """A data set by its name.

    Args:
        name: One of
            "digits": scikit-learn's 1797 scanned digits of 8×8 pixels, no download.
            "folder:PATH": PATH/CLASS/*, or PATH/{train,val,test}/CLASS/* (val and test may be missing; val
            may be valid or validation, and capitals do not count), or PATH/labels.csv with the columns
            `file` or `filename`, `label` and `split` (train, val or test; may be missing). For other tasks
            than "single_label" the table has a column for each class (0 or 1) or each number to predict in
            place of `label`. Images are JPEG, PNG, BMP of 8, 24 or 32 bits a pixel, GIF, WebP (not with
            TensorFlow 2.19) and TIFF, and are read in their EXIF orientation.
            "tfds:NAME", "tfds:NAME/config", "tfds:NAME:version": of TensorFlow Datasets, downloaded if it
            is not there. The splits of the official presets (`keras_vit.data.tfds.PRESETS`), or its own.
            "vtab:TASK": one of the 19 tasks of VTAB-1k (`keras_vit.data.vtab.TASKS`).
        seed: Which split is drawn where a folder (or digits) has none of its own.
        on_bad_image: What an unreadable image of a folder does: "fail" names it and stops, "skip"
            leaves it out and lists it in `bad_images`.
        task: "single_label", "multi_label" or "regression".
        data_dir: For "tfds:" and "vtab:", the folder of prepared data sets; None for the default.

    Returns:
        Dataset. Where digits or a folder have no test split, a fifth of each class is held out for it;
        where there is no validation split, a tenth of each class of the training split.

    Raises:
        ValueError: for an unknown data set, one without labels of the task, a folder without images, with
            one class only or with too few to split, or an unreadable image.

    Example:
        >>> {split: len(samples) for split, samples in load_dataset("digits").splits.items()}
        {'train': 1302, 'validation': 140, 'test': 355}

    Source: UCI's optical recognition of handwritten digits, as scikit-learn bundles it; the folder
    layout of `vit_jax/input_pipeline.py`; `big_vision/configs/transfer.py`.
    """
    if on_bad_image not in ON_BAD_IMAGE:
        raise ValueError(f"on_bad_image {on_bad_image!r} is unknown; choose one of {ON_BAD_IMAGE}")
    if task not in TASKS:
        raise ValueError(f"task {task!r} is unknown; choose one of {TASKS}")
    kind, _, which = name.partition(":")
    if kind == "folder" and which:
        names, splits, left_out = load_folder(folder_of(name), task, on_bad_image)
        return Dataset(name, names, _split(name, splits, seed), task=task, **left_out)
    if kind == "tfds" and which:
        names, splits, version = load_tfds(which, task, data_dir)
        return Dataset(name, names, splits, task=task, version=version)
    if name != "digits" and not (kind == "vtab" and which):
        raise ValueError(
            f"data set {name!r} is unknown; give 'digits', 'folder:PATH', 'tfds:NAME' or 'vtab:TASK'"
        )
    if task != "single_label":
        raise ValueError(f"{name} has one label an image; task {task!r} needs another data set")
    if kind == "vtab":
        names, splits, version = load_vtab(which, data_dir)
        return Dataset(name, names, splits, version=version)
    names, splits = _digits()
    return Dataset(name, names, _split(name, splits, seed))


def folder_of(name):
    """The folder of a data set of images in files; None of another.

    >>> folder_of("folder:flowers"), folder_of("digits")
    (PosixPath('flowers'), None)
    """
    kind, _, which = name.partition(":")
    return pathlib.Path(which).expanduser() if kind == "folder" else None


def title_of(name):
    """A data set's name as others may read it: of a folder, its own name without where it is.

    >>> title_of("folder:/home/me/flowers"), title_of("tfds:oxford_iiit_pet"), title_of("digits")
    ('flowers', 'oxford_iiit_pet', 'digits')
    """
    kind, _, which = name.partition(":")
    return pathlib.PurePath(which).name if kind == "folder" else which or name


def _file_names(paths):
    return [pathlib.PurePath(path).name for path in paths]


def _digits():
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    encoded = []
    for scan in digits.images:  # 8×8 numbers from 0 to 16
        file = io.BytesIO()
        Image.fromarray(np.round(scan * 255 / 16).astype("uint8")).save(file, "PNG")
        encoded.append(file.getvalue())
    names = tuple(str(digit) for digit in digits.target_names)
    labels = tuple(int(label) for label in digits.target)
    return names, {"train": Samples(tuple(encoded), labels, exif=False)}


def _split(name, splits, seed):
    """Hold out a test and a validation split, class by class, where there is none."""
    splits = dict(splits)
    if "test" not in splits:
        splits["train"], splits["test"] = hold_out(splits["train"], 5, [seed, 0])
    if "validation" not in splits:
        splits["train"], splits["validation"] = hold_out(splits["train"], 10, [seed, 1])
    splits = {split: splits[split] for split in SPLITS}
    for split, samples in splits.items():
        if not len(samples):
            raise ValueError(f"{name!r} has no images left for the {split} split; give more of each class")
    return splits
