"""Runs on several simulated devices and in two processes of JAX: killed, resumed, on another mesh."""

import dataclasses
import signal

import numpy as np
import pytest
from made.workers import assert_near, end_of, finish, free_ports, output_of, random_moments, start
from reference.small import INTERRUPTED

import keras_vit
from keras_vit.training import Recipe
from keras_vit.training.run import train
from keras_vit.training.run_config import RunConfig

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow_only("JAX runs in processes of its own")]
MODEL = {"patch_size": 8, "hidden_size": 16, "num_layers": 2, "mlp_dim": 32, "num_heads": 4}
RANDOM = {"crop_area": (0.5, 1.0), "stochastic_depth_rate": 0.2, "shift": 0.1, "mixup": 0.3}
RANDOM |= {"patch_dropout_rate": 0.5, "probe_first": True}
RECIPE = Recipe("sgd", 0.1, total_steps=14, batch_size=8, label_smoothing=0.1, **RANDOM, **INTERRUPTED)
CONFIG = RunConfig("digits", RECIPE, MODEL, image_size=16)


@pytest.fixture(scope="module")
def on_jax(tmp_path_factory):
    """A function that starts a run on so many simulated devices, with the programs that others compiled."""
    cache = str(tmp_path_factory.mktemp("cache"))

    def start_run(folder, config, path, strategy, count=4, **options):
        flags = f"--xla_force_host_platform_device_count={count} --xla_backend_optimization_level=0"
        environment = {
            "KERAS_BACKEND": "jax",
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"{flags} --xla_llvm_disable_expensive_passes=true",
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            **options.pop("environment", {}),
        }
        return start(folder, config, path, strategy=strategy, environment=environment, **options)

    return start_run


@pytest.fixture(scope="module")
def whole(on_jax, tmp_path_factory):
    """The state in which a run ends if nothing happens."""
    folder = tmp_path_factory.mktemp("whole")
    assert finish([on_jax(folder, CONFIG, folder / "run", "data_parallel")]) == [0], output_of(folder)
    return end_of(folder / "run")


def test_a_run_that_is_killed_at_ten_moments_ends_bit_for_bit_as_if_it_had_not_been(whole, on_jax, tmp_path):
    moments = sorted(
        [*random_moments(14, 1), *random_moments(14, 2)[:4]], key=lambda moment: int(moment.split()[1])
    )
    for number, moment in enumerate(moments):
        folder = tmp_path / str(number)
        status = finish([on_jax(folder, CONFIG, tmp_path / "run", "data_parallel", moment=moment)])
        # A moment of a step that an earlier kill has left behind does not come again.
        assert status in ([-signal.SIGKILL], [0]), output_of(folder, None, moment)
    assert finish([on_jax(tmp_path, CONFIG, tmp_path / "run", "data_parallel")]) == [0]
    for found, expected in zip(end_of(tmp_path / "run"), whole):
        np.testing.assert_equal(found, expected)


def test_a_run_is_resumed_on_other_meshes(whole, on_jax, tmp_path):
    path = tmp_path / "run"
    for strategy, moment in [("data_parallel", "step 5"), ("model_parallel=2x2", "step 9")]:
        process = on_jax(tmp_path, CONFIG, path, strategy, moment=moment)
        assert finish([process]) == [-signal.SIGKILL], output_of(tmp_path, None, moment)
    assert finish([on_jax(tmp_path, CONFIG, path, "fsdp")]) == [0], output_of(tmp_path)
    assert "from step 8 of 14" in output_of(tmp_path)
    assert_near(end_of(path), whole)


@pytest.mark.parametrize("objective", ["mae", "igpt", "dino"])
def test_runs_without_labels_on_several_devices_are_as_on_one(objective, labeled, on_jax, tmp_path):
    config = labeled(objective, optimizer="sgd", base_lr=0.1, dropout_rate=0.0, total_steps=6)
    config = dataclasses.replace(config, model={**config.model, "hidden_size": 16, "num_heads": 4})
    for strategy, count in [("data_parallel", 1), ("fsdp", 4), ("model_parallel=2x2", 4)]:
        folder = tmp_path / strategy
        assert finish([on_jax(folder, config, folder / "run", strategy, count)]) == [0], output_of(folder)
        assert_near(end_of(folder / "run"), end_of(tmp_path / "data_parallel" / "run"))


def start_both(on_jax, folder, config, path, strategy="fsdp", moments=(None, None)):
    """Two processes of two devices each."""
    (port,) = free_ports(1)
    job = {"KERAS_DISTRIBUTION_JOB_ADDRESSES": f"localhost:{port}", "KERAS_DISTRIBUTION_NUM_PROCESSES": "2"}
    processes = []
    for worker, moment in enumerate(moments):
        environment = {**job, "KERAS_DISTRIBUTION_PROCESS_ID": str(worker)}
        options = {"moment": moment, "worker": worker, "environment": environment}
        processes.append(on_jax(folder, config, path, strategy, count=2, **options))
    return processes


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A configuration whose steps are the same on TensorFlow and in any processes, and TensorFlow's end."""
    folder = tmp_path_factory.mktemp("plain")
    keras_vit.VisionTransformer(image_size=16, num_classes=10, **MODEL).save(folder / "start.keras")
    rates = dict.fromkeys(("dropout_rate", "stochastic_depth_rate", "patch_dropout_rate", "mixup"), 0.0)
    # A probe of random features multiplies their rounding errors, which differ between the backends.
    recipe = RECIPE.with_changes(**rates, probe_first=False)
    config = RunConfig("digits", recipe, weights=str(folder / "start.keras"))
    train(config, folder / "run", verbose=0)
    return config, end_of(folder / "run")


@pytest.mark.parametrize("strategy", ["data_parallel", "fsdp", "model_parallel=1x4"])
def test_two_processes_train_as_one_of_tensorflow_does(strategy, plain, on_jax, tmp_path):
    config, expected = plain
    processes = start_both(on_jax, tmp_path, config, tmp_path / "run", strategy)
    assert finish(processes) == [0, 0], output_of(tmp_path, 0)
    assert "ran out of data" not in output_of(tmp_path, 0)
    assert_near(end_of(tmp_path / "run"), expected)


def test_on_sigterm_in_any_process_both_stop_with_a_checkpoint_and_resume(plain, on_jax, tmp_path):
    config, (rows, *expected) = plain
    processes = start_both(on_jax, tmp_path, config, tmp_path / "run", moments=(None, "term 5"))
    assert finish(processes) == [143, 143], output_of(tmp_path, 0)
    assert "stopped: the checkpoint of step 5 is written" in output_of(tmp_path, 0)
    again = tmp_path / "again"
    assert finish(start_both(on_jax, again, config, tmp_path / "run")) == [0, 0], output_of(again, 0)
    assert "from step 5 of 14" in output_of(again, 0)
    found, *rest = end_of(tmp_path / "run")
    assert_near([found[-1:], *rest], [rows[-1:], *expected])
