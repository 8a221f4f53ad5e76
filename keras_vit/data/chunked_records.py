"""Samples that are read in chunks, in an order that any number of workers shares."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data import samples
from keras_vit.data.decoding.model_input import check_image
from keras_vit.data.samples import not_converted, of_length, parsed, positions
from keras_vit.labels import label_kind

MAX_LANES = 8
WINDOW_RECORDS = 4096  # of the windows of all lanes
MIN_CHANGES = 0.1  # of the changes of class from one sample to the next in a random order


@dataclasses.dataclass(frozen=True)
class ChunkedRecords:
    """Serialized samples in chunks that are read sequentially, with the interface of `IndexedSamples`.

    The order in training is a function of the seed and the position, whatever the number of workers. In each
    epoch the chunks are permuted, and their records, one chunk after another, divided among lanes of equal
    length (up to one record). A lane is read in windows, and the records of a window are permuted. Each lane
    has an equal part of each batch. The lanes are as many as divide the batch, at most `MAX_LANES`, and start
    their epochs independently. The parts of one epoch have each record once. If the lanes do not divide the
    records, those with one record less are ahead of the others by one record more in each epoch.

    Mixing is local: a batch has records of one window of each lane, `WINDOW_RECORDS` in total, so records
    should not be sorted by class. A worker holds about three windows of each lane that its part of the
    batch needs: the records of one are read, of one wait, of one are used. A resumed run reads at most one
    window of each lane again. With more workers than lanes, several workers read one lane.

    Args:
        counts: The number of records of each chunk.
        read: A function from the index of a chunk, the first record and the number of records, int64
            tensors (), to a tf.data.Dataset of these records.
        parse: A function from a record to (encoded image, label).
        fetch: A function from the index of a chunk, an int, that makes it ready, such as by a download. Each
            lane calls it for a chunk while it reads the one before. None: all are ready.
        task: See `IndexedSamples`.

    Example:
        >>> def read(chunk, first, count):
        ...     return tf.data.Dataset.range(first, first + count).map(lambda i: 10 * chunk + i)
        >>> samples = ChunkedRecords((3, 2), read, parse=lambda record: (record, 0))
        >>> [int(record) for record, label in samples.evaluation_records()]
        [0, 10, 1, 11, 2]
        >>> epoch = samples.training_records(seed=0, first_step=0, steps=1, batch_size=5)
        >>> sorted(int(record) for position, record, label in epoch)
        [0, 1, 2, 10, 11]

    Source: "elastic determinism" of MosaicML's Streaming has the same promise for its own format.
    """

    counts: tuple[int, ...]
    read: Callable[[Any, Any, Any], tf.data.Dataset]
    parse: Callable[[Any], tuple]
    fetch: Callable[[int], None] | None = None
    task: str | None = None
    order = "lanes"
    labels = None
    exif = False

    def __len__(self):
        return sum(self.counts)

    def training_records(self, seed, first_step, steps, batch_size, slots=None):
        """See `IndexedSamples`."""
        slots = range(batch_size) if slots is None else slots
        lanes = lane_count(batch_size, len(self))
        numbers = positions(first_step, steps, batch_size, slots)
        size = batch_size // lanes  # of a lane's part of a batch
        needed = range(slots.start // size, -(-slots.stop // size))

        @not_converted
        def of_lane(lane):
            start = lane * size
            part = slice(tf.maximum(slots.start - start, 0), tf.minimum(slots.stop - start, size))
            groups = self._lane(lane, lanes, seed, first_step * size).batch(size)
            return groups.map(not_converted(lambda group: tf.nest.map_structure(lambda x: x[part], group)))

        groups = tf.data.Dataset.range(needed.start, needed.stop).interleave(
            of_lane, cycle_length=len(needed), num_parallel_calls=len(needed), deterministic=True
        )
        return of_length(
            parsed(tf.data.Dataset.zip((numbers, groups.unbatch())), self.parse), numbers.cardinality()
        )

    def evaluation_records(self):
        """As in `IndexedSamples`, in the order of the chunks, several interleaved."""
        return of_length(samples.interleaved(self.read, self.counts, self.parse), len(self))

    def numbered_records(self, start, stop):
        """See `IndexedSamples`."""
        before = np.cumsum([0, *self.counts[:-1]])
        firsts, counts = np.maximum(start - before, 0), np.minimum(stop - before, self.counts)
        used = np.flatnonzero(firsts < counts)
        chunks, firsts, numbers = (tf.constant(x, tf.int64) for x in (used, firsts[used], before[used]))

        @not_converted
        def read(i, first, count):
            first += firsts[i]
            numbered = tf.data.Dataset.range(numbers[i] + first, numbers[i] + first + count)
            return tf.data.Dataset.zip((numbered, self.read(chunks[i], first, count)))

        counts = (counts[used] - firsts.numpy()).tolist()
        parse = not_converted(lambda number, record: (number, *self.parse(record)))
        return samples.interleaved(read, counts, parse)

    def place(self, index):
        """See `IndexedSamples`."""
        return f"sample {index}"

    def content(self, index):
        """See `IndexedSamples`."""
        [(_, image, _)] = self.numbered_records(index, index + 1).as_numpy_iterator()
        return image

    def stored(self):
        """See `IndexedSamples`."""
        for number, image, _ in self.numbered_records(0, len(self)).as_numpy_iterator():
            yield functools.partial(self.place, number), functools.partial(bytes, image), check_image

    def _lane(self, lane, lanes, seed, done):
        """The records of a lane, of which some are done, for ever."""
        first, stop = (i * len(self) // lanes for i in (lane, lane + 1))
        window = WINDOW_RECORDS // lanes
        epoch, done = done // (stop - first), done % (stop - first)
        windows = done // window

        @not_converted
        def of_epoch(number):
            skipped = tf.where(number == epoch, windows, 0)
            segments = self._segments(seed, number, first + skipped * window, stop)
            segments = tf.data.Dataset.from_tensor_slices(segments)
            if self.fetch is not None:
                segments = segments.map(fetched).prefetch(1)
            records = segments.flat_map(not_converted(self.read))
            count = (stop - first) // window + 1  # Seeds differ between windows, lanes and epochs.
            seeds = tf.data.Dataset.counter((number * lanes + lane) * count + skipped)
            return tf.data.Dataset.zip((seeds, records.batch(window))).map(shuffle)

        @not_converted
        def fetched(*segment):
            with tf.control_dependencies([tf.numpy_function(self.fetch, segment[:1], [])]):
                return tuple(map(tf.identity, segment))

        @not_converted
        def shuffle(number, records):
            size = tf.shape(tf.nest.flatten(records)[0], tf.int64)[0]
            order = tf.random.experimental.index_shuffle(tf.range(size), [-1 - seed, number], size - 1)
            return tf.nest.map_structure(lambda values: tf.gather(values, order), records)

        epochs = tf.data.Dataset.range(epoch, tf.int64.max)
        return epochs.flat_map(of_epoch).prefetch(1).unbatch().skip(done - windows * window)

    def _segments(self, seed, epoch, first, stop):
        """The records from one to another of an epoch's permuted chunks: (chunk, first, count), each (n,)."""
        chunks = tf.range(len(self.counts), dtype=tf.int64)
        chunks = tf.random.experimental.index_shuffle(chunks, [seed, epoch], len(self.counts) - 1)
        counts = tf.gather(tf.constant(self.counts, tf.int64), chunks)
        before = tf.cumsum(counts, exclusive=True)
        starts, stops = tf.maximum(first - before, 0), tf.minimum(stop - before, counts)
        is_used = starts < stops
        return tuple(tf.boolean_mask(x, is_used) for x in (chunks, starts, stops - starts))


def refuse_sorted(dataset):
    """Raise ValueError if the training samples of a `Dataset` are sorted by class, and mixed only locally."""
    for part in dataset.parts:
        refuse_sorted(part)
    samples = dataset.split("train")
    if samples.order != ChunkedRecords.order or samples.labels is None or len(samples) <= WINDOW_RECORDS:
        return
    if not label_kind(dataset.task).is_class_id or dataset.captions("train") is not None:
        return
    changes, expected = class_changes(samples.labels)
    if changes < MIN_CHANGES * expected:
        raise ValueError(
            f"{dataset.name!r}: expected training images in a random order, where {expected:,.0f} follow one "
            f"of another class; got images sorted by class: {changes:,} do. Shuffle them: "
            f"keras-vit data write --dataset {dataset.name} --output FOLDER"
        )


def class_changes(labels):
    """The number of samples that follow one of another class, and its mean over all orders.

    >>> class_changes([0, 0, 1, 1])
    (1, 2.0)
    """
    labels = np.asarray(labels)
    changes = int(np.count_nonzero(np.diff(labels)))
    _, counts = np.unique(labels, return_counts=True)
    same = np.sum(counts * (counts - 1.0)) / max(len(labels), 1)
    return changes, float(len(labels) - 1 - same)


def lane_count(batch_size, records):
    """The largest number that divides the batch, up to `MAX_LANES` and the number of records.

    >>> lane_count(512, 10_000), lane_count(50, 10_000), lane_count(8, 3)
    (8, 5, 2)
    """
    most = min(MAX_LANES, batch_size, records)
    return next(count for count in range(most, 0, -1) if batch_size % count == 0)
