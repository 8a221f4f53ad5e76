"""Worker processes under MultiWorkerMirroredStrategy."""

import dataclasses
import signal

import numpy as np
import pytest
from made.servers import serving_files
from made.shards import stored
from made.workers import assert_near, end_of, finish, free_ports, output_of, random_moments, start

pytestmark = pytest.mark.slow


def start_both(folder, config, path, moments=(None, None)):
    ports = free_ports(2)
    return [
        start(folder, config, path, moment=moment, fixed=True, worker=worker, ports=ports)
        for worker, moment in enumerate(moments)
    ]


def run_both(folder, config):
    """The state in which two workers end if nothing happens."""
    assert finish(start_both(folder, config, folder / "run")) == [0, 0], output_of(folder, 0)
    return end_of(folder / "run")


@pytest.fixture(scope="module")
def random(finished, tmp_path_factory):
    """A configuration with everything random, and the state in which two workers end."""
    config = dataclasses.replace(finished[0], recipe=finished[0].recipe.with_changes(batch_size=8))
    return config, run_both(tmp_path_factory.mktemp("random"), config)


@pytest.fixture(scope="module")
def plain(finished, tmp_path_factory):
    """A configuration whose steps do not depend on the number of workers, and their state at the end."""
    # Dropout masks and MixUp depend on the layout. Adam makes steps from the rounding errors of gradients
    # that are zero, such as that of a key's bias, so SGD takes its place.
    options = {"dropout_rate": 0.0, "stochastic_depth_rate": 0.0, "mixup": 0.0, "weight_decay": 0.0}
    options |= {"patch_dropout_rate": 0.0, "probe_first": True}
    options |= {"optimizer": "sgd", "accumulator_dtype": "bfloat16", "base_lr": 0.1, "batch_size": 8}
    recipe, model = finished[0].recipe.with_changes(**options), {**finished[0].model}
    del model["max_rotary_rescale"]  # It is random, too.
    config = dataclasses.replace(finished[0], recipe=recipe, model=model)
    return config, run_both(tmp_path_factory.mktemp("plain"), config)


@pytest.fixture(
    params=[
        *("classes", "up", "mask", "boxes", "depths", "points", "taught", "features"),
        *("sigmoid", "softmax", "mae", "igpt", "dino", "flexible"),
    ]
)
def same(request, labeled, tmp_path):
    """A configuration whose steps do not depend on the number of workers, and the end of two."""
    if request.param == "classes":
        return request.getfixturevalue("plain")
    # SGD, and images that are not mixed with others of their worker, as in `plain`.
    changes = {"dropout_rate": 0.0, "total_steps": 8, "optimizer": "sgd", "base_lr": 0.1, "mixup": 0.0}
    config = labeled(request.param, **changes)
    return config, run_both(tmp_path / "two", config)


@pytest.fixture(scope="module", params=["tfrecord", "parquet", "webdataset", "mixture"])
def on_shards(request, plain, tmp_path_factory):
    """The configuration of `plain` on files of several images, and the state in which two workers end."""
    dataset = stored(tmp_path_factory.mktemp("toy"), request.param)
    config = dataclasses.replace(plain[0], dataset=dataset)
    return config, run_both(tmp_path_factory.mktemp("records"), config)


@pytest.mark.parametrize("moment", [None, *random_moments(12, 2)[:2]])
def test_a_run_on_files_of_several_images_goes_on_with_another_number_of_workers(moment, on_shards, tmp_path):
    config, found = on_shards
    if moment is not None:
        processes = start_both(tmp_path / "two", config, tmp_path / "run", (moment, None))
        assert processes[0].wait(120) == -signal.SIGKILL
        assert finish([processes[1]], timeout=60) != [0]
    assert finish([start(tmp_path / "one", config, tmp_path / "run", fixed=True)]) == [0]
    # Sums in another order differ by up to 1.7e-4 after these steps of a large rate.
    assert_near(end_of(tmp_path / "run"), found, rel=1e-4, abs=1e-12, of_weights=4e-4)


def test_two_workers_train_as_one_process_does(same, tmp_path):
    config, found = same
    assert finish([start(tmp_path, config, tmp_path / "one", fixed=True)]) == [0], output_of(tmp_path)
    assert_near(found, end_of(tmp_path / "one"), rel=1e-4, abs=1e-12, of_weights=1e-4)


# (worker, moment) of each kill, one after the other in the same run; the first worker writes the checkpoints.
KILLS = [
    [(i % 2 if moment.startswith("step") else 0, moment)] for i, moment in enumerate(random_moments(12, 1))
]
KILLS += [[(1, "step 3"), (0, "values 8")]]


@pytest.mark.parametrize("kills", KILLS, ids=str)
def test_if_one_worker_is_killed_the_other_stops_and_both_resume(kills, random, tmp_path):
    config, whole = random
    for worker, moment in kills:
        folder = tmp_path / f"until {moment}"
        moments = [moment if i == worker else None for i in range(2)]
        processes = start_both(folder, config, tmp_path / "run", moments)
        assert processes[worker].wait(120) == -signal.SIGKILL
        assert finish([processes[1 - worker]], timeout=60) != [0]
        assert "another worker has stopped" in output_of(folder, 1 - worker)
        assert not (tmp_path / "run" / "result.json").exists()

    again = tmp_path / "again"
    assert finish(start_both(again, config, tmp_path / "run")) == [0, 0], output_of(again, 0)
    for found, expected in zip(end_of(tmp_path / "run"), whole):
        np.testing.assert_equal(found, expected)


@pytest.mark.parametrize("other, statuses", [("term 5", [143, 143]), (None, [143, 1])])
def test_on_sigterm_the_first_worker_writes_a_checkpoint_and_both_resume(other, statuses, plain, tmp_path):
    config, (_, weights, values) = plain
    processes = start_both(tmp_path / "first", config, tmp_path / "run", ("term 5", other))
    assert finish(processes) == statuses
    assert "stopped: the checkpoint of step 5 is written" in output_of(tmp_path / "first", 0, "term 5")
    assert "another worker has stopped, so this one stops too" in output_of(tmp_path / "first", 1, other)
    again = tmp_path / "again"
    assert finish(start_both(again, config, tmp_path / "run")) == [0, 0], output_of(again, 0)
    assert "from step 5 of 14" in output_of(again, 0)
    for found, expected in zip(end_of(tmp_path / "run")[1:], (weights, values)):
        np.testing.assert_equal(found, expected)


def test_a_worker_that_is_the_only_one_to_get_sigterm_exits_after_a_while(plain, tmp_path):
    config = dataclasses.replace(plain[0], recipe=plain[0].recipe.with_changes(total_steps=100_000))
    processes = start_both(tmp_path, config, tmp_path / "run", (None, "term 5"))
    assert finish(processes)[1] == 143
    assert "stopped: the first worker did not get it" in output_of(tmp_path, 1, "term 5")
    assert "another worker has stopped" in output_of(tmp_path, 0)


@pytest.mark.parametrize("moment", random_moments(12, 4)[:2])
def test_a_killed_run_on_remote_shards_resumes_bit_for_bit(moment, finished, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KERAS_VIT_SHARD_CACHE_GB", "1e-9")  # Each start and epoch downloads the shards.
    stored(tmp_path / "files", "webdataset")
    with serving_files(tmp_path / "files") as server:
        config = dataclasses.replace(finished[0], dataset=f"webdataset:{server.url}/{{0..1}}.tar")
        assert finish([start(tmp_path / "whole", config, tmp_path / "whole" / "run")]) == [0]
        killed = start(tmp_path / "killed", config, tmp_path / "run", moment=moment)
        assert finish([killed]) == [-signal.SIGKILL]
        assert finish([start(tmp_path / "again", config, tmp_path / "run")]) == [0]
    for found, expected in zip(end_of(tmp_path / "run"), end_of(tmp_path / "whole" / "run")):
        np.testing.assert_equal(found, expected)
