"""`Dataset`: what a data set contains, and its summary."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from keras_vit.labels import label_kind
from keras_vit.messages import did_you_mean, listed

if TYPE_CHECKING:
    from keras_vit.data.samples import EncodedSamples

MAX_NAMES = 10  # of classes in a summary


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A data set: its name, its classes, and the samples of each split.

    Args:
        name: The name given to `load_dataset`, without the secrets of URLs.
        class_names: One name per class, in the order of the labels; for regression one per target; for images
            with captions none, since a label is the index of an image in its split, and for images without
            labels none, since all labels are 0.
        splits: Samples by split: "train", "validation" and "test".
        bad_images: By path of each image or map that was skipped, why, as damage or a wrong box.
        task: The name of the kind of its labels, such as "single_label" (a label is a class index, int32),
            "multi_label" (float32 (classes,) of 0 and 1), "regression" (float32 (targets,)), "segmentation"
            (int32 (height, width), 255: ignored) and "detection" (float64 (boxes, 7): rows of
            `labels.box_rows.COLUMNS`).
        ignored_files: Paths of a folder's other files, except hidden ones.
        empty_folders: Paths of its subfolders without images.
        unlabeled: Places of samples in tar and Parquet files whose class is -1, or another number below 0,
            which stands for an unknown one. They are left out.
        version: The name and version of a data set of TensorFlow Datasets, or a digest; None for others.
        split_sources: By split where it comes from, as "from images/val" or "held out", where that is known.
        texts: `Texts` that describe the classes or the images; None for data sets without texts.
        parts: The `Dataset` of each source of a mixture.

    Example:
        >>> print(load_dataset("digits").summary())
        10 classes (0, 1, 2, 3, 4, 5, 6, 7, 8, 9): 1302 train, 140 validation, 355 test
    """

    name: str
    class_names: tuple[str, ...]
    splits: dict[str, Any]
    bad_images: dict[str, str] = dataclasses.field(default_factory=dict)
    task: str = "single_label"
    ignored_files: tuple[str, ...] = ()
    empty_folders: tuple[str, ...] = ()
    version: str | None = None
    split_sources: dict[str, str] = dataclasses.field(default_factory=dict)
    texts: Any = None
    parts: tuple[Dataset, ...] = ()
    unlabeled: tuple[str, ...] = ()

    def summary(self) -> str:
        """The classes, the sample count of each split and its source, and what was skipped, in one line.

        >>> splits = {"test": load_dataset("digits").split("test")}
        >>> names = ("daisy", "rose", "tulip")
        >>> Dataset("folder:flowers", names, splits, ignored_files=("flowers/rose/1.xcf",)).summary()
        '3 classes (daisy, rose, tulip): 355 test; 1 file ignored (.xcf)'
        """
        splits = ", ".join(f"{len(samples)} {split}" for split, samples in self.splits.items())
        suffixes = {path.suffix.lower() or path.name for path in map(pathlib.PurePath, self.ignored_files)}
        remarks = (
            (self.bad_images, "unreadable image", "skipped", _file_names(self.bad_images)),
            (self.ignored_files, "file", "ignored", sorted(suffixes)),
            (self.empty_folders, "folder", "without images", _file_names(self.empty_folders)),
            (self.unlabeled, "sample", "of an unknown class left out", self.unlabeled),
        )
        parts = [
            f"{len(paths)} {noun}{'s' * (len(paths) > 1)} {state} ({listed(words)})"
            for paths, noun, state, words in remarks
            if paths
        ]
        if untrained := self._with_images("train", 0):
            parts.append(f"{self._count(untrained)} without training images ({listed(untrained)})")
        if once := self._with_images("test", 1):
            parts.append(f"{self._count(once)} with a single test image ({listed(once)})")
        if self.texts is not None and not self.class_names:
            captions = itertools.chain(*self.texts.wordings.values())
            labels = f"{sum(map(len, captions))} captions"
        elif self.class_names:
            labels = f"{self._count(self.class_names)} ({listed(self.class_names, MAX_NAMES)})"
        else:
            labels = "images without labels"
        splits_by_source = collections.defaultdict(list)
        for split, source in self.split_sources.items():
            splits_by_source[source].append(split)
        sources = ", ".join(f"{' and '.join(names)} {source}" for source, names in splits_by_source.items())
        return "; ".join([f"{labels}: {splits}", *([sources] if sources else []), *parts])

    def captions(self, split: str) -> Sequence[Sequence[str]] | None:
        """The texts of each image of a split; None where texts describe classes, or there are none."""
        return None if self.texts is None or self.class_names else self.texts.wordings[split]

    def _count(self, names):
        return f"{len(names)} {label_kind(self.task).noun[len(names) > 1]}"

    def _with_images(self, split, count):
        """The classes with so many images in a split, where the labels are known."""
        labels = self.splits[split].labels if split in self.splits else None
        if labels is None or not label_kind(self.task).is_class_id:
            return []
        images = collections.Counter(labels)
        return [name for index, name in enumerate(self.class_names) if images[index] == count]

    def split(self, name: str) -> EncodedSamples:
        if name not in self.splits:
            hint = did_you_mean(name, self.splits)
            raise ValueError(f"split {name!r} is unknown{hint}; {self.name} has {', '.join(self.splits)}")
        return self.splits[name]


def _file_names(paths):
    return [pathlib.PurePath(path).name for path in paths]
