"""Images in Parquet files, read by row groups."""

import dataclasses

import numpy as np
import pyarrow
import pyarrow.parquet

from keras_vit.data.shard_cache import Shard, is_remote, opened

READ_ROWS, LARGEST_BATCH = 64, 1 << 28  # rows, and bytes of more than one row, that are decoded at a time
READ_BYTES = 1 << 20  # of each column of a row group at a time
LARGEST, MOST_TIMES = 1 << 30, 20  # bytes that columns may have: so many, or so many times the file's
LARGEST_LABELS = 1 << 28  # bytes, likewise


def row_name(shard, place):
    """The name of a Parquet file and of its row at a place (row group, row), for messages."""
    return f"{shard}, row {place[1]} of row group {place[0]}"


def read_rows(shard, columns, places):
    """The contents of images in some rows of a Parquet file, as `ChunkedSamples` reads them.

    Args:
        shard: A `Shard`, or the path of the file.
        columns: The names of columns with images.
        places: The numbers of the row group and of the row in it, ascending: int64 (rows, 2).

    Yields:
        The positions in `places` of some rows, and by column a list of their bytes.

    Raises:
        OSError: if a row has no image, the file is damaged, or has become shorter.

    Example:
        >>> table = pyarrow.table({"image": [b"0", b"1", b"2"]})
        >>> pyarrow.parquet.write_table(table, tmp / "a.parquet")
        >>> places = np.array([[0, 0], [0, 2]])
        >>> [images for _, images in read_rows(tmp / "a.parquet", ["image"], places)]
        [{'image': [b'0', b'2']}]
    """
    shown, done, options = repr(str(shard)), 0, {"buffer_size": READ_BYTES, "pre_buffer": False}
    try:
        with _readable(shard) as source, pyarrow.parquet.ParquetFile(source, **options) as file:
            for group in np.unique(places[:, 0]).tolist():
                before, end = 0, np.searchsorted(places[:, 0], group, "right")
                for batch in _batches(file, group, columns):
                    stop = done + np.searchsorted(places[done:end, 1], before + batch.num_rows)
                    if stop > done:
                        is_whole = stop - done == batch.num_rows
                        rows = batch if is_whole else batch.take(pyarrow.array(places[done:stop, 1] - before))
                        numbers = places[done:stop, 1]
                        contents = {n: _contents(rows.column(n), shard, group, numbers) for n in columns}
                        yield np.arange(done, stop), contents
                    before, done = before + batch.num_rows, stop
                    if done == end:
                        break
                if done < end:
                    raise OSError(f"{shown} has lost rows of row group {group}: it has changed")
    except (pyarrow.ArrowException, IndexError) as error:
        raise OSError(f"{shown} is damaged, or has changed: {error}") from None


def check_declared(file, shard, columns):
    """Raise ValueError for columns whose declared size is no sensible one for the file.

    Args:
        file: A `pyarrow.parquet.ParquetFile`.
        shard: Its `Shard`.
        columns: The names of the columns that are read.
    """
    total = sum(
        chunk.total_uncompressed_size for _, chunk in _chunks(file, range(file.num_row_groups), columns)
    )
    if total > (most := max(LARGEST, MOST_TIMES * shard.size)):
        raise ValueError(f"{shard!r} declares {total} bytes in {', '.join(columns)}; expected at most {most}")


def check_images(file, shard, column):
    """Raise ValueError for a row without an image, of a file that says how many there are.

    Args:
        file: A `pyarrow.parquet.ParquetFile`.
        shard: Its `Shard`.
        column: The name of the column of images.
    """
    for group, chunk in _chunks(file, range(file.num_row_groups), [column]):
        is_image = chunk.path_in_schema in (column, f"{column}.bytes")
        statistics = chunk.statistics if is_image else None
        if statistics is None or not statistics.has_null_count or not statistics.null_count:
            continue
        first = 0
        for batch in _batches(file, group, [column]):
            try:
                _contents(batch.column(column), shard, group, range(first, first + batch.num_rows))
            except OSError as error:
                raise ValueError(str(error)) from None
            first += batch.num_rows


def _batches(file, group, columns):
    """Batches of the rows of a row group, of so few rows that memory holds them.

    Each value can be as large as the chunk: a dictionary has it once for all rows, and other encodings
    repeat the bytes of the row before.
    """
    largest = sum(chunk.total_uncompressed_size for _, chunk in _chunks(file, [group], columns))
    rows = min(max(LARGEST_BATCH // max(largest, 1), 1), READ_ROWS)
    return file.iter_batches(rows, row_groups=[group], columns=list(columns))


def _chunks(file, groups, columns):
    """The metadata of the chunks of some columns in row groups, each with the number of its group."""
    for group in groups:
        row_group = file.metadata.row_group(group)
        for chunk in map(row_group.column, range(row_group.num_columns)):
            if chunk.path_in_schema.partition(".")[0] in columns:
                yield group, chunk


@dataclasses.dataclass
class BoundedReader:
    """A function from the number of a row group and names of columns to the lists of their values.

    A dictionary in a small file can stand for more values than memory can hold.

    Args:
        file: A `pyarrow.parquet.ParquetFile`.
        shard: Its `Shard`.

    Raises:
        ValueError: for more than 268,435,456 bytes, or 20 times the file.
    """

    file: pyarrow.parquet.ParquetFile
    shard: Shard
    total: int = 0

    def __call__(self, group, *names):
        values = {name: [] for name in names}
        for batch in _batches(self.file, group, names):
            for name, of_name in values.items():
                column = batch.column(name)
                if pyarrow.types.is_dictionary(column.type):
                    column = column.dictionary_decode()
                self.total += column.nbytes
                if self.total > (most := max(LARGEST_LABELS, MOST_TIMES * self.shard.size)):
                    raise ValueError(f"{self.shard!r} has more than {most} bytes in {', '.join(names)}")
                of_name += column.to_pylist()
        return [*values.values()]


def _readable(shard):
    """What Arrow reads of a shard: a file of its own, which needs no lock of Python, or one of the cache."""
    file = opened(shard)
    if is_remote(shard):
        return file
    with file:
        return pyarrow.OSFile(file.name)


def _contents(column, shard, group, rows):
    is_struct = pyarrow.types.is_struct(column.type)
    contents = (column.field("bytes") if is_struct else column).to_pylist()
    if None in contents:
        number = contents.index(None)
        path = column.field("path")[number].as_py() if is_struct else None
        got = "none" if path is None else f"only the path {path!r}"
        row = row_name(shard, (group, rows[number]))
        raise OSError(f"{row}: expected the bytes of an image; got {got}")
    return contents
