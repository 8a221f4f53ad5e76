import json

import numpy as np
import pytest
import tensorflow as tf
from made.tables import by_table

from keras_vit.engine.strategy import is_chief, make_devices, make_strategy


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


def cluster(workers, index=0, kind="worker", **others):
    return json.dumps({"cluster": {"worker": workers, **others}, "task": {"type": kind, "index": index}})


def numbers(batch_size):
    """A function of worker and workers that returns the worker's part of four batches."""

    def batches(worker, workers):
        own = np.arange(4 * batch_size).reshape(4, workers, -1)[:, worker]
        return tf.data.Dataset.from_tensor_slices(own)

    return batches


@pytest.mark.parametrize("name", ["single", "auto"])
def test_alone_there_is_one_device_and_no_scope(name):
    if name == "auto" and len(tf.config.list_logical_devices("GPU")) > 1:
        pytest.skip("several GPUs")
    devices = make_devices(name)
    assert devices.num_replicas_in_sync == 1
    assert devices.is_chief and devices.smallest(7) == 7
    assert devices.of_first_worker(np.arange(2)).tolist() == [0, 1]
    with devices.scope():
        assert not tf.distribute.has_strategy()
    assert next(iter(devices.distribute(numbers(4), 4))).numpy().tolist() == [0, 1, 2, 3]


def test_mirrored_uses_every_device_and_divides_a_batch_in_its_order():
    mirrored = make_devices("mirrored")
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    count = mirrored.num_replicas_in_sync
    assert count == len(tf.config.list_logical_devices(kind))
    assert mirrored.is_chief and mirrored.smallest(7) == 7
    assert mirrored.of_first_worker(np.arange(2)).tolist() == [0, 1]
    batches = [*mirrored.distribute(numbers(2 * count), 2 * count, accumulation_steps=1)]
    assert len(batches) == 4
    for number, batch in enumerate(batches):
        parts = [part.numpy().tolist() for part in mirrored.strategy.experimental_local_results(batch)]
        assert [len(part) for part in parts] == [2] * count
        assert sum(parts, []) == [*range(2 * count * number, 2 * count * (number + 1))]
    # The collectives of two strategies would interfere with each other.
    assert make_devices("mirrored").strategy is mirrored.strategy


@by_table(
    "name, config, words",
    [
        ("multi_worker", None, "multi_worker needs TF_CONFIG, such as"),
        ("auto", "[1]", r"expected JSON of a cluster in TF_CONFIG; got '\[1\]'"),
        ("auto", '{"task": 1}', "expected JSON of a cluster in TF_CONFIG; got"),
        ("auto", cluster(["a:1", "b:1"], 2), "worker index below 2 in TF_CONFIG; got 2"),
        ("auto", cluster(["b:1"], 1, chief=["a:1"]), "worker index below 1 in TF_CONFIG; got 1"),
        ("tpu", None, "no TPU can be reached"),
        (
            "fsdp",
            None,
            "--strategy fsdp needs KERAS_BACKEND=jax; got .tensorflow., whose strategies are auto, si",
        ),
        ("model_parallel=2x4", None, "--strategy model_parallel=2x4 needs KERAS_BACKEND=jax"),
    ],
)
def test_devices_that_do_not_exist_are_refused(name, config, words, monkeypatch):
    if config is not None:
        monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(ValueError, match=words):
        make_strategy(name)


def test_auto_uses_the_workers_of_the_environment(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", cluster(["a:1", "b:1"]))
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", lambda: "several workers")
    assert make_strategy() == "several workers"
    monkeypatch.setenv("TF_CONFIG", cluster(["b:1"], chief=["a:1"]))
    assert make_strategy() == "several workers"
    monkeypatch.setenv("TF_CONFIG", cluster(["a:1"]))
    assert make_strategy() != "several workers"


@by_table(
    "strategy, config, chief",
    [
        ("auto", cluster(["a:1", "b:1"]), True),
        ("auto", cluster(["a:1", "b:1"], "1"), False),
        ("multi_worker", cluster(["a:1", "b:1"], 1), False),
        ("single", cluster(["a:1", "b:1"], 1), True),
        ("auto", cluster(["b:1"], 0, chief=["a:1"]), False),
        ("auto", cluster(["b:1"], 0, "chief", chief=["a:1"]), True),
    ],
)
def test_of_several_workers_the_first_writes_the_files(strategy, config, chief, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", config)
    assert is_chief(strategy) is chief
