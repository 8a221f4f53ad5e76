"""The samples of a split, whatever they lie in, and the order in which they are read."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.images import read

READ_AT_ONCE = 64  # array records
FILES_AT_ONCE = 16
SHUFFLE_BUFFER = 10_000  # records, encoded


@dataclasses.dataclass(frozen=True)
class Samples:
    """Encoded images and their labels, at hand by index.

    All kinds of samples have what this one has: `len`, `labels` (None where they are not known without
    reading), `exif`, `training_records` and `evaluation_records`.

    Args:
        images: Paths (str) or file contents (bytes), all of one kind.
        labels: As many: class numbers, or for several numbers a sample, tuples of floats.
        exif: Whether the EXIF orientation is applied to the images; False where all are stored upright
            saves the search for it.

    Example:
        >>> samples = load_dataset("digits").split("test")
        >>> records = samples.training_records(seed=0, first_step=0, steps=2, batch_size=4)
        >>> [int(position) for position, encoded, label in records]
        [0, 1, 2, 3, 4, 5, 6, 7]
    """

    images: tuple[str | bytes, ...]
    labels: tuple[int | tuple[float, ...], ...]
    exif: bool = True

    def __len__(self):
        return len(self.images)

    def take(self, indices):
        images, labels = (tuple(values[i] for i in indices) for values in (self.images, self.labels))
        return dataclasses.replace(self, images=images, labels=labels)

    def training_records(self, seed, first_step, steps, batch_size, worker=0, workers=1):
        """What a worker's batches consume from one step to another, in order.

        Args:
            seed: An int; the order depends on it and on the position alone.
            first_step, steps: The step to start at, and the one to stop before.
            batch_size: Samples in a batch of all workers together.
            worker, workers: This worker's number from 0, and how many there are.

        Returns:
            tf.data.Dataset of (position, encoded image, label). The position, int64, counts the samples
            of all workers' batches from step 0; the label is int32, or float32 (numbers,).
        """
        record = self._record()

        def at(position):
            return position, *record(shuffled(position, len(self), seed))

        return positions(first_step, steps, batch_size, worker, workers).map(at, tf.data.AUTOTUNE)

    def evaluation_records(self):
        """Each sample once, in order: tf.data.Dataset of (encoded image, label)."""
        return tf.data.Dataset.range(len(self)).map(self._record(), tf.data.AUTOTUNE)

    def _record(self):
        """The function from an index to (encoded image, label)."""
        check_not_empty(len(self))
        images, labels = tf.constant(self.images), np.asarray(self.labels)
        in_files = isinstance(self.images[0], str)
        labels = tf.constant(labels, tf.int32 if labels.dtype.kind in "iu" else tf.float32)

        def record(index):
            return read(images[index]) if in_files else images[index], labels[index]

        return record


@dataclasses.dataclass(frozen=True)
class IndexedRecords:
    """Serialized samples that can be read by index, as in ArrayRecord files; used as `Samples` are.

    Args:
        source: A sequence of bytes, whose `__getitems__` reads several.
        parse: The function from such a record to (encoded image, label).
    """

    source: Sequence[bytes]
    parse: Callable[[Any], tuple]
    labels = None
    exif = False  # The published evaluations do not apply it.

    def __len__(self):
        return len(self.source)

    def training_records(self, seed, first_step, steps, batch_size, worker=0, workers=1):
        """As of `Samples`."""
        check_not_empty(len(self))
        wanted = positions(first_step, steps, batch_size, worker, workers)
        return self._read(wanted.map(lambda position: (position, shuffled(position, len(self), seed))))

    def evaluation_records(self):
        """As of `Samples`."""
        check_not_empty(len(self))
        indices = tf.data.Dataset.range(len(self))
        records = self._read(tf.data.Dataset.zip((indices, indices)))
        return records.map(lambda position, encoded, label: (encoded, label))

    def _read(self, wanted):
        """A dataset of (position, index) to one of (position, encoded image, label)."""

        def read(indices):
            return np.array(self.source.__getitems__(indices.tolist()), object)

        def read_some(positions, indices):
            records = tf.numpy_function(read, [indices], tf.string, stateful=False)
            return positions, tf.ensure_shape(records, positions.shape)

        read_in_batches = wanted.batch(READ_AT_ONCE).map(read_some, tf.data.AUTOTUNE)
        return _parsed(read_in_batches.unbatch(), self.parse, wanted.cardinality())


@dataclasses.dataclass(frozen=True)
class RecordFiles:
    """Serialized samples in TFRecord files, which can be read in order only; used as `Samples` are.

    Each worker reads its own part of the records, and each pass over it is in another order: the files
    shuffled, several of them read in turns, and the records shuffled in a buffer. A stream that starts late
    skips records without parsing them.

    Args:
        files: (path, how many records to skip, how many to take) of each.
        parse: The function from a record to (encoded image, label).
        buffer: Records to shuffle among.

    Example:
        >>> with tf.io.TFRecordWriter("some.tfrecord") as file:
        ...     for content in (b"a", b"b", b"c"):
        ...         file.write(content)
        >>> samples = RecordFiles((("some.tfrecord", 1, 2),), parse=lambda record: (record, 0))
        >>> [encoded.numpy() for encoded, label in samples.evaluation_records()]
        [b'b', b'c']
    """

    files: tuple[tuple[str, int, int], ...]
    parse: Callable[[Any], tuple]
    buffer: int = SHUFFLE_BUFFER
    labels = None
    exif = False  # The published evaluations do not apply it.

    def __len__(self):
        return sum(take for _, _, take in self.files)

    def training_records(self, seed, first_step, steps, batch_size, worker=0, workers=1):
        """As of `Samples`, but that each worker has its own samples.

        Raises:
            ValueError: if there are fewer samples than workers.
        """
        if len(self) < workers:
            check_not_empty(len(self))
            raise ValueError(f"{workers} workers need a sample each; there are {len(self)}")
        files = part(self.files, worker, workers)
        wanted = positions(first_step, steps, batch_size, worker, workers)
        first_pass, skipped = divmod(first_step * (batch_size // workers), sum(take for _, _, take in files))
        passes = tf.data.Dataset.range(first_pass, tf.int64.max)
        records = passes.flat_map(lambda number: self._one_pass(files, seed, number)).skip(skipped)
        return _parsed(tf.data.Dataset.zip((wanted, records)), self.parse, wanted.cardinality())

    def evaluation_records(self):
        """As of `Samples`, in the order of `files`, read in turns."""
        check_not_empty(len(self))
        records = _in_turns(self.files, lambda i: i).map(self.parse, tf.data.AUTOTUNE)
        return records.apply(tf.data.experimental.assert_cardinality(len(self)))

    def _one_pass(self, files, seed, number):
        records = _in_turns(files, lambda i: shuffled(number * len(files) + i, len(files), seed))
        return _shuffled_in_buffer(records, self.buffer, [seed, number])


def positions(first_step, steps, batch_size, worker, workers):
    """The positions in the global stream of samples that a worker's batches consume, in order.

    Worker w of W consumes the w-th of W equal parts of each batch.

    Raises:
        ValueError: if the batch cannot be shared out.

    Example:
        >>> [int(p) for p in positions(1, 3, batch_size=4, worker=1, workers=2)]
        [6, 7, 10, 11]
    """
    if not 0 <= worker < workers or batch_size % workers:
        raise ValueError(
            "batch_size must be a multiple of the workers, and worker one of them; "
            f"got batch_size {batch_size}, worker {worker} of {workers}"
        )
    local = batch_size // workers
    own = tf.data.Dataset.range(first_step * local, steps * local)
    return own.map(lambda k: k // local * batch_size + worker * local + k % local)


def shuffled(position, n, seed):
    """The sample at a position of an endless stream in which every n positions hold all n samples.

    Example:
        >>> sorted(int(shuffled(tf.constant(p, tf.int64), 4, seed=0)) for p in range(4, 8))
        [0, 1, 2, 3]
    """
    return tf.random.experimental.index_shuffle(position % n, [seed, position // n], n - 1)


def part(files, worker, workers):
    """The worker's part of the records: equal (to one record), contiguous, its own.

    Example:
        >>> part((("a", 0, 4), ("b", 2, 3)), worker=1, workers=2)
        (('a', 3, 1), ('b', 2, 3))
    """
    total = sum(take for _, _, take in files)
    start, stop = (w * total // workers for w in (worker, worker + 1))
    own, before = [], 0
    for path, skip, take in files:
        first, last = max(start - before, 0), min(stop - before, take)
        if first < last:
            own.append((path, skip + first, last - first))
        before += take
    return tuple(own)


def hold_out(samples, share, seed):
    """Draw one in `share` of each class, at least one where it has two: (the rest, the drawn).

    Where labels are no classes, one in `share` of all samples.

    Example:
        >>> rest, held = hold_out(load_dataset("digits").split("test"), 5, [0])
        >>> len(rest), len(held)
        (286, 69)
    """
    classes = np.asarray(samples.labels)
    if classes.ndim > 1 or classes.dtype.kind == "f":
        classes = np.zeros(len(samples), int)
    held = []
    for label in np.unique(classes):
        indices = np.random.default_rng([*seed, label]).permutation(np.flatnonzero(classes == label))
        held += list(indices[: max(len(indices) // share, int(len(indices) > 1))])
    held = set(held)
    rest = [i for i in range(len(samples)) if i not in held]
    return samples.take(rest), samples.take(sorted(held))


def check_not_empty(count):
    if not count:
        raise ValueError("there are no samples to make batches of")


def _in_turns(files, order):
    """The records of the files, several files read in turns; `order` says which file is the i-th."""
    paths, skips, takes = (tf.constant(values) for values in zip(*files))

    def read(i):
        index = order(i)
        records = tf.data.TFRecordDataset(paths[index])
        return records.skip(tf.cast(skips[index], tf.int64)).take(tf.cast(takes[index], tf.int64))

    return tf.data.Dataset.range(len(files)).interleave(
        read,
        cycle_length=FILES_AT_ONCE,
        block_length=1,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def _shuffled_in_buffer(records, size, seed):
    """As `records.shuffle`, whose seed must be a number and is mixed with TensorFlow's global one."""
    seed, seed2 = tf.unstack(tf.random.stateless_uniform((2,), seed, None, None, tf.int64))
    shuffle = tf.raw_ops.ShuffleDataset(
        input_dataset=tf.data.experimental.to_variant(records),
        buffer_size=size,
        seed=seed,
        seed2=seed2,
        output_types=[tf.string],
        output_shapes=[()],
        reshuffle_each_iteration=False,
    )
    return tf.data.experimental.from_variant(shuffle, records.element_spec)


def _parsed(records, parse, count):
    """A dataset of (position, record) to one of (position, encoded image, label), its length known."""
    records = records.map(lambda position, record: (position, *parse(record)), tf.data.AUTOTUNE)
    return records.apply(tf.data.experimental.assert_cardinality(count))
