"""Images in Parquet files, read by row groups."""

import numpy as np
import pyarrow
import pyarrow.parquet

from keras_vit.data.shard_cache import is_remote, opened

READ_ROWS = 64
READ_BYTES = 1 << 20  # of each column of a row group at a time


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
                for batch in file.iter_batches(READ_ROWS, row_groups=[group], columns=list(columns)):
                    stop = done + np.searchsorted(places[done:end, 1], before + batch.num_rows)
                    if stop > done:
                        is_whole = stop - done == batch.num_rows
                        rows = batch if is_whole else batch.take(pyarrow.array(places[done:stop, 1] - before))
                        place = f"{shown}, row group {group}"
                        yield np.arange(done, stop), {n: _contents(rows.column(n), place) for n in columns}
                    before, done = before + batch.num_rows, stop
                    if done == end:
                        break
                if done < end:
                    raise OSError(f"{shown} has lost rows of row group {group}: it has changed")
    except (pyarrow.ArrowException, IndexError) as error:
        raise OSError(f"{shown} is damaged, or has changed: {error}") from None


def _readable(shard):
    """What Arrow reads of a shard: a file of its own, which needs no lock of Python, or one of the cache."""
    file = opened(shard)
    if is_remote(shard):
        return file
    with file:
        return pyarrow.OSFile(file.name)


def _contents(column, place):
    is_struct = pyarrow.types.is_struct(column.type)
    contents = (column.field("bytes") if is_struct else column).to_pylist()
    if None in contents:
        paths = column.field("path").to_pylist() if is_struct else contents
        raise OSError(
            f"{place}: expected the bytes of images in each row; got only the path "
            f"{paths[contents.index(None)]!r} in one"
        )
    return contents
