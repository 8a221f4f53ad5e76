"""The embeddings of labeled images, split for training and testing classifiers."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from keras_vit.data.dataset import Dataset
from keras_vit.data.samples import hold_out_missing
from keras_vit.embeddings.indexing import VECTOR, vectors_of
from keras_vit.embeddings.parts import OK, metadata_of, part_paths, read_embeddings
from keras_vit.embeddings.plan import read_plan
from keras_vit.types import Path


@dataclasses.dataclass(frozen=True)
class LabeledVectors:
    """The embeddings of a split.

    Attributes:
        vectors: float32 (images, size).
        labels: Class indices (images,).
    """

    vectors: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Sequence[int]) -> LabeledVectors:
        """Those of some images."""
        return LabeledVectors(self.vectors[rows], self.labels[rows])


def read_labeled(folder: Path, seed: int | None = None) -> Dataset:
    """Read the embeddings of labeled images, in the splits in which `load_dataset` has the images.

    Images that could not be read are left out.

    Args:
        folder: That of `keras-vit embed`, of a data set with single labels.
        seed: The seed of the splits that the data set lacks. None: that of the model's training, or 0 if it
            is unknown.

    Returns:
        `Dataset` with the classes and `LabeledVectors` by split.

    Raises:
        ValueError: if there are no vectors or labels, or as `read_embeddings`.

    Example:
        >>> from keras_vit.embeddings import embed, plan_embeddings, read_labeled
        >>> _ = embed(plan_embeddings(tmp / "out", "", model, {"name": "digits"}))
        >>> dataset = read_labeled(tmp / "out")
        >>> dataset.summary() == load_dataset("digits").summary(), dataset.split("test").vectors.shape
        (True, (355, 24))
    """
    (first, *_) = part_paths(folder)
    schema = pyarrow.parquet.read_schema(first)
    for column, remedy in ((VECTOR, "--outputs pooled"), ("label", "labeled images")):
        if column not in schema.names:
            raise ValueError(f"{os.fspath(folder)!r} has no column {column!r}; compute it with {remedy}")
    if not pyarrow.types.is_integer(schema.field("label").type):
        raise ValueError(f"expected single labels; {os.fspath(folder)!r} has several numbers for each image")
    table = read_embeddings(folder, ["key", "status", "label", VECTOR])
    table = table.filter(pyarrow.compute.equal(table["status"], OK)).sort_by("key")
    split_of = np.array([key.partition("/")[0] for key in table["key"].to_pylist()])
    everything = LabeledVectors(vectors_of(table), table["label"].to_numpy())
    splits = {
        name: everything.take(np.flatnonzero(split_of == name)) for name in np.unique(split_of).tolist()
    }
    names = tuple(metadata_of(first)["class_names"])
    if seed is None:
        seed = read_plan(folder).split_seed or 0
    return Dataset(os.fspath(folder), names, hold_out_missing(splits, seed))
