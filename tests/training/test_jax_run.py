"""Runs on JAX and TensorFlow: the same numbers and files, and the same bits after interruptions."""

import dataclasses
import shutil
import signal

import keras
import numpy as np
import pytest
from made.folders import write_classes
from made.shards import stored
from made.workers import end_of, finish, moments_in_turn, output_of, start
from reference.small import INTERRUPTED, NO_TRANSFORMER, SMALL, small

from keras_vit.training import Recipe
from keras_vit.training.run import train
from keras_vit.training.run_config import RunConfig

slow = pytest.mark.slow
ON_JAX = pytest.mark.skipif(keras.backend.backend() != "jax", reason="for `make test` on JAX")
OWN_PROCESSES = pytest.mark.tensorflow_only("JAX runs in processes of their own")
# AdamW takes whole steps by the rounding of the gradient of a key's bias, which is 0.
ONE = {"num_layers": 1, "key_bias": False}
SIZES = {name: value for name, value in SMALL.items() if name != "num_classes"} | ONE
# Every second step ends with a checkpoint, and batches of 5 do not divide into two micro-batches.
RANDOM = {"weight_decay": 0.1, "crop_area": (0.5, 1.0), "mixup": 0.3}
RECIPE = Recipe("adamw", 3e-3, total_steps=24, batch_size=5, **RANDOM, **INTERRUPTED)
CHEAP = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
BACKENDS = {
    "jax": {"KERAS_BACKEND": "jax", "XLA_FLAGS": CHEAP},
    "tensorflow": {"KERAS_BACKEND": "tensorflow"},
}


@pytest.fixture(scope="module")
def random(tmp_path_factory):
    """A run from random weights."""
    images = write_classes(tmp_path_factory.mktemp("jax_run") / "images", count=12)
    return RunConfig(f"folder:{images}", RECIPE, SIZES)


@pytest.fixture(scope="module")
def config(random, tmp_path_factory):
    """A run from the same weights on every backend."""
    file = tmp_path_factory.mktemp("weights") / "start.keras"
    small(**ONE, num_classes=None).save(file)
    return dataclasses.replace(random, weights=str(file))


def with_recipe(config, **changes):
    return dataclasses.replace(config, recipe=config.recipe.with_changes(**changes))


def run_on(backend, folder, config, path, moment=None, fixed=False):
    """Train in a process on a backend, which is killed at a moment."""
    process = start(folder, config, path, moment=moment, fixed=fixed, environment=BACKENDS[backend])
    status = -signal.SIGKILL if moment else 0
    assert finish([process]) == [status], output_of(folder, moment=moment)


def assert_close(found, expected, rounding=1e-9):
    """Losses within 1e-5 and weights within 2e-5, in the tables, the model and the checkpoint."""
    for row, other in zip(found[0], expected[0], strict=True):
        np.testing.assert_allclose([*row.values()], [*other.values()], rtol=1e-5, atol=1e-7)
    for values, others in zip(found[1:], expected[1:]):
        assert values.keys() == others.keys()
        for name, value in others.items():
            # The gradient of a key's bias is 0, so its moments are what rounding leaves.
            atol = 2e-5 * np.abs(value).max() + rounding
            np.testing.assert_allclose(values[name], value, rtol=0, atol=atol, err_msg=name)


@ON_JAX
@pytest.mark.parametrize("is_small", [True, pytest.param(False, marks=slow)])
def test_a_run_writes_its_files_and_resumes_bit_for_bit(is_small, random, tmp_path):
    changes = {"total_steps": 3, "warmup_steps": 1, "checkpoint_every": 1}
    config = random
    if is_small:  # Without a Transformer JAX compiles the step in a second.
        config = dataclasses.replace(random, model=SIZES | NO_TRANSFORMER)
        changes |= {"accumulation_steps": 1, "mixup": 0.0, "dropout_rate": 0.0}
    config = with_recipe(config, **changes)
    workdir, record = train(config, tmp_path / "run", verbose=0)
    assert record["versions"].keys() == {"keras_vit", "keras", "tensorflow", "jax"}
    assert record["test_samples"] == 4 and (workdir.path / "tensorboard").is_dir()
    assert [row["step"] for row in workdir.metrics()] == [1, 2, 3]
    assert workdir.metrics()[-1].keys() >= {"loss", "accuracy", "val_loss", "val_accuracy"}
    if is_small:
        return
    expected = end_of(workdir.path)
    shutil.rmtree(workdir.checkpoints / "step-00000003")
    for name in ("result.json", "model.keras"):
        (workdir.path / name).unlink()
    train(config, workdir.path, verbose=0)
    np.testing.assert_equal(end_of(workdir.path), expected)


@slow
@OWN_PROCESSES
@pytest.mark.parametrize(
    "killed, labels",
    [
        *(("jax", "classes"), ("tensorflow", "classes"), ("jax", "up"), ("tensorflow", "mask")),
        *(("jax", "boxes"), ("tensorflow", "depths"), ("jax", "taught"), ("tensorflow", "features")),
        *(("jax", "sigmoid"), ("tensorflow", "softmax")),
        *(("tensorflow", "mae"), ("jax", "igpt"), ("tensorflow", "dino"), ("jax", "flexible")),
        ("jax", "points"),
    ],
)
def test_both_backends_compute_the_same_run_from_each_others_checkpoints(
    killed, labels, config, labeled, tmp_path
):
    everything = {"randaugment": (1, 0.5), "cutmix": 0.5, "random_erasing": 0.5, "shift": 0.1}
    plain = {"dropout_rate": 0.0, "total_steps": 12}
    if labels == "classes":
        config = with_recipe(config, label_smoothing=0.1, **plain, **everything)
    else:
        config = labeled(labels, **plain)
    (other,) = BACKENDS.keys() - {killed}
    run_on(killed, tmp_path, config, tmp_path / "run", moment="step 7", fixed=True)
    run_on(other, tmp_path, config, tmp_path / "run", fixed=True)
    run_on(killed, tmp_path, config, tmp_path / "whole", fixed=True)
    # The momentum of SGD holds gradients; Adam's second moments are smaller. AdamW takes whole steps by the
    # rounding of the gradient of a key's bias, which is 0.
    rounding = 1e-5 if config.objective != "classify" else {"classes": 1e-9}.get(labels, 1e-7)
    assert_close(end_of(tmp_path / "run"), end_of(tmp_path / "whole"), rounding)


@slow
@OWN_PROCESSES
@pytest.mark.parametrize(
    "backend, labels",
    [
        *(("jax", "classes"), ("tensorflow", "classes"), ("tensorflow", "up"), ("tensorflow", "mask")),
        *((backend, of) for backend in ("tensorflow", "jax") for of in ("boxes", "depths")),
        *(("tensorflow", "taught"), ("jax", "features"), ("tensorflow", "points")),
        *(("tensorflow", "sigmoid"), ("jax", "softmax")),
        *(("tensorflow", "mae"), ("tensorflow", "igpt"), ("jax", "dino")),
        *(("tensorflow", "flexible"), ("jax", "flexible")),
        *(("tensorflow", "tfrecord"), ("tensorflow", "parquet"), ("jax", "parquet"), ("jax", "webdataset")),
        *(("tensorflow", "mixture"), ("jax", "mixture")),
    ],
)
def test_a_run_that_is_killed_ten_times_ends_bit_for_bit_as_the_uninterrupted_one(
    backend, labels, config, labeled, tmp_path
):
    if labels in ("tfrecord", "parquet", "webdataset", "mixture"):
        config = dataclasses.replace(config, dataset=stored(tmp_path / "data", labels))
    elif labels != "classes":
        config = labeled(labels)
    for moment in moments_in_turn(config.recipe.total_steps, config.recipe.checkpoint_steps, count=10):
        run_on(backend, tmp_path, config, tmp_path / "run", moment)
    run_on(backend, tmp_path, config, tmp_path / "run")
    run_on(backend, tmp_path, config, tmp_path / "whole")
    rows, weights, values = end_of(tmp_path / "run")
    np.testing.assert_equal((rows, weights, values), end_of(tmp_path / "whole"))
    # The masks of the attention were annealed.
    assert [value for name, value in values.items() if "query_mask" in name] == [0] * (labels == "mask")


@slow
@OWN_PROCESSES
def test_on_sigterm_the_run_ends_with_a_checkpoint_and_resumes(config, tmp_path):
    config = with_recipe(config, total_steps=8)
    process = start(tmp_path, config, tmp_path / "run", moment="term 5", environment=BACKENDS["jax"])
    assert finish([process]) == [143]
    assert "the checkpoint of step 5 is written" in output_of(tmp_path, moment="term 5")
    for path in ("run", "whole"):
        run_on("jax", tmp_path, config, tmp_path / path)
    np.testing.assert_equal(end_of(tmp_path / "run")[1:], end_of(tmp_path / "whole")[1:])


WAYS = {
    "mixed_bfloat16 and remat": {"dtype": "mixed_bfloat16", "remat": True},
    "mixed_float16": {"dtype": "mixed_float16"},
    "taught in mixed_bfloat16": {"labels": "taught", "dtype": "mixed_bfloat16"},
    "taught in mixed_float16": {"labels": "taught", "dtype": "mixed_float16"},
    "freeze": {"freeze": "encoder_norm", "ema": None},
    "SGD": {"optimizer": "sgd", "weight_decay": 0.0, "accumulator_dtype": "bfloat16"},
    "masked patches": {
        **{"objective": "masked_patch", "target": "pixels", "weights": None},
        **{"mixup": 0.0, "eval_every": 1, "checkpoint_every": 1},
    },
}
# bfloat16 and float16 round the backends' sums to different numbers.
TOLERANCES = {"mixed_bfloat16": 0.02, "mixed_float16": 0.005}


@slow
@OWN_PROCESSES
@pytest.mark.parametrize("way", WAYS)
def test_other_ways_to_compute_give_the_same_losses_on_both_backends(way, config, labeled, tmp_path):
    changes = {"dropout_rate": 0.0, "total_steps": 4, "eval_every": 2} | WAYS[way]
    own = {name: changes.pop(name) for name in ("objective", "target", "weights") if name in changes}
    if labels := changes.pop("labels", None):
        config = labeled(labels)
    config = dataclasses.replace(with_recipe(config, **changes), **own)
    losses = []
    for backend in BACKENDS:
        run_on(backend, tmp_path, config, tmp_path / backend)
        rows, _, _ = end_of(tmp_path / backend)
        losses.append([row[name] for row in rows for name in ("loss", "val_loss")])
    if way == "masked patches":  # Random weights differ, but the first predictions are 0.
        losses = [values[:1] for values in losses]
    np.testing.assert_allclose(*losses, rtol=TOLERANCES.get(config.recipe.dtype, 1e-5))


@ON_JAX
def test_what_only_tensorflow_computes_is_refused(random, tmp_path):
    with pytest.raises(ValueError, match="strategy must be one of 'auto', 'single'.*; got 'mirrored'"):
        train(random, tmp_path / "run", verbose=0, strategy="mirrored")
    assert not (tmp_path / "run").exists()
    words = "layers must be preprocessing layers of Keras.* KERAS_BACKEND=jax; got GaussianNoise"
    with pytest.raises(ValueError, match=words):
        with_recipe(random, layers=[keras.layers.GaussianNoise(0.1)])
