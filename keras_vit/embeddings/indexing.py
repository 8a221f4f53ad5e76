"""Bring an index of images up to date from folders of embeddings."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from keras_vit.embeddings.parts import COLUMN, OK, part_paths, part_tables
from keras_vit.embeddings.plan import read_plan
from keras_vit.progress import Progress
from keras_vit.search.image_index import ImageIndex
from keras_vit.search.vector_file import normalized
from keras_vit.types import Path

VECTOR = COLUMN["pooled"]


def open_for_embeddings(index: Path, folders: Path | Sequence[Path]) -> ImageIndex:
    """The `ImageIndex` in a folder, perhaps a new one, for the vectors of embeddings.

    Args:
        index: The path of its folder.
        folders: Those of `keras-vit embed`, of one model, or a single one.

    Raises:
        ValueError: if they are of several models, or lack the output "pooled", or as `ImageIndex`.
    """
    folders = _several(folders)
    plans = [read_plan(folder) for folder in folders]
    for folder, plan in zip(folders, plans):
        if "pooled" not in plan.outputs:
            raise ValueError(f"{os.fspath(folder)!r} has no vectors; compute them with --outputs pooled")
        if plan.model_digest != plans[0].model_digest:
            raise ValueError(
                f"{os.fspath(folder)!r} has vectors of {plan.model}; expected those of {plans[0].model}"
            )
    size = _schema(folders[0]).field(VECTOR).type.list_size
    return ImageIndex(index, plans[0].model, plans[0].model_digest, size)


def update_index(index: ImageIndex, folders: Path | Sequence[Path]) -> dict[str, int]:
    """Add what is new in embeddings to an index, and remove what is not in them.

    An image is known by its path; one with another vector than before is replaced. The others get the values
    of their columns in the embeddings, such as their labels. Images that could not be read are left out. The
    caller saves the index.

    Args:
        index: That of `open_for_embeddings`.
        folders: As for `open_for_embeddings`.

    Returns:
        dict of the numbers of images that were `added`, `removed` and `unreadable`.

    Raises:
        ValueError: if parts are missing or damaged, or two images have one path.

    Example:
        >>> from keras_vit.embeddings import embed, open_for_embeddings, plan_embeddings, update_index
        >>> _ = embed(plan_embeddings(tmp / "out", "", model, {"name": "digits"}))
        >>> index = open_for_embeddings(tmp / "index", [tmp / "out"])
        >>> update_index(index, [tmp / "out"])
        {'added': 1797, 'removed': 0, 'unreadable': 0}
        >>> index.build()
    """
    counts, seen, kept = {"added": 0, "removed": 0, "unreadable": 0}, set(), []
    with Progress(None, "indexing", unit="image") as bar:
        for folder in _several(folders):
            nested = pyarrow.types.is_nested
            flat = [field.name for field in _schema(folder) if not nested(field.type)]
            for table in part_tables(folder, [*flat, VECTOR]):  # Grids of tokens are large, and not read.
                is_read = pyarrow.compute.equal(table["status"], OK)
                counts["unreadable"] += table.num_rows - pyarrow.compute.sum(is_read).as_py()
                table = table.filter(is_read).drop_columns(["status"])
                paths = table["path"].to_pylist()
                for path in paths:
                    if path in seen:
                        raise ValueError(
                            f"{os.fspath(folder)!r} has an image that was there before, {path!r}"
                        )
                    seen.add(path)
                vectors = vectors_of(table)
                is_new = _is_new(index, paths, vectors)
                table = table.drop_columns([VECTOR])
                kept.append(table.filter(~is_new))
                table = table.filter(is_new)
                states = dict.fromkeys(table["path"].to_pylist(), (None, None))
                columns = dict(zip(table.column_names, table.columns))
                index.add(states, vectors[is_new], columns)
                counts["added"] += len(states)
                bar.update(len(paths))
    index.set_columns(pyarrow.concat_tables(kept, promote_options="default"))
    gone = [path for path in index.files if path not in seen]
    index.remove(gone)
    return {**counts, "removed": len(gone)}


def _several(folders):
    return [folders] if isinstance(folders, str | os.PathLike) else folders


def _schema(folder):
    return pyarrow.parquet.read_schema(part_paths(folder)[0])


def vectors_of(table):
    """The vectors of a table of images that could be read, float32 (images, size)."""
    column = table[VECTOR].combine_chunks()
    if column.null_count:
        raise ValueError(f"expected a vector of each image that was read; {column.null_count} have none")
    shape = len(column), column.type.list_size
    return column.flatten().to_numpy(zero_copy_only=False).reshape(shape).astype("float32")


def _is_new(index, paths, vectors):
    rows = np.array([index.files[path][0] if path in index.files else -1 for path in paths], int)
    known = rows >= 0
    is_new = ~known
    is_new[known] = (np.asarray(index.vectors[rows[known]]) != normalized(vectors[known])).any(axis=1)
    return is_new
