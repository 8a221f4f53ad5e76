"""The rows of embeddings that belong to the samples of a run, such as the outputs of its teacher."""

from __future__ import annotations

import functools
import hashlib
import os
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute

from keras_vit.data.chunked_records import ChunkedRecords
from keras_vit.data.mixed_samples import MixedSamples
from keras_vit.data.samples import EncodedSamples, IndexedRecords
from keras_vit.embeddings.computing import data_digest, planned_data
from keras_vit.embeddings.encoder import CAPTIONS
from keras_vit.embeddings.parts import COLUMN, OK, metadata_of, part_paths, part_tables
from keras_vit.embeddings.plan import read_plan
from keras_vit.tasks.distillation.stored_outputs import StoredOutputs
from keras_vit.types import Path
from keras_vit.writing import atomic_path

if TYPE_CHECKING:
    from keras_vit.data.samples import IndexedSamples


def teacher_rows(
    folder: Path, samples: IndexedSamples, output: str = "logits", file: Path | None = None
) -> np.ndarray:
    """An output of a model for each sample of a split, from embeddings of the same data set.

    The embeddings are of all images as the data set stores them, and a run holds out some of these: sample i
    of a split is found by its path, by its place in a tar or Parquet file, or, if its image is in memory, by
    its content. Parts are read one after another.

    Args:
        folder: That of `keras-vit embed`.
        samples: A split of a `Dataset`, or a part of one.
        output: The name of an output that was computed: "logits", "pooled", "tokens" or "classes".
        file: Path of a `.npy` file, which is replaced, for rows that are larger than memory; None: rows are
            in memory.

    Returns:
        An array (samples, …) of the output's shape and of the stored dtype, float16 or float32. With `file`
        it is read-only, and mapped to memory.

    Raises:
        ValueError: if the folder lacks the output, parts or a sample, such as one of another data set, the
            data set has changed, an image could not be read, or samples have no names, as those of TensorFlow
            Datasets.

    Example:
        >>> from keras_vit.embeddings import embed, plan_embeddings
        >>> from keras_vit.tasks.distillation.teacher_rows import teacher_rows
        >>> _ = embed(plan_embeddings(tmp / "out", "", model, {"name": "digits"}, outputs=("logits",)))
        >>> teacher_rows(tmp / "out", load_dataset("digits").split("train")).shape
        (1302, 10)
    """
    plan, paths = read_plan(folder), part_paths(folder)
    _check_output(folder, plan, output)
    shape = (len(samples), *metadata_of(paths[0])["outputs"][output])
    numbers = _numbers(folder, plan, samples)
    if file is None:
        rows = np.empty(shape, plan.dtype)
        _fill(rows, folder, plan, numbers, samples, output)
        return rows
    with atomic_path(file) as temporary:
        rows = np.lib.format.open_memmap(temporary, "w+", plan.dtype, shape)
        _fill(rows, folder, plan, numbers, samples, output)
        rows.flush()
    return np.load(file, mmap_mode="r")


def teacher_in(folder: Path) -> StoredOutputs:
    """The logits of embeddings, as a teacher of a run.

    Args:
        folder: That of `keras-vit embed`.

    Raises:
        ValueError: if the folder lacks logits or parts.
    """
    plan = read_plan(folder)
    _check_output(folder, plan, "logits")
    metadata = metadata_of(part_paths(folder)[0])
    [count] = metadata["outputs"]["logits"]
    read = functools.partial(teacher_rows, folder)
    # An exported file, such as one of integers, computes other numbers than the model itself.
    digest = " ".join(filter(None, (plan.model_digest, plan.export_format)))
    return StoredOutputs(count, metadata["model_classes"], digest, read)


def _check_output(folder, plan, output):
    """Raise ValueError unless embeddings have an output of images."""
    outputs = [name for name in plan.outputs if name != CAPTIONS]
    if output not in outputs:
        raise ValueError(
            f"{os.fspath(folder)!r} has the outputs {', '.join(outputs)}; got {output!r}: compute it with "
            f"keras-vit embed --outputs {output}"
        )


def _numbers(folder, plan, samples):
    """The number of each sample among all images of embeddings, whose splits follow one another."""
    dataset = planned_data(folder, plan)
    if data_digest(dataset) != plan.data_digest:
        raise ValueError(
            f"the data set has changed since {os.fspath(folder)!r} was begun: compute its embeddings again"
        )
    names = [name for split in plan.splits for name in _names(dataset.split(split))]
    number_of = {name: number for number, name in enumerate(names)}
    numbers = [number_of.get(name, -1) for name in _names(samples)]
    if missing := numbers.count(-1):
        raise ValueError(
            f"{os.fspath(folder)!r} lacks {missing} of {len(samples)} images, such as "
            f"{samples.place(numbers.index(-1))}; it has those of {plan.dataset['name']}"
        )
    return np.array(numbers, int)


def _names(samples):
    """A name of each sample, which it keeps in a part of the split."""
    if isinstance(samples, MixedSamples):
        return [name for part in samples.parts for name in _names(part.samples)]
    if isinstance(samples, IndexedRecords | ChunkedRecords):
        raise ValueError(
            "images of TensorFlow Datasets have no names by which their embeddings are found; expected a "
            "folder, tar or Parquet files"
        )
    if isinstance(samples, EncodedSamples) and not isinstance(samples.images[0], str):
        return [hashlib.sha256(image).digest() for image in samples.images]
    return [os.path.abspath(samples.place(index)) for index in range(len(samples))]


def _fill(rows, folder, plan, numbers, samples, output):
    """Copy the values of an output to the rows of samples with these numbers."""
    starts = dict(zip(plan.splits, np.cumsum([0, *plan.splits.values()]).tolist()))
    column, first = COLUMN.get(output, output), 0
    for table in part_tables(folder, ["key", "status", column]):
        keys = (key.split("/") for key in table["key"].to_pylist())
        order = np.full(table.num_rows, -1)  # the row of each number of this part
        is_read = pyarrow.compute.equal(table["status"], OK).to_numpy(zero_copy_only=False)
        indices = np.array([starts[split] + int(number) - first for split, number in keys])
        order[indices[is_read]] = np.arange(np.count_nonzero(is_read))
        values = table[column].filter(pyarrow.array(is_read)).combine_chunks().flatten()
        values = values.to_numpy(zero_copy_only=False).reshape(-1, *rows.shape[1:])
        wanted = np.flatnonzero((first <= numbers) & (numbers < first + table.num_rows))
        places = order[numbers[wanted] - first]
        if (unread := wanted[places < 0]).size:
            status = table["status"][int(np.flatnonzero(indices == numbers[unread[0]] - first)[0])]
            images = f"{len(unread)} image{'s' * (len(unread) > 1)}"
            name = samples.place(unread[0])
            raise ValueError(f"{os.fspath(folder)!r} has no {output} of {images}, such as {name} ({status})")
        rows[wanted] = values[places]
        first += table.num_rows
