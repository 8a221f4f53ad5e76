from itertools import product

import pytest
import tensorflow as tf
from made.tables import by_table

from keras_vit.data.samples import IndexedRecords, Samples, hold_out, worker_slots

COUNT = 24


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
    files = tuple(str(tmp_path / f"{i}.jpg") for i in range(count))
    return Samples(files, contents(tmp_path, count).labels)


def array_records(tmp_path, count=COUNT):
    return IndexedRecords(Listed(content(i) for i in range(count)), parse)


KINDS = (contents, paths, array_records)


@pytest.fixture(params=KINDS, ids=lambda make: make.__name__)
def samples(request, tmp_path):
    return request.param(tmp_path)


def stream(samples, seed=0, first_step=0, steps=4, batch_size=12, worker=0, workers=1):
    """[(position, number, label)] of the training records."""
    records = samples.training_records(
        seed, first_step, steps, batch_size, worker_slots(batch_size, worker, workers)
    )
    found = [(int(p), int(e), int(label)) for p, e, label in records.as_numpy_iterator()]
    assert len(found) == int(records.cardinality()) == (steps - first_step) * batch_size // workers
    return found


@pytest.mark.parametrize("make", KINDS)
def test_samples_are_a_sequence_of_images_and_labels(make, tmp_path):
    samples = make(tmp_path)
    read = [(encoded, int(label)) for encoded, label in samples.evaluation_records().as_numpy_iterator()]
    assert [*samples] == read
    assert samples[-1] == read[-1]
    with pytest.raises(IndexError):
        samples[COUNT]


def test_several_numbers_of_a_sample_are_an_array():
    _, label = Samples((b"", b""), ((0.0, 1.0), (0.5, 2.0)))[1]
    assert label.dtype == "float32"
    assert label.tolist() == [0.5, 2.0]


def numbers(found):
    return [number for _, number, _ in found]


def test_records_are_a_position_an_encoded_image_and_a_label(samples):
    position, encoded, label = samples.training_records(0, 0, 1, 4).element_spec
    assert (position.dtype, encoded.dtype, label.dtype) == (tf.int64, tf.string, tf.int32)
    assert position.shape == encoded.shape == label.shape == ()
    assert samples.evaluation_records().element_spec == (encoded, label)
    assert len(samples) == COUNT
    assert samples.labels is None or len(samples.labels) == COUNT
    assert samples.exif is isinstance(samples, Samples)
    assert all(label == number % 3 for _, number, label in stream(samples))


def test_evaluation_reads_each_sample_once_in_the_same_order(samples):
    records = samples.evaluation_records()
    first, again = ([(int(e), int(label)) for e, label in records.as_numpy_iterator()] for _ in range(2))
    assert first == again and all(label == number % 3 for number, label in first)
    assert [number for number, _ in first] == [*range(len(samples))]
    assert int(records.cardinality()) == len(samples)


def test_workers_share_the_global_batches(samples):
    parts = [record for worker in range(3) for record in stream(samples, worker=worker, workers=3)]
    whole = stream(samples)
    assert sorted(parts) == whole
    assert [position for position, _, _ in whole] == [*range(48)]
    for first in (0, COUNT):
        assert sorted(numbers(whole[first : first + COUNT])) == [*range(COUNT)]


def test_the_order_does_not_change_between_versions(samples):
    found = numbers(stream(samples, seed=3, first_step=1, steps=3, batch_size=8))
    assert found == [21, 19, 0, 18, 20, 22, 7, 11, 5, 16, 4, 14, 23, 6, 9, 15]


@pytest.mark.slow
@pytest.mark.parametrize("step, who", [*product([1, 4, 9, 12], [(0, 1), (1, 2), (2, 3)])])
def test_a_resumed_stream_is_the_rest_of_the_uninterrupted_one(samples, step, who):
    worker, workers = who
    options = {"steps": 12, "batch_size": 6, "worker": worker, "workers": workers}
    whole = stream(samples, **options)
    assert stream(samples, first_step=step, **options) == whole[step * 6 // workers :]


def test_the_order_is_a_function_of_the_seed_and_the_epoch(samples):
    def epochs(seed):
        found = numbers(stream(samples, seed=seed, steps=2 * len(samples), batch_size=1))
        return found[: len(samples)], found[len(samples) :]

    tf.random.set_seed(1)
    first, second = epochs(5)
    tf.random.set_seed(2)
    assert epochs(5) == (first, second)
    assert sorted(first) != first != second and epochs(6)[0] != first


@by_table("count, held", [(1, 0), (2, 1), (9, 1), (10, 2), (14, 2), (15, 3)])
def test_of_each_class_one_in_so_many_is_held_out_and_one_of_two(count, held):
    samples = Samples(tuple(map(str, range(2 * count))), (0, 1) * count)
    rest, out = hold_out(samples, 5, [0])
    assert [out.labels.count(label) for label in (0, 1)] == [held, held]
    assert sorted((*rest.images, *out.images), key=int) == list(samples.images)


def test_of_labels_that_are_not_classes_a_fraction_of_all_is_held_out():
    samples = Samples(tuple(content(i) for i in range(20)), tuple((float(i), 1.0) for i in range(20)))
    rest, held = hold_out(samples, 5, [0])
    assert (len(rest), len(held)) == (16, 4)
    assert sorted(rest.images + held.images) == sorted(samples.images)
    assert hold_out(samples, 5, [1])[1] != held
