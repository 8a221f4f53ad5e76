"""Parts of embeddings: a Parquet file with a row for each image."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Sequence

import numpy as np
import pyarrow
import pyarrow.parquet

from keras_vit.embeddings.encoder import CAPTIONS
from keras_vit.embeddings.plan import read_plan
from keras_vit.messages import one_line
from keras_vit.types import Path
from keras_vit.writing import atomic_path

METADATA = b"keras_vit"
COLUMN = {"pooled": "embedding"}  # Others have the names of the outputs.
ROWS = 1024  # of a row group
OK = "ok"  # the status of an image that was computed; of others the error


def schema_of(plan, shapes, label, metadata):
    """The schema of a part.

    Args:
        plan: A `Plan`.
        shapes: dict from the name of each output to its shape for one image.
        label: The Arrow type of labels, or None.
        metadata: A JSON value.
    """
    fields = [
        *(("key", pyarrow.string()), ("path", pyarrow.string())),
        *(("width", pyarrow.int32()), ("height", pyarrow.int32()), ("status", pyarrow.string())),
        *([("label", label)] if label else []),
    ]
    for name in plan.outputs:
        values = pyarrow.list_(pyarrow.type_for_alias(plan.dtype), int(np.prod(shapes[name])))
        if name == CAPTIONS:
            fields.append(("texts", pyarrow.list_(pyarrow.string())))
            values = pyarrow.list_(values)
        fields.append((COLUMN.get(name, name), values))
    if "pooled" in plan.outputs:
        fields.append(("norm", pyarrow.float32()))
    return pyarrow.schema(fields, {METADATA: json.dumps(metadata, sort_keys=True)})


@contextlib.contextmanager
def writing(path, schema):
    """A function that writes rows to a new part, which appears complete or not at all.

    Args:
        path: Of the file.
        schema: That of `schema_of`.
    """
    with (
        atomic_path(path) as temporary,
        pyarrow.parquet.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):
        waiting = []

        def write(*batches):
            """Write a `pyarrow.RecordBatch`, perhaps later; without one the rest."""
            waiting.extend(batches)
            if waiting and (not batches or sum(map(len, waiting)) >= ROWS):
                writer.write_table(pyarrow.Table.from_batches(waiting), ROWS)
                waiting.clear()

        yield write
        write()


def rows_of(schema, plan, columns, outputs):
    """A `pyarrow.RecordBatch`.

    Args:
        schema: That of `schema_of`.
        plan: A `Plan`.
        columns: dict of the values of the columns that are no outputs.
        outputs: dict of float32 arrays (rows, …), of captions (texts, …), one image after another; or None
            for images that were not computed.

    Raises:
        ValueError: for a number that is too large for float16.
    """
    count = len(columns["key"])
    columns = dict(columns)
    for name in plan.outputs:
        column = COLUMN.get(name, name)
        if outputs is None:
            columns[column] = pyarrow.nulls(count, schema.field(column).type)
            continue
        values = outputs[name].reshape(len(outputs[name]), -1)
        with np.errstate(over="ignore"):
            stored = values.astype(plan.dtype)
        if not np.isfinite(stored).all():
            raise ValueError(
                f"the output {name} has {np.abs(values).max():g}, which float16 cannot hold; use float32"
            )
        flat = pyarrow.array(stored.ravel())
        columns[column] = pyarrow.FixedSizeListArray.from_arrays(flat, values.shape[1])
        if name == CAPTIONS:
            ends = np.cumsum([0, *map(len, columns["texts"])], dtype="int32")
            columns[column] = pyarrow.ListArray.from_arrays(ends, columns[column])
        if name == "pooled":
            columns["norm"] = np.linalg.norm(values, axis=1).astype("float32")
    arrays = [
        columns[field.name]
        if isinstance(columns.get(field.name), pyarrow.Array)
        else pyarrow.array(columns.get(field.name, [None] * count), field.type)
        for field in schema
    ]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def metadata_of(path):
    """The metadata of a part, a JSON value.

    Raises:
        ValueError: if the file is damaged, or no part.
    """
    return _footer(path)[1]


def _footer(path):
    """(what Parquet stores at the end of a part, the metadata of the part in it)."""
    try:
        stored = pyarrow.parquet.read_metadata(path)
        return stored, json.loads((stored.metadata or {})[METADATA])
    except (OSError, KeyError, ValueError, pyarrow.ArrowException) as error:
        raise ValueError(
            f"{os.fspath(path)!r} is no part of embeddings, or is damaged: {one_line(error)}"
        ) from None


def is_written(folder, plan, part):
    """Whether a part exists.

    Raises:
        ValueError: if it is damaged, another part or of another plan, or lacks rows or vectors of the plan.
    """
    path = pathlib.Path(folder).expanduser() / plan.name(part)
    if not path.exists():
        return False
    stored, metadata = _footer(path)
    if metadata.get("plan") != plan.digest:
        raise ValueError(f"{os.fspath(path)!r} is of another plan; remove it")
    if metadata.get("part") != part:
        raise ValueError(f"{os.fspath(path)!r} holds part {metadata.get('part')}; remove it")
    rows = sum(stop - first for _, first, stop in plan.ranges(part))
    if stored.num_rows != rows:
        raise ValueError(
            f"{os.fspath(path)!r} is damaged: expected {rows} rows; got {stored.num_rows}; remove it"
        )
    schema = stored.schema.to_arrow_schema()
    for name in plan.outputs:
        column = COLUMN.get(name, name)
        arrow_type = schema.field(column).type if column in schema.names else "none"
        if not _holds_vectors(arrow_type, plan.dtype, name == CAPTIONS):
            raise ValueError(
                f"{os.fspath(path)!r} is damaged: expected {plan.dtype} vectors of one length in the column "
                f"{column!r}; got {arrow_type}; remove it"
            )
    return True


def _holds_vectors(arrow_type, dtype, several):
    """Whether an Arrow type is of vectors of one length, or of several of them."""
    if several:
        arrow_type = getattr(arrow_type, "value_type", None)
    number = pyarrow.type_for_alias(dtype)
    return isinstance(arrow_type, pyarrow.FixedSizeListType) and arrow_type.value_type == number


def read_embeddings(folder: Path, columns: Sequence[str] | None = None) -> pyarrow.Table:
    """Read all parts of embeddings.

    Args:
        folder: That of `keras-vit embed`.
        columns: The names of columns; None for all.

    Returns:
        A `pyarrow.Table` with a row for each image, those that could not be read included.

    Raises:
        ValueError: if the folder has no plan, a part is missing, damaged or of another plan, or there is no
            such column.

    Example:
        >>> from keras_vit.embeddings import embed, plan_embeddings, read_embeddings
        >>> _ = embed(plan_embeddings(tmp / "out", "", model, {"name": "digits"}))
        >>> table = read_embeddings(tmp / "out", ["status", "embedding"])
        >>> table.num_rows, table["status"][0].as_py(), len(table["embedding"][0])
        (1797, 'ok', 24)
    """
    return pyarrow.concat_tables(part_tables(folder, columns))


def part_paths(folder):
    """The paths of all parts.

    Raises:
        ValueError: if the folder has no plan, or a part is missing or of another plan.
    """
    plan = read_plan(folder)
    missing = [plan.name(part) for part in range(plan.partitions) if not is_written(folder, plan, part)]
    if missing:
        raise ValueError(
            f"{os.fspath(folder)!r} lacks {len(missing)} of {plan.partitions} parts, such as {missing[0]}; "
            "run keras-vit embed to its end"
        )
    return [pathlib.Path(folder).expanduser() / plan.name(part) for part in range(plan.partitions)]


def part_tables(folder, columns=None):
    """As `read_embeddings`, the table of one part after another."""
    paths = part_paths(folder)
    columns = [columns] if isinstance(columns, str) else columns
    known = pyarrow.parquet.read_schema(paths[0]).names
    if unknown := [name for name in columns or () if name not in known]:
        raise ValueError(f"{os.fspath(folder)!r} has no column {unknown[0]!r}; it has {', '.join(known)}")
    for path in paths:
        try:
            yield pyarrow.parquet.read_table(path, columns=columns).replace_schema_metadata()
        except (OSError, pyarrow.ArrowException) as error:
            raise ValueError(f"{os.fspath(path)!r} is damaged: {one_line(error)}") from None
