import collections
import fractions
import functools

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from made.photos import photo

from keras_vit.data import chunked_records
from keras_vit.data.chunked_records import ChunkedRecords
from keras_vit.data.decoding.model_input import decode
from keras_vit.data.mixed_samples import MixedSamples, Part
from keras_vit.data.samples import Samples, worker_slots

COUNTS = (20, 33, 9)
WEIGHTS = ("0.5", "0.1", "0.4")


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(chunked_records, "WINDOW_RECORDS", 16)


def contents(start, count):
    """Samples by index whose contents are the numbers from one on."""
    return Samples(tuple(b"%d" % number for number in range(start, start + count)), (1,) * count)


def chunks(start, counts):
    """As `contents`, of samples in chunks."""

    def read(chunk, first, count):
        before = tf.gather(tf.cumsum(tf.constant(counts, tf.int64), exclusive=True), chunk)
        return tf.data.Dataset.range(start + before + first, start + before + first + count)

    return ChunkedRecords(counts, read, lambda number: (tf.strings.as_string(number), 1))


def mixture(weights=WEIGHTS, labels=(None, None, None)):
    """Samples of three sources, with numbers from 0, 100 and 200 on."""
    sources = contents(0, COUNTS[0]), chunks(100, (13, 20)), contents(200, COUNTS[2])
    weights = [weight and fractions.Fraction(weight) for weight in weights]
    return MixedSamples(tuple(map(Part, "abc", sources, weights, labels)))


def stream(of, first_step=0, steps=10, batch_size=20, worker=0, workers=1, seed=0):
    """[(position, number)] of the training records."""
    slots = worker_slots(batch_size, worker, workers)
    records = of.training_records(seed, first_step, steps, batch_size, slots)
    found = [(int(position), int(number)) for position, number, _ in records.as_numpy_iterator()]
    assert len(found) == int(records.cardinality()) == (steps - first_step) * batch_size // workers
    return found


def of_source(found, source):
    return [number for _, number in found if number // 100 == source]


@functools.cache
def whole():
    """The first ten batches of twenty samples."""
    return stream(mixture())


@pytest.mark.parametrize("batch_size, shares", [(20, [10, 2, 8]), (7, [3, 1, 3]), (64, [32, 6, 26])])
def test_the_largest_remainders_are_rounded_up(batch_size, shares):
    assert mixture().shares(batch_size) == shares


@given(
    st.lists(st.fractions(fractions.Fraction(1, 9), 9, max_denominator=50), min_size=1, max_size=5),
    st.integers(1, 300),
)
def test_shares_are_the_weights_up_to_one_sample(weights, batch_size):
    of = MixedSamples(tuple(Part(str(weight), contents(0, 3), weight) for weight in weights))
    exact = [batch_size * weight / sum(weights) for weight in weights]
    if min(exact) < 1:
        return
    shares = of.shares(batch_size)
    assert sum(shares) == batch_size
    assert all(abs(share - expected) < 1 for share, expected in zip(shares, exact))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [4, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 5, 20))])
def test_the_global_batches_do_not_depend_on_the_number_of_workers(workers):
    parts = [stream(mixture(), worker=worker, workers=workers) for worker in range(workers)]
    assert sorted(sum(parts, [])) == whole()
    assert [position for position, _ in whole()] == [*range(200)]


def test_a_resumed_stream_is_the_rest_also_with_another_number_of_workers():
    halves = [stream(mixture(), first_step=7, worker=worker, workers=2) for worker in (0, 1)]
    assert sorted(sum(halves, [])) == whole()[140:]


def test_each_source_has_all_its_samples_once_before_one_comes_again():
    found = stream(mixture(), steps=20)
    for source, count in ((0, 20), (2, 9)):
        own = of_source(found, source)
        epochs = [own[start : start + count] for start in range(0, len(own) - count + 1, count)]
        assert {tuple(sorted(epoch)) for epoch in epochs} == {
            tuple(range(100 * source, 100 * source + count))
        }
        assert len({tuple(epoch) for epoch in epochs}) > 1
    counts = collections.Counter(of_source(found, 1))  # 20 of each of two lanes
    assert counts.keys() == {*range(100, 133)} and {*counts.values()} == {1, 2}


def test_each_half_of_a_batch_has_a_fixed_number_of_samples_of_each_source():
    for start in range(0, 200, 10):
        half = whole()[start : start + 10]
        assert [len(of_source(half, source)) for source in range(3)] == [5, 1, 4]


def test_two_equal_sources_are_in_different_orders():
    half = fractions.Fraction(1, 2)
    of = MixedSamples((Part("a", contents(0, 20), half), Part("b", contents(100, 20), half)))
    found = stream(of, steps=4, batch_size=10)
    assert of_source(found, 0) != [number - 100 for number in of_source(found, 1)]


def test_the_order_depends_on_the_seed():
    assert stream(mixture(), seed=1, steps=1) != whole()[:20]


def test_a_batch_without_a_sample_of_a_source_is_refused():
    words = "a batch of 4 has no sample of 'b'; expected a batch size of at least 10, or a larger weight"
    with pytest.raises(ValueError, match=words):
        mixture().training_records(0, 0, 1, 4)


def test_without_weights_a_batch_may_lack_a_source_and_one_of_all_samples_has_each_once():
    of = mixture((None, None, None))
    assert of.shares(2) == [1, 1, 0]
    assert sorted(number for _, number in stream(of, steps=1, batch_size=62)) == [
        *range(20),
        *range(100, 133),
        *range(200, 209),
    ]


def test_evaluation_reads_one_source_after_another():
    records = mixture().evaluation_records()
    found = [int(number) for number, _ in records.as_numpy_iterator()]
    assert len(found) == int(records.cardinality()) == len(mixture()) == 62
    assert found[:20] == [*range(20)] and found[53:] == [*range(200, 209)]
    assert sorted(found[20:53]) == [*range(100, 133)]


def test_labels_are_those_of_the_mixture():
    of = mixture(labels=(None, (7, 5), (7, 6)))
    for records in (of.training_records(0, 0, 2, 20), of.evaluation_records()):
        found = {(int(number) // 100, int(label)) for *_, number, label in records.as_numpy_iterator()}
        assert found == {(0, 1), (1, 5), (2, 6)}
    assert of.labels is None  # Those of the second source are unknown.
    known = MixedSamples((of.parts[0], of.parts[2]))
    assert known.labels == (1,) * 20 + (6,) * 9


def test_samples_are_chosen_by_index():
    of = MixedSamples((mixture().parts[0], mixture().parts[2]))
    taken = of.take([22, 3, 4])
    assert [int(number) for number, _ in taken.evaluation_records()] == [3, 4, 202]
    with pytest.raises(ValueError, match="expected samples of each source; got none of 'c'"):
        of.take([3, 4])
    with pytest.raises(ValueError, match="'b' is read in order; some of its samples cannot be chosen"):
        mixture().take([3])


@pytest.mark.parametrize("exif", [False, True])
def test_the_orientation_is_applied_to_the_images_of_sources_that_have_it(exif):
    sources = (Samples((photo(6),), (0,), exif=exif), Samples((photo(6),), (0,), exif=False))
    of = MixedSamples(tuple(map(Part, "ab", sources)))
    for records in (of.training_records(0, 0, 1, 2), of.numbered_records(0, 2), of.evaluation_records()):
        shapes = {decode(encoded, of.exif).shape[:2] for *_, encoded, _ in records}
        assert shapes == ({(20, 33), (33, 20)} if exif else {(20, 33)})
