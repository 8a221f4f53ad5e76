"""Samples in Parquet files, read by row groups."""

import dataclasses
import functools
import os

import numpy as np
import pyarrow
import pyarrow.parquet
import tensorflow as tf

from keras_vit.data.chunked_records import ChunkedRecords
from keras_vit.data.decoding.model_input import check_image
from keras_vit.data.masks import decode_mask, read_mask
from keras_vit.data.samples import label_tensor, not_converted

READ_ROWS = 64
READ_BYTES = 1 << 20  # of each column of a row group at a time


@dataclasses.dataclass(frozen=True)
class ParquetSamples:
    """Encoded images in Parquet files, read in the order of `ChunkedRecords`, with row groups as chunks.

    Args:
        groups: (path, number of the row group in the file) of each row group.
        rows: The index of the row group of each sample, and the row in it: int64 (samples, 2), in order.
        columns: The column of images, and perhaps that of masks.
        labels: The label of each sample, as of `Samples`; None with masks.
        values, colors: Of masks, as of `MaskSamples`.
    """

    groups: tuple[tuple[str, int], ...]
    rows: np.ndarray
    columns: tuple[str, ...]
    labels: tuple[int | tuple[float, ...], ...] | None = None
    values: tuple[int, ...] | None = None
    colors: tuple[int, ...] | None = None
    order = "lanes"
    exif = True

    def __len__(self):
        return len(self.rows)

    @property
    def label_values(self):
        """How masks become labels, as a JSON value; None without masks."""
        return [self.values, self.colors] if len(self.columns) > 1 else None

    def take(self, indices):
        """The samples at some indices, in ascending order."""
        indices = np.sort(np.fromiter(indices, int))
        labels = self.labels and tuple(self.labels[index] for index in indices)
        return dataclasses.replace(self, rows=self.rows[indices], labels=labels)

    def training_records(self, *args, **options):
        """As of `IndexedSamples`."""
        return self._chunked().training_records(*args, **options)

    def evaluation_records(self):
        """As of `ChunkedRecords`."""
        return self._chunked().evaluation_records()

    def stored(self):
        """As of `IndexedSamples`."""
        functions = check_image, functools.partial(read_mask, colors=self.colors)  # of images and masks
        used, starts = np.unique(self.rows[:, 0], return_index=True)
        for group, rows in zip(used, np.split(self.rows[:, 1], starts[1:])):
            path, number = self.groups[group]
            for positions, contents in read_rows(path, number, self.columns, rows):
                for row, *of_row in zip(rows[positions], *contents.values()):
                    place = f"{path}, row {row} of row group {number}"
                    for check, content in zip(functions, of_row):
                        yield functools.partial(str, place), functools.partial(bytes, content), check

    def _chunked(self):
        used, starts, counts = np.unique(self.rows[:, 0], return_index=True, return_counts=True)
        spec = dict.fromkeys(self.columns, tf.TensorSpec((None,), tf.string))
        spec = {"images": spec, "index": tf.TensorSpec((None,), tf.int64)}

        def contents(chunk, first, count):
            start = starts[chunk] + first
            wanted = self.rows[start : start + count, 1]
            for positions, images in read_rows(*self.groups[used[chunk]], self.columns, wanted):
                images = {name: np.array(of_column, object) for name, of_column in images.items()}
                yield {"images": images, "index": start + positions}

        @not_converted
        def read(chunk, first, count):
            args = (chunk, first, count)
            return tf.data.Dataset.from_generator(contents, output_signature=spec, args=args).unbatch()

        return ChunkedRecords(tuple(counts.tolist()), read, self._parser())

    def _parser(self):
        """A function from a record to (encoded image, label)."""
        image, *mask = self.columns
        if mask:

            def label_of(record):
                return decode_mask(record["images"][mask[0]], self.values, colors=self.colors)

        else:
            labels = label_tensor(self.labels)

            def label_of(record):
                return labels[record["index"]]

        return not_converted(lambda record: (record["images"][image], label_of(record)))


def read_rows(path, group, columns, wanted):
    """The contents of images in some rows of a row group.

    Args:
        path: The path of a Parquet file.
        group: The number of the row group.
        columns: The names of columns with images.
        wanted: Numbers of rows, ascending: int64 (rows,).

    Yields:
        The positions in `wanted` of some rows, and by column a list of their bytes.

    Raises:
        OSError: if a row has no image, the file is damaged, or has become shorter.

    Example:
        >>> table = pyarrow.table({"image": [b"0", b"1", b"2"]})
        >>> pyarrow.parquet.write_table(table, tmp / "a.parquet")
        >>> [images for _, images in read_rows(tmp / "a.parquet", 0, ["image"], np.array([0, 2]))]
        [{'image': [b'0', b'2']}]
    """
    before = done = 0
    try:
        with pyarrow.parquet.ParquetFile(path, buffer_size=READ_BYTES, pre_buffer=False) as file:
            for batch in file.iter_batches(READ_ROWS, row_groups=[group], columns=list(columns)):
                stop = done + np.searchsorted(wanted[done:], before + batch.num_rows)
                if stop > done:
                    is_whole = stop - done == batch.num_rows
                    rows = batch if is_whole else batch.take(pyarrow.array(wanted[done:stop] - before))
                    place = f"{os.fspath(path)!r}, row group {group}"
                    yield np.arange(done, stop), {n: _contents(rows.column(n), place) for n in columns}
                before, done = before + batch.num_rows, stop
                if done == len(wanted):
                    return
    except (pyarrow.ArrowException, IndexError) as error:
        raise OSError(f"{os.fspath(path)!r} is damaged, or has changed: {error}") from None
    raise OSError(f"{os.fspath(path)!r} has lost rows of row group {group}: it has changed")


def _contents(column, place):
    is_struct = pyarrow.types.is_struct(column.type)
    found = (column.field("bytes") if is_struct else column).to_pylist()
    if None in found:
        paths = column.field("path").to_pylist() if is_struct else found
        raise OSError(
            f"{place}: expected the bytes of images in each row; got only the path "
            f"{paths[found.index(None)]!r} in one"
        )
    return found
