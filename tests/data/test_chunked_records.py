import collections

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_vit.data import chunked_records
from keras_vit.data.chunked_records import ChunkedRecords, lane_count
from keras_vit.data.samples import worker_slots

COUNTS = (7, 1, 19, 0, 5, 6, 22)
EPOCH = sum(COUNTS)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(chunked_records, "WINDOW_RECORDS", 16)


def read(chunk, first, count):
    """Records that say their chunk and their place."""
    return tf.data.Dataset.range(first, first + count).map(lambda place: 1000 * chunk + place)


def samples(counts=COUNTS, parse=lambda record: (record, record % 3)):
    return ChunkedRecords(counts, read, parse)


def stream(of, first_step=0, steps=12, batch_size=12, worker=0, workers=1, seed=0):
    """[(position, record)] of the training records."""
    records = of.training_records(
        seed, first_step, steps, batch_size, worker_slots(batch_size, worker, workers)
    )
    found = [(int(position), int(record)) for position, record, _ in records.as_numpy_iterator()]
    assert len(found) == int(records.cardinality()) == (steps - first_step) * batch_size // workers
    return found


def of_lanes(found, batch_size, lanes):
    """The records of each lane, in order."""
    slots, rows = batch_size // lanes, collections.defaultdict(list)
    for position, record in sorted(found):
        rows[position % batch_size // slots].append(record)
    return [rows[lane] for lane in range(lanes)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [3, 2, 4, 12])
def test_the_global_batches_do_not_depend_on_the_number_of_workers(workers):
    parts = [stream(samples(), worker=worker, workers=workers) for worker in range(workers)]
    assert sorted(record for part in parts for record in part) == stream(samples())


def test_the_order_is_that_of_earlier_runs():
    found = [record for _, record in stream(samples(), first_step=3, steps=6, batch_size=8, seed=3)]
    assert found[:8] == [4003, 4, 2006, 2012, 6002, 6008, 6016, 5001]
    assert found[8:16] == [0, 6, 2007, 2014, 6003, 6011, 6019, 5002]
    assert found[16:] == [4004, 2000, 2008, 2015, 6004, 6010, 6018, 5003]


@pytest.mark.slow
def test_any_slots_of_a_batch_are_read():
    whole = stream(samples())
    records = samples().training_records(0, 0, 12, 12, range(5, 11)).as_numpy_iterator()
    found = [(int(position), int(record)) for position, record, _ in records]
    assert found == [record for record in whole if 5 <= record[0] % 12 < 11]


@pytest.mark.slow
@pytest.mark.parametrize("step", [7, 1, 4, 11])
def test_a_resumed_stream_is_the_rest_also_with_another_number_of_workers(step):
    whole = stream(samples())
    assert stream(samples(), first_step=step) == whole[step * 12 :]
    halves = [stream(samples(), first_step=step, worker=worker, workers=2) for worker in (0, 1)]
    assert sorted(halves[0] + halves[1]) == whole[step * 12 :]


@pytest.mark.slow
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(any),
    st.integers(1, 24),
    st.integers(0, 5),
)
def test_each_lane_reads_its_part_of_each_epoch_once_and_the_parts_are_the_whole(counts, batch_size, seed):
    total = sum(counts)
    lanes = lane_count(batch_size, total)
    assert batch_size % lanes == 0 and lanes <= min(8, batch_size, total)
    steps = 2 * (-(-total // lanes)) // (batch_size // lanes) + 1
    found = stream(samples(tuple(counts)), steps=steps, batch_size=batch_size, seed=seed)
    sizes = [(lane + 1) * total // lanes - lane * total // lanes for lane in range(lanes)]
    rows = {1000 * chunk + place for chunk, count in enumerate(counts) for place in range(count)}
    for epoch in (0, 1):
        read_once = [
            record
            for lane, size in zip(of_lanes(found, batch_size, lanes), sizes)
            for record in lane[epoch * size : (epoch + 1) * size]
        ]
        assert len(read_once) == total and {*read_once} == rows


@pytest.mark.slow
def test_the_order_is_a_function_of_the_seed_and_differs_between_epochs_and_lanes(monkeypatch):
    monkeypatch.setattr(chunked_records, "WINDOW_RECORDS", 64)
    found = stream(samples((64,)), steps=16, batch_size=8)
    tf.random.set_seed(1)
    assert stream(samples((64,)), steps=16, batch_size=8) == found
    assert stream(samples((64,)), steps=16, batch_size=8, seed=1) != found
    lanes = of_lanes(found, 8, 8)
    epochs = [[record - 8 * number for record in lane] for number, lane in enumerate(lanes)]
    orders = {tuple(lane[start : start + 8]) for lane in epochs for start in (0, 8)}
    assert len(orders) == 16


@pytest.mark.slow
def test_chunks_are_in_another_order_in_each_epoch():
    of = samples((1,) * 40)
    first, second = (stream(of, first_step=step, steps=step + 1, batch_size=1) for step in (0, 40))
    windows = [{record for _, record in stream(of, start, start + 16, 1)} for start in (0, 40)]
    assert windows[0] != windows[1] != set(range(0, 16000, 1000)) and first != second


def test_evaluation_reads_each_record_once_in_the_same_order():
    records = samples().evaluation_records()
    first, again = ([int(record) for record, _ in records.as_numpy_iterator()] for _ in range(2))
    assert first == again and len(set(first)) == int(records.cardinality()) == EPOCH == len(samples())


def test_a_resumed_stream_reads_at_most_a_window_of_each_lane_again(monkeypatch):
    monkeypatch.setattr(chunked_records, "WINDOW_RECORDS", 64)
    seen = []

    def noting(chunk, first, count):
        records = read(chunk, first, count)

        def note(record):
            tf.py_function(lambda value: seen.append(int(value)), [record], [])
            return record

        return records.map(note)

    of = ChunkedRecords((400,), noting, lambda record: (record, 0))
    records = of.training_records(seed=0, first_step=23, steps=24, batch_size=8)
    assert len([*records]) == 8
    assert len(seen) <= 8 * 3 * 8  # three windows of eight records for each of eight lanes
    assert {record % 50 // 8 for record in seen} == {2, 3, 4}  # A lane has 50 records, of which 23 are done.
