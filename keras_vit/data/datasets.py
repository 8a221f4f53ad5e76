"""Data sets by name: `digits` and `folder:PATH`, as lists of encoded images and labels."""

import concurrent.futures
import dataclasses
import io
import os
import pathlib

import numpy as np
from tqdm import tqdm

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")
SPLITS = ("train", "validation", "test")
SPLIT_FOLDERS = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}
ON_BAD_IMAGE = ("fail", "skip")


@dataclasses.dataclass(frozen=True)
class Samples:
    """Encoded images and their labels.

    Args:
        images: Paths (str) or file contents (bytes), all of one kind.
        labels: Class numbers, as many.
    """

    images: tuple[str | bytes, ...]
    labels: tuple[int, ...]

    def __len__(self):
        return len(self.images)

    def take(self, indices):
        return Samples(*(tuple(values[i] for i in indices) for values in (self.images, self.labels)))


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A data set: its name, its classes, and the samples of each split.

    Args:
        name: As given to `load_dataset`.
        class_names: One name per class, in the order of the labels.
        splits: Samples by split: "train", "validation" and "test".
        bad_images: Paths of images that cannot be read and were left out.
    """

    name: str
    class_names: tuple[str, ...]
    splits: dict[str, Samples]
    bad_images: tuple[str, ...] = ()

    def split(self, name):
        if name not in self.splits:
            raise ValueError(f"split {name!r} is unknown; {self.name} has {', '.join(self.splits)}")
        return self.splits[name]


def load_dataset(name, seed=0, on_bad_image="fail"):
    """A data set by its name.

    Args:
        name: "digits" (scikit-learn's 1797 scanned digits of 8×8 pixels, no download), or
            "folder:PATH" with PATH/{train,val,test}/CLASS/* (val and test may be missing) or
            PATH/CLASS/*; JPEG, PNG, BMP of 24 bits a pixel, GIF, WebP (not with TensorFlow 2.19).
        seed: Which split is drawn where the data set has none of its own.
        on_bad_image: What an unreadable image of a folder does: "fail" names it and stops, "skip"
            leaves it out and lists it in `bad_images`.

    Returns:
        Dataset. Where there is no test split, a fifth of each class is held out for it; where there
        is no validation split, a tenth of each class of the training split.

    Raises:
        ValueError: for an unknown data set, a folder without images, with one class only or with too
            few to split, or an unreadable image.

    Example:
        >>> {split: len(samples) for split, samples in load_dataset("digits").splits.items()}
        {'train': 1302, 'validation': 140, 'test': 355}

    Source: UCI's optical recognition of handwritten digits, as scikit-learn bundles it; the folder
    layout of `vit_jax/input_pipeline.py`.
    """
    if on_bad_image not in ON_BAD_IMAGE:
        raise ValueError(f"on_bad_image {on_bad_image!r} is unknown; choose one of {ON_BAD_IMAGE}")
    if name == "digits":
        return _split(name, *_digits(), seed)
    kind, _, path = name.partition(":")
    if kind != "folder" or not path:
        raise ValueError(f"data set {name!r} is unknown; give 'digits' or 'folder:PATH'")
    return _folder(name, pathlib.Path(path).expanduser(), seed, on_bad_image)


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
    return names, {"train": Samples(tuple(encoded), tuple(int(label) for label in digits.target))}


def _folder(name, root, seed, on_bad_image):
    if not root.is_dir():
        raise ValueError(f"no such folder: {os.fspath(root)!r}")
    roots = {split: root / folder for folder, split in SPLIT_FOLDERS.items() if (root / folder).is_dir()}
    if "train" not in roots:
        roots = {"train": root}
    found = {split: _images_by_class(folder) for split, folder in roots.items()}
    class_names = tuple(sorted(set().union(*found.values())))
    if not class_names:
        raise ValueError(
            f"no images in {os.fspath(root)!r}; wanted CLASS/*.jpg (or {', '.join(IMAGE_SUFFIXES[1:])}), "
            "or train/CLASS/* and test/CLASS/*"
        )
    if len(class_names) < 2:
        raise ValueError(f"{os.fspath(root)!r} holds images of one class only: {class_names[0]!r}")
    splits, bad = {}, []
    for split, by_class in found.items():
        paths = [(path, class_names.index(label)) for label, paths in by_class.items() for path in paths]
        unreadable = set(unreadable_images([path for path, _ in paths]))
        bad += sorted(unreadable)
        readable = [(path, label) for path, label in paths if path not in unreadable]
        splits[split] = Samples(tuple(path for path, _ in readable), tuple(label for _, label in readable))
    if bad and on_bad_image == "fail":
        raise ValueError(
            f"{len(bad)} image(s) cannot be read: {', '.join(bad[:5])}{', …' * (len(bad) > 5)}; "
            "remove them or give --on_bad_image skip"
        )
    return _split(name, class_names, splits, seed, tuple(bad))


def _images_by_class(folder):
    """Paths of the images below each sub-folder, both sorted."""
    found = {}
    for directory in sorted(path for path in folder.iterdir() if path.is_dir()):
        paths = sorted(os.fspath(p) for p in directory.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
        if paths:
            found[directory.name] = paths
    return found


def unreadable_images(paths):
    """Those of the image files that TensorFlow's decoder, which will read them, cannot decode."""
    from keras_vit.data.images import is_readable

    with concurrent.futures.ThreadPoolExecutor() as pool:
        checked = zip(paths, pool.map(is_readable, paths))
        bar = tqdm(checked, "checking images", len(paths), unit="image", delay=2, disable=None)
        return [path for path, fine in bar if not fine]


def _split(name, class_names, splits, seed, bad_images=()):
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
    return Dataset(name, class_names, splits, tuple(bad_images))


def hold_out(samples, share, seed):
    """Draw one in `share` of each class, at least one where it has two: (the rest, the drawn)."""
    labels = np.asarray(samples.labels)
    held = []
    for label in np.unique(labels):
        indices = np.random.default_rng([*seed, label]).permutation(np.flatnonzero(labels == label))
        held += list(indices[: max(len(indices) // share, int(len(indices) > 1))])
    held = set(held)
    rest = [i for i in range(len(samples)) if i not in held]
    return samples.take(rest), samples.take(sorted(held))
