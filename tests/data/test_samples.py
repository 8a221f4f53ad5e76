import collections
from itertools import product

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from made.sampling import some

from keras_vit.data.samples import IndexedRecords, RecordFiles, Samples, hold_out, part, positions

COUNT = 24
SIZES = (7, 1, 9, 0, 5, 6)  # of the record files


class Listed(list):
    """A list that reads several at once, as ArrayRecord files do."""

    def __getitems__(self, indices):
        return [self[i] for i in indices]


def content(number):
    return f"{number}".encode()


def parse(record):
    return record, tf.strings.to_number(record, tf.int32) % 3


def contents(tmp_path, count=COUNT):
    return Samples(tuple(content(i) for i in range(count)), tuple(i % 3 for i in range(count)))


def paths(tmp_path, count=COUNT):
    for i in range(count):
        (tmp_path / f"{i}.jpg").write_bytes(content(i))
    return Samples(
        tuple(str(tmp_path / f"{i}.jpg") for i in range(count)), tuple(i % 3 for i in range(count))
    )


def array_records(tmp_path, count=COUNT):
    return IndexedRecords(Listed(content(i) for i in range(count)), parse)


def record_files(tmp_path, sizes=SIZES, buffer=5):
    files = [], []
    for number, size in enumerate(sizes):
        path = str(tmp_path / f"{number}.tfrecord")
        with tf.io.TFRecordWriter(path) as writer:
            for i in range(size):
                writer.write(content(sum(sizes[:number]) + i))
        files[0].append(path)
        files[1].append(size)
    return RecordFiles(tuple((path, 0, size) for path, size in zip(*files)), parse, buffer)


INDEXED = (contents, paths, array_records)
KINDS = (*INDEXED, record_files)


@pytest.fixture(params=KINDS, ids=lambda make: make.__name__)
def samples(request, tmp_path):
    return request.param(tmp_path)


@pytest.fixture(params=INDEXED, ids=lambda make: make.__name__)
def indexed(request, tmp_path):
    return request.param(tmp_path)


def stream(samples, seed=0, first_step=0, steps=4, batch_size=12, worker=0, workers=1):
    """[(position, number, label)] of the training records."""
    records = samples.training_records(seed, first_step, steps, batch_size, worker, workers)
    found = [(int(p), int(e), int(label)) for p, e, label in records.as_numpy_iterator()]
    assert len(found) == int(records.cardinality()) == (steps - first_step) * batch_size // workers
    return found


def numbers(found):
    return [number for _, number, _ in found]


def test_what_the_records_are(samples):
    position, encoded, label = samples.training_records(0, 0, 1, 4).element_spec
    assert (position.dtype, encoded.dtype, label.dtype) == (tf.int64, tf.string, tf.int32)
    assert position.shape == encoded.shape == label.shape == ()
    assert samples.evaluation_records().element_spec == (encoded, label)
    assert len(samples) == (28 if isinstance(samples, RecordFiles) else 24)
    assert samples.labels is None or len(samples.labels) == 24


def test_the_orientation_of_files_is_applied_and_of_records_it_is_not(samples):
    assert samples.exif is isinstance(samples, Samples)


def test_some_samples_are_turned_as_all_of_them():
    for exif in (True, False):
        assert Samples((b"a", b"b"), (0, 1), exif).take([1]) == Samples((b"b",), (1,), exif)


def test_a_label_stays_with_its_image(samples):
    assert all(label == number % 3 for _, number, label in stream(samples))
    assert all(int(label) == int(e) % 3 for e, label in samples.evaluation_records().as_numpy_iterator())


def test_evaluation_reads_each_sample_once_in_the_same_order(samples):
    first, again = ([int(e) for e, _ in samples.evaluation_records().as_numpy_iterator()] for _ in range(2))
    assert first == again
    assert sorted(first) == [*range(len(samples))]
    assert int(samples.evaluation_records().cardinality()) == len(samples)


def test_indexed_samples_are_evaluated_in_order(indexed):
    assert [int(e) for e, _ in indexed.evaluation_records().as_numpy_iterator()] == [*range(COUNT)]


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_every_pass_over_indexed_samples_holds_each_once_over_all_workers(indexed, workers):
    found = [record for w in range(workers) for record in stream(indexed, worker=w, workers=workers)]
    assert sorted(position for position, _, _ in found) == [*range(48)]
    for first in (0, COUNT):
        in_pass = sorted(number for position, number, _ in found if first <= position < first + COUNT)
        assert in_pass == [*range(COUNT)]


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_the_global_batch_of_indexed_samples_does_not_depend_on_the_workers(indexed, workers):
    shared = [record for w in range(workers) for record in stream(indexed, worker=w, workers=workers)]
    assert sorted(shared) == stream(indexed)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_every_pass_over_record_files_holds_each_of_the_workers_once_and_all_are_some_workers(
    tmp_path, workers
):
    samples = record_files(tmp_path)
    owned = collections.Counter()
    for worker in range(workers):
        size = sum(take for _, _, take in part(samples.files, worker, workers))
        assert abs(size - 28 / workers) < 1
        found = numbers(stream(samples, steps=3 * size, batch_size=workers, worker=worker, workers=workers))
        first, second, third = (found[i * size : (i + 1) * size] for i in range(3))
        assert sorted(first) == sorted(second) == sorted(third) and len(set(first)) == size
        assert first != second != third != first
        owned.update(first)
    assert owned == collections.Counter(range(28))


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_positions_count_through_the_global_batches(samples, workers):
    local = 12 // workers
    for worker in range(workers):
        found = [position for position, _, _ in stream(samples, first_step=1, worker=worker, workers=workers)]
        assert found == [k * 12 + worker * local + j for k in (1, 2, 3) for j in range(local)]


@pytest.mark.parametrize("step, share", some(product([1, 4, 9, 12], [(0, 1), (1, 2), (2, 3)]), 5))
def test_a_stream_that_starts_late_gives_what_an_uninterrupted_one_gives_from_there(samples, step, share):
    worker, workers = share
    options = {"steps": 12, "batch_size": 6, "worker": worker, "workers": workers}
    whole = stream(samples, **options)
    assert stream(samples, first_step=step, **options) == whole[step * 6 // workers :]


def test_the_order_depends_on_the_seed_and_on_the_pass_alone(samples):
    tf.random.set_seed(1)
    first = stream(samples, seed=5)
    tf.random.set_seed(2)
    assert stream(samples, seed=5) == first
    assert numbers(stream(samples, seed=6)) != numbers(first)
    assert numbers(first)[: len(samples)] != sorted(numbers(first)[: len(samples)])


def test_a_second_pass_is_in_another_order(samples):
    found = numbers(stream(samples, steps=2 * len(samples), batch_size=1))
    assert found[: len(samples)] != found[len(samples) :]


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_one_sample_is_read_again_and_again(make, tmp_path):
    samples = make(tmp_path, (1,)) if make is record_files else make(tmp_path, 1)
    assert stream(samples, steps=3, batch_size=1) == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]


def test_records_that_are_skipped_are_not_parsed(tmp_path):
    parsed = []

    def noting(record):
        tf.py_function(lambda: parsed.append(1), [], [])
        return record, 0

    samples = RecordFiles(record_files(tmp_path).files, noting)
    stream(samples, first_step=30, steps=32, batch_size=2)
    assert len(parsed) == 4


def test_a_buffer_as_large_as_the_files_mixes_all_records_and_one_of_1_none_within_a_file(tmp_path):
    mixed = numbers(stream(record_files(tmp_path, (28,), buffer=28), steps=28, batch_size=1))
    assert abs(np.corrcoef(mixed, range(28))[0, 1]) < 0.6
    assert numbers(stream(record_files(tmp_path, (28,), buffer=1), steps=28, batch_size=1)) == [*range(28)]


def test_the_files_are_in_another_order_in_each_pass(tmp_path):
    samples = record_files(tmp_path, (1,) * 28, buffer=1)
    found = numbers(stream(samples, steps=56, batch_size=1))
    assert sorted(found[:28]) == sorted(found[28:]) == [*range(28)]
    assert [*range(28)] != found[:28] != found[28:] != [*range(28)]
    assert found != numbers(stream(samples, seed=1, steps=56, batch_size=1))


def test_several_files_are_read_in_turns(tmp_path):
    found = numbers(stream(record_files(tmp_path, (7, 7, 7, 7), buffer=1), steps=4, batch_size=1))
    assert sorted(found) == [0, 7, 14, 21]


def test_every_record_comes_first_in_a_pass_as_often_as_another(tmp_path):
    """In 160 passes over 8 samples each is first 20 times, within 5 standard deviations."""
    for samples in (record_files(tmp_path, (4, 4), buffer=8), contents(tmp_path, 8)):
        firsts = collections.Counter(numbers(stream(samples, steps=160, batch_size=8))[::8])
        assert set(firsts) == set(range(8))
        assert max(firsts.values()) < 20 + 5 * 20**0.5


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 7))
def test_parts_are_disjoint_contiguous_and_equal_to_one_record(sizes, workers):
    files = tuple((str(i), 10, size) for i, size in enumerate(sizes))
    whole = [(path, record) for path, skip, take in files for record in range(skip, skip + take)]
    parts = [part(files, worker, workers) for worker in range(workers)]
    assert [(path, r) for own in parts for path, skip, take in own for r in range(skip, skip + take)] == whole
    shares = [sum(take for _, _, take in own) for own in parts]
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("label", [(0.0, 1.0, 1.0), (2.5,)], ids=["multi_label", "regression"])
def test_labels_of_several_numbers_are_floats(label):
    samples = Samples((b"a", b"b"), (label, label))
    for records in (samples.training_records(0, 0, 1, 2), samples.evaluation_records()):
        for found in records:
            assert found[-1].dtype == tf.float32 and tuple(found[-1].numpy()) == label


@pytest.mark.parametrize("empty", [Samples((), ()), IndexedRecords(Listed(), parse), RecordFiles((), parse)])
def test_no_samples_are_refused(empty):
    with pytest.raises(ValueError, match="there are no samples"):
        empty.evaluation_records()
    with pytest.raises(ValueError, match="there are no samples"):
        empty.training_records(0, 0, 1, 1)


@pytest.mark.parametrize("worker, workers, batch_size", [(0, 5, 12), (2, 2, 12), (-1, 2, 12)])
def test_a_batch_that_cannot_be_shared_out_is_refused(samples, worker, workers, batch_size):
    with pytest.raises(ValueError, match=f"got batch_size 12, worker {worker} of {workers}"):
        samples.training_records(0, 0, 1, batch_size, worker, workers)


def test_more_workers_than_records_are_refused(tmp_path):
    with pytest.raises(ValueError, match="3 workers need a sample each; there are 2"):
        record_files(tmp_path, (2,)).training_records(0, 0, 1, 3, 0, 3)


def test_of_labels_that_are_no_classes_a_share_of_all_is_held_out():
    samples = Samples(tuple(content(i) for i in range(20)), tuple((float(i), 1.0) for i in range(20)))
    rest, held = hold_out(samples, 5, [0])
    assert (len(rest), len(held)) == (16, 4)
    assert sorted(rest.images + held.images) == sorted(samples.images)
    assert hold_out(samples, 5, [1])[1] != held


def test_the_positions_of_no_step_are_none():
    assert list(positions(3, 3, 4, 0, 1)) == []
