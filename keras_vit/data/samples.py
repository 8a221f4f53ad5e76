"""The samples of a split in their kinds of storage, and the order in which they are read."""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.decoding.model_input import check_image, read
from keras_vit.data.files import file_headers, refuse_unreadable
from keras_vit.labels.box_rows import COLUMNS, decode_boxes

SPLITS = ("train", "validation", "test")
READ_BATCH = 64  # array records
OPEN_FILES = 16
# For functions of datasets: AutoGraph would convert all that they call, which took a second in each process.
not_converted = tf.autograph.experimental.do_not_convert


class IndexedSamples:
    """The interface of all kinds of samples, and what those that are accessed by index share.

    A kind of samples has these methods, `len` and these attributes. Those that are accessed by index also
    are sequences of (encoded image, label), as Grain, PyTorch's DataLoader and `keras.utils.PyDataset` read
    them.

    Attributes:
        labels: The label of each sample; None where they are unknown before reading.
        exif: Whether to apply the EXIF orientation of the images.
        order: The name of the order in training.
        task: The name of the task of the labels, which samples with maps have; None: the first one whose
            labels have as many axes.
    """

    order = "index"
    labels = task = None
    exif = False  # The published evaluations do not apply it.

    def training_records(self, seed, first_step, steps, batch_size, slots=None):
        """The records of some slots of each batch from one step to another, in order.

        Args:
            seed: An int; the order depends only on it and on the position.
            first_step, steps: The first step, and the one to stop before.
            batch_size: The global batch size, over all workers.
            slots: A range of the numbers from 0 to the batch size, as of `worker_slots`; None for all.

        Returns:
            tf.data.Dataset of (position, encoded image, label). The position, int64, counts the samples
            of the global batches from step 0; the label is int32, or float32 (targets,).
        """
        numbers = positions(first_step, steps, batch_size, slots)
        indexed = numbers.map(not_converted(lambda position: (position, shuffled(position, len(self), seed))))
        return of_length(self._read(indexed), numbers.cardinality())

    def evaluation_records(self):
        """Each sample once, in order: tf.data.Dataset of (encoded image, label)."""
        records = self.numbered_records(0, len(self))
        records = records.map(not_converted(lambda number, encoded, label: (encoded, label)))
        return of_length(records, len(self))

    def numbered_records(self, start, stop):
        """The samples from one number to another, in any order, but always the same.

        Returns:
            tf.data.Dataset of (number, encoded image, label); the number is int64.
        """
        indices = tf.data.Dataset.range(start, stop)
        return self._read(tf.data.Dataset.zip((indices, indices)))

    def __getitem__(self, index):
        """A sample: (bytes of the encoded image, label).

        The label is an int, float32 (targets,), float64 (boxes, 7), or the uint8 (height, width, 1) of a
        mask.

        Raises:
            IndexError: if there is no such sample.
            ValueError: if its label cannot be read, with the place.
        """
        index = range(len(self))[index]
        try:
            return self.content(index), self._label(index)
        except ValueError as error:
            raise ValueError(f"{self.place(index)}: {error}") from None

    def stored(self):
        """Functions of each image, and mask: one returns its place, one its content, and one decodes it."""
        for index in range(len(self)):
            yield functools.partial(self.place, index), functools.partial(self.content, index), check_image

    def place(self, index):
        """Where a sample is, for messages."""
        return f"sample {index}"

    def content(self, index):
        """The bytes of the encoded image of a sample."""
        raise NotImplementedError

    def _label(self, index):
        label = self.labels[index]
        if isinstance(label, bytes):
            return decode_boxes(label)
        return np.array(label, "float32") if np.ndim(label) else int(label)

    def _read(self, indexed):
        """Convert a dataset of (position, index) to one of (position, encoded image, label).

        Its length may be unknown.
        """
        raise NotImplementedError


class EncodedSamples(IndexedSamples):
    """Samples whose `images` are paths (str) or file contents (bytes), all of one kind.

    Attributes:
        members: The names of the fields with a value for each sample.
        label_values: How values in label files become labels, as a JSON value; None: as they are.
    """

    members = ("images", "labels")
    label_values = None

    def __len__(self):
        return len(self.images)

    def take(self, indices):
        values = {name: tuple(getattr(self, name)[i] for i in indices) for name in self.members}
        return dataclasses.replace(self, **values)

    def numbered_records(self, start, stop):
        # Tensors of all paths would take as much memory again for each part that is read.
        part = self.take(range(start, stop))
        numbers = tf.data.Dataset.range(start, stop)
        return part._read(tf.data.Dataset.zip((numbers, tf.data.Dataset.range(stop - start))))

    def paths(self):
        """The paths of all images and labels in files."""
        return [path for name in self.members for path in getattr(self, name) if isinstance(path, str)]

    def place(self, index):
        image = self.images[index]
        return image if isinstance(image, str) else super().place(index)

    def content(self, index):
        return content_of(self.images[index])

    def _read(self, indexed):
        images, label_of = tf.constant(self.images), self._label_reader()
        in_files = isinstance(self.images[0], str)

        @not_converted
        def record(position, index):
            return position, read(images[index]) if in_files else images[index], label_of(index)

        return indexed.map(record, tf.data.AUTOTUNE)

    def _label_reader(self):
        """A function from an index to the label."""
        return label_reader(self.labels)


@dataclasses.dataclass(frozen=True)
class Samples(EncodedSamples):
    """Encoded images and their labels.

    Args:
        images: Paths (str) or file contents (bytes), all of one kind.
        labels: A class index for each image, for several numbers per sample a tuple of floats, or for boxes
            what `labels.box_rows.encode_boxes` returns.
        exif: Whether to apply the EXIF orientation; False saves the search for it where all images are
            stored upright.

    Example:
        >>> samples = load_dataset("digits").split("test")
        >>> records = samples.training_records(seed=0, first_step=0, steps=2, batch_size=4)
        >>> [int(position) for position, encoded, label in records]
        [0, 1, 2, 3, 4, 5, 6, 7]
        >>> encoded, label = samples[-1]
        >>> encoded[1:4], label
        (b'PNG', 8)
    """

    images: tuple[str | bytes, ...]
    labels: tuple[int | tuple[float, ...] | bytes, ...]
    exif: bool = True


@dataclasses.dataclass(frozen=True)
class IndexedRecords(IndexedSamples):
    """Serialized samples accessed by index, as in ArrayRecord files.

    Args:
        source: A sequence of bytes, whose `__getitems__` reads several.
        parse: A function from a record to (encoded image, label).
        task: See `IndexedSamples`.
    """

    source: Sequence[bytes]
    parse: Callable[[Any], tuple]
    task: str | None = None

    def __len__(self):
        return len(self.source)

    def content(self, index):
        return self[index][0]

    def __getitem__(self, index):
        [record] = self.source.__getitems__([range(len(self))[index]])
        image, label = self.parse(tf.constant(record))
        return image.numpy(), label.numpy() if label.shape.rank else int(label)

    def _read(self, indexed):
        def read(indices):
            return np.array(self.source.__getitems__(indices.tolist()), object)

        @not_converted
        def read_batch(positions, indices):
            records = tf.numpy_function(read, [indices], tf.string, stateful=False)
            return positions, tf.ensure_shape(records, positions.shape)

        records = indexed.batch(READ_BATCH).map(read_batch, tf.data.AUTOTUNE).unbatch()
        return parsed(records, self.parse)


@dataclasses.dataclass(frozen=True)
class ShardSamples:
    """What samples in shards share, whatever order they are read in.

    Args:
        shards: The `Shard` of each file, or of each chunk.
        rows: The index in `shards` of each sample, and its place there: int64 (samples, …).
        columns: The names of the images, and perhaps of the maps.
        labels: The label of each sample, as of `Samples`; None with maps.
        reader: `MapReader` of maps.
        task: See `IndexedSamples`.
    """

    shards: tuple[Any, ...]
    rows: np.ndarray
    columns: tuple[str, ...]
    labels: tuple[int | tuple[float, ...], ...] | None = None
    reader: Any = None
    task: str | None = None
    exif = True

    def __len__(self):
        return len(self.rows)

    @property
    def label_values(self):
        """As in `MapReader`; None without maps."""
        return self.reader and self.reader.label_values

    def take(self, indices):
        """The samples at some indices."""
        indices = np.fromiter(indices, int)
        labels = self.labels and tuple(self.labels[index] for index in indices)
        return dataclasses.replace(self, rows=self.rows[indices], labels=labels)


def positions(first_step, steps, batch_size, slots=None):
    """The positions of the samples of some slots of each batch in the global stream, in order.

    Example:
        >>> [int(p) for p in positions(1, 3, batch_size=4, slots=range(2, 4))]
        [6, 7, 10, 11]
    """
    slots = range(batch_size) if slots is None else slots
    local = len(slots)
    counter = tf.data.Dataset.range(first_step * local, steps * local)
    return counter.map(not_converted(lambda k: k // local * batch_size + slots.start + k % local))


def shuffled(position, n, seed):
    """The index of the sample at a position of an infinite stream, a permutation of all n in each epoch.

    Example:
        >>> sorted(int(shuffled(tf.constant(p, tf.int64), 4, seed=0)) for p in range(4, 8))
        [0, 1, 2, 3]
    """
    return tf.random.experimental.index_shuffle(position % n, [seed, position // n], n - 1)


def label_reader(labels):
    """A function from an index, a tensor, to a label: int32 (), float32 (targets,) or float64 (boxes, 7)."""
    if labels and isinstance(labels[0], bytes):
        encoded, shape = tf.constant(labels), (-1, len(COLUMNS))
        return lambda index: tf.reshape(tf.io.decode_raw(encoded[index], tf.float64), shape)
    labels = np.asarray(labels)
    labels = tf.constant(labels, tf.int32 if labels.dtype.kind in "iu" else tf.float32)
    return lambda index: labels[index]


def content_of(source):
    """The bytes of a path (str), or the bytes themselves."""
    return pathlib.Path(source).read_bytes() if isinstance(source, str) else source


def samples_of_files(files, on_bad_image):
    """The readable images of each split.

    Args:
        files: By split, the paths of the images, and their labels.
        on_bad_image: "fail" raises an error for those that cannot be read, by their headers and ends; "skip"
            leaves out those that cannot be decoded; "keep" checks none.

    Returns:
        (`Samples` by split, dict from the paths of unreadable images to the reason).

    Raises:
        ValueError: for unreadable images.
    """
    splits, unreadable = {}, []
    for split, (paths, labels) in files.items():
        if on_bad_image == "keep":
            splits[split] = Samples(tuple(paths), tuple(labels))
            continue
        headers = file_headers(paths, decode=on_bad_image == "skip")
        unreadable += sorted(path for path, header in zip(paths, headers) if not header)
        images, labels = (tuple(itertools.compress(values, headers)) for values in (paths, labels))
        is_turned = any(header and header.orientation > 1 for header in headers)
        splits[split] = Samples(images, labels, exif=is_turned)
    return splits, refuse_unreadable(unreadable, on_bad_image)


def hold_out_missing(splits, seed):
    """The three splits; a missing test split is a fifth of the training split, validation a tenth.

    Without a seed, the splits that there are.
    """
    splits = dict(splits)
    if seed is None:
        return {split: splits[split] for split in SPLITS if split in splits}
    for number, (split, every) in enumerate((("test", 5), ("validation", 10))):
        if split not in splits:
            splits["train"], splits[split] = hold_out(splits["train"], every, [seed, number])
    return {split: splits[split] for split in SPLITS}


def hold_out(samples, every, seed):
    """Sample one in `every` of each class, at least one where it has two: (the rest, the held out).

    Where labels are not classes, one in `every` of all samples.

    Example:
        >>> rest, held = hold_out(load_dataset("digits").split("test"), 5, [0])
        >>> len(rest), len(held)
        (286, 69)
    """
    classes, held = class_indices(samples), []
    for label in np.unique(classes):
        indices = np.random.default_rng([*seed, label]).permutation(np.flatnonzero(classes == label))
        held += list(indices[: max(len(indices) // every, int(len(indices) > 1))])
    held = set(held)
    rest = [i for i in range(len(samples)) if i not in held]
    return samples.take(rest), samples.take(sorted(held))


def class_indices(samples):
    """int (samples,): the class of each sample; zeros where labels are unknown or not single classes."""
    labels = samples.labels
    is_known = labels is not None and len(labels) and isinstance(labels[0], int | np.integer)
    return np.asarray(labels) if is_known else np.zeros(len(samples), int)


def by_step(batches, first_step, change):
    """Change batches by a function of the step and the batch; the first batch is that of `first_step`."""
    steps = tf.data.Dataset.counter(first_step)
    return tf.data.Dataset.zip(steps, batches).map(change, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def stream_seed(seed, step, stream):
    """The seed of a step's random numbers; numbers of different streams are independent."""
    return tf.random.experimental.stateless_fold_in(tf.cast(tf.stack([seed, step]), tf.int64), stream)


def worker_slots(batch_size, worker, workers):
    """The slots of a global batch that are one worker's: one of as many equal parts as there are workers.

    Raises:
        ValueError: if the batch size is not a multiple of the workers.

    Example:
        >>> worker_slots(8, worker=1, workers=2)
        range(4, 8)
    """
    if not 0 <= worker < workers or batch_size % workers:
        raise ValueError(
            "batch_size must be a multiple of workers, and worker in [0, workers); "
            f"got batch_size {batch_size}, worker {worker} of {workers}"
        )
    local = batch_size // workers
    return range(worker * local, (worker + 1) * local)


def record_reader(files):
    """A function from the index of a file, the first record and the number of records to these records.

    Args:
        files: (path, number of records before the first, number of records) of each file, a TFRecord file.
    """
    paths, skips, _ = (tf.constant(values) for values in zip(*files))
    skips = tf.cast(skips, tf.int64)
    return lambda index, first, count: (
        tf.data.TFRecordDataset(paths[index]).skip(skips[index] + first).take(count)
    )


def interleaved(read, counts, parse):
    """All records of some chunks, in their order, several interleaved; their number is unknown.

    Args:
        read: A function as of `record_reader`.
        counts: The number of records of each chunk.
        parse: A function from a record to (encoded image, label).
    """
    sizes = tf.constant(counts, tf.int64)
    records = tf.data.Dataset.range(len(counts)).interleave(
        not_converted(lambda i: read(i, tf.constant(0, tf.int64), sizes[i])),
        cycle_length=OPEN_FILES,
        block_length=1,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    return records.map(parse, tf.data.AUTOTUNE)


def parsed(records, parse):
    """Convert a dataset of (position, record) to one of (position, encoded image, label)."""
    return records.map(lambda position, record: (position, *parse(record)), tf.data.AUTOTUNE)


def of_length(records, count):
    """The same dataset, of known length."""
    return records.apply(tf.data.experimental.assert_cardinality(count))
