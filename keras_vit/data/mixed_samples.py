"""Samples of several sources, of which each batch has fixed numbers."""

import dataclasses
import fractions
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.decoding.exif import without_orientation
from keras_vit.data.samples import not_converted, positions
from keras_vit.labels import label_kind


@dataclasses.dataclass(frozen=True)
class Part:
    """The samples of one source of `MixedSamples`.

    Args:
        name: The name of the source.
        samples: Samples with the interface of `IndexedSamples`.
        weight: Its proportion, a fractions.Fraction, relative to those of the others; None: the number of its
            samples, and it may be missing from a batch.
        labels: The label in the mixture for each label of the source; None: the same.
    """

    name: str
    samples: Any
    weight: fractions.Fraction | None = None
    labels: Sequence[int] | None = None

    def converted(self, records, exif):
        """Convert a dataset of (…, encoded image, label) to one with images and labels of the mixture.

        Args:
            records: The dataset.
            exif: Whether the mixture applies the EXIF orientation; images whose source does not lose theirs.
        """
        labels = None if self.labels is None else tf.constant(self.labels, tf.int32)
        is_reset = exif and not self.samples.exif

        @not_converted
        def record(*values):
            *others, encoded, label = values
            encoded = without_orientation(encoded) if is_reset else encoded
            return *others, encoded, label if labels is None else tf.gather(labels, label)

        return records.map(record)


@dataclasses.dataclass(frozen=True)
class MixedSamples:
    """Samples of several sources in fixed proportions, with the interface of `IndexedSamples`.

    Each batch has a fixed number of samples of each source, evenly spread over its slots. These have the
    order of batches of that number from the source alone, with a seed of its own. So the order is a function
    of the seed and the position, whatever the number of workers, and a worker reads its own slots only.

    Args:
        parts: A `Part` for each source.

    Attributes:
        label_values: What the labels of all sources mean, as of `LabelKind.shared_values`; None where it is
            not known.

    Raises:
        ValueError: if the labels of two sources mean different things, as depths in different units.

    Example:
        >>> test, three, one = load_dataset("digits").split("test"), *map(fractions.Fraction, (3, 1))
        >>> samples = MixedSamples((Part("a", test, three), Part("b", test, one)))
        >>> samples.shares(8), len(samples)
        ([6, 2], 710)
    """

    parts: tuple[Part, ...]
    order = "mixture"

    def __post_init__(self):
        object.__setattr__(self, "label_values", _shared_values(self.parts))

    def __len__(self):
        return sum(len(part.samples) for part in self.parts)

    @property
    def task(self):
        """The task of all sources, see `IndexedSamples`."""
        return self.parts[0].samples.task

    @property
    def exif(self):
        """Whether to apply the EXIF orientation of the images: as of any source."""
        return any(part.samples.exif for part in self.parts)

    @functools.cached_property
    def labels(self):
        """The label of each sample; None where a source does not know them before reading."""
        labels = []
        for part in self.parts:
            if part.samples.labels is None:
                return None
            part_labels = part.samples.labels
            labels += part_labels if part.labels is None else [part.labels[label] for label in part_labels]
        return tuple(labels)

    def shares(self, batch_size):
        """The number of samples of each source in a batch, by the method of largest remainders.

        Raises:
            ValueError: if a batch has no sample of a source with a weight.
        """
        weights = [len(part.samples) if part.weight is None else part.weight for part in self.parts]
        exact = [fractions.Fraction(batch_size * weight, sum(weights)) for weight in weights]
        shares = [math.floor(share) for share in exact]
        by_remainder = sorted(range(len(exact)), key=lambda i: shares[i] - exact[i])
        for i in by_remainder[: batch_size - sum(shares)]:
            shares[i] += 1
        for part, share, weight in zip(self.parts, shares, weights):
            if part.weight is not None and not share:
                raise ValueError(
                    f"a batch of {batch_size} has no sample of {part.name!r}; expected a batch size of at "
                    f"least {math.ceil(sum(weights) / weight)}, or a larger weight"
                )
        return shares

    def training_records(self, seed, first_step, steps, batch_size, slots=None):
        """See `IndexedSamples`.

        Raises:
            ValueError: as `shares`.
        """
        slots = range(batch_size) if slots is None else slots
        shares = self.shares(batch_size)
        sources = _spread(shares)
        used, choices, counts = np.unique(
            sources[slots.start : slots.stop], return_inverse=True, return_counts=True
        )
        streams = []
        for source, count in zip(used.tolist(), counts.tolist()):
            first = int(np.count_nonzero(sources[: slots.start] == source))
            part, own_seed = self.parts[source], _seed_of_source(seed, source)
            records = part.samples.training_records(
                own_seed, first_step, steps, shares[source], range(first, first + count)
            )
            streams.append(part.converted(records, self.exif))
        choices = tf.data.Dataset.from_tensor_slices(choices.astype("int64")).repeat(steps - first_step)
        numbers = positions(first_step, steps, batch_size, slots)
        records = tf.data.Dataset.zip(numbers, tf.data.Dataset.choose_from_datasets(streams, choices))
        records = records.map(not_converted(lambda position, record: (position, *record[1:])))
        return records.apply(tf.data.experimental.assert_cardinality(numbers.cardinality()))

    def evaluation_records(self):
        """As in `IndexedSamples`, one source after another."""
        records = [part.converted(part.samples.evaluation_records(), self.exif) for part in self.parts]
        return functools.reduce(tf.data.Dataset.concatenate, records)

    def numbered_records(self, start, stop):
        """As in `IndexedSamples`, one source after another."""
        records = []
        for part, before in self._parts():
            window = max(start - before, 0), min(stop - before, len(part.samples))
            if window[0] < window[1]:
                numbered = part.converted(part.samples.numbered_records(*window), self.exif)
                offset = not_converted(lambda number, *rest, before=before: (before + number, *rest))
                records.append(numbered.map(offset))
        return functools.reduce(tf.data.Dataset.concatenate, records)

    def place(self, index):
        """See `IndexedSamples`."""
        samples, index = self._sample(index)
        return samples.place(index)

    def content(self, index):
        """See `IndexedSamples`."""
        samples, index = self._sample(index)
        return samples.content(index)

    def stored(self):
        """As in `IndexedSamples`, one source after another."""
        return itertools.chain.from_iterable(part.samples.stored() for part in self.parts)

    def take(self, indices):
        """The samples at some indices, in ascending order.

        Raises:
            ValueError: if a source has no `take`, or one with a weight would have no samples.
        """
        indices = np.sort(np.fromiter(indices, int))
        taken = []
        for part, start in self._parts():
            rows = indices[(start <= indices) & (indices < start + len(part.samples))] - start
            if not hasattr(part.samples, "take"):
                raise ValueError(f"{part.name!r} is read in order; some of its samples cannot be chosen")
            if part.weight is not None and not len(rows):
                raise ValueError(f"expected samples of each source; got none of {part.name!r}")
            if len(rows):
                taken.append(dataclasses.replace(part, samples=part.samples.take(rows)))
        return MixedSamples(tuple(taken))

    def _parts(self):
        """Each `Part`, and the number of its first sample."""
        return zip(self.parts, itertools.accumulate((len(part.samples) for part in self.parts), initial=0))

    def _sample(self, index):
        """The samples of a source, and the number there, of one of all samples."""
        return next(
            (part.samples, index - before) for part, before in reversed([*self._parts()]) if before <= index
        )


def _shared_values(parts):
    """The `label_values` of `MixedSamples`."""
    shared = {}
    for part in parts:
        values = getattr(part.samples, "label_values", None)
        values = {} if values is None else label_kind(part.samples.task).shared_values(values)
        for name, value in values.items():
            first, expected = shared.setdefault(name, (part.name, value))
            if value != expected:
                raise ValueError(
                    f"expected the {name} of {first!r} in {part.name!r}: {expected!r}; got {value!r}"
                )
    return {name: value for name, (_, value) in shared.items() if value is not None} or None


def _spread(shares):
    """The number of the source in each slot of a batch: int64 (batch,).

    >>> _spread([4, 2]).tolist()
    [0, 1, 0, 0, 1, 0]
    """
    places = [
        ((2 * i + 1) / (2 * share), source) for source, share in enumerate(shares) for i in range(share)
    ]
    return np.array([source for _, source in sorted(places)])


def _seed_of_source(seed, source):
    """A seed for each source, so that two that are equal are in different orders."""
    return int(np.random.SeedSequence([seed, source]).generate_state(1)[0])
