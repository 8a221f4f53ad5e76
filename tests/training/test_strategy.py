import contextlib
import json

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.training.strategy import distribute, is_chief, make_strategy, scope, smallest


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


@pytest.fixture(scope="module")
def mirrored():
    return make_strategy("mirrored")


def of_cluster(workers, index=0):
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})


def numbers(batch_size):
    """A function of worker and workers that makes the worker's part of four batches."""

    def batches(worker, workers):
        share = batch_size // workers
        parts = [
            np.arange(k * batch_size + worker * share, k * batch_size + (worker + 1) * share)
            for k in range(4)
        ]
        return tf.data.Dataset.from_tensor_slices(np.stack(parts))

    return batches


@pytest.mark.parametrize("name", ["single", "auto"])
def test_alone_there_is_one_device_and_no_scope(name):
    if name == "auto" and len(tf.config.list_logical_devices("GPU")) > 1:
        pytest.skip("several GPUs")
    strategy = make_strategy(name)
    assert strategy.num_replicas_in_sync == 1
    assert is_chief(strategy) and smallest(strategy, 7) == 7
    assert isinstance(scope(strategy), contextlib.nullcontext)
    assert [batch.numpy().tolist() for batch in distribute(strategy, numbers(4), 4)][0] == [0, 1, 2, 3]


def test_mirrored_takes_every_device_that_there_is(mirrored):
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    assert mirrored.num_replicas_in_sync == len(tf.config.list_logical_devices(kind))
    assert is_chief(mirrored) and smallest(mirrored, 7) == 7
    with scope(mirrored):
        assert tf.distribute.get_strategy() is mirrored


def test_a_batch_is_shared_out_in_its_order(mirrored):
    count = mirrored.num_replicas_in_sync
    batches = distribute(mirrored, numbers(2 * count), 2 * count)
    for number, batch in enumerate(batches):
        shares = [share.numpy().tolist() for share in mirrored.experimental_local_results(batch)]
        assert [len(share) for share in shares] == [2] * count
        assert sum(shares, []) == [*range(2 * count * number, 2 * count * (number + 1))]
    assert number == 3


@pytest.mark.parametrize(
    "name, config, words",
    [
        ("gpu", None, "strategy 'gpu' is unknown; choose one of"),
        ("multi_worker", None, "multi_worker needs TF_CONFIG, such as"),
        ("multi_worker", '{"cluster": {}}', "multi_worker needs TF_CONFIG, such as"),
        ("multi_worker", "worker0", "TF_CONFIG is not JSON of a cluster: 'worker0'"),
        ("auto", "[1]", r"TF_CONFIG is not JSON of a cluster: '\[1\]'"),
        ("auto", of_cluster(["a:1", "b:1"], 2), "this is worker 2 of 2"),
        ("multi_worker", of_cluster(["a:1"], -1), "this is worker -1 of 1"),
        ("tpu", None, "no TPU can be reached"),
    ],
)
def test_what_cannot_be_had_is_refused(name, config, words, monkeypatch):
    if config is not None:
        monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(ValueError, match=words):
        make_strategy(name)


def test_auto_takes_the_workers_that_are_named(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", of_cluster(["a:1", "b:1"]))
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", lambda: "several workers")
    assert make_strategy() == "several workers"
    monkeypatch.setenv("TF_CONFIG", of_cluster(["a:1"]))
    assert make_strategy() != "several workers"
