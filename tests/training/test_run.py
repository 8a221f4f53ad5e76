import dataclasses
import os
import pickle
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
from made.folders import write_broken, write_classes
from reference.comparing import arrays, numpy
from reference.small import SMALL

from keras_vit.training import Recipe, run
from keras_vit.training.run import RunConfig, train

MODEL = {name: value for name, value in SMALL.items() if name != "num_classes"} | {"num_layers": 1}
RECIPE = Recipe(
    "adamw",
    3e-3,
    total_steps=14,
    warmup_steps=2,
    batch_size=4,
    weight_decay=0.1,
    label_smoothing=0.1,
    crop_area=(0.5, 1.0),
    eval_every=4,
    seed=1,
)

# Runs until it is killed: at a step, or while a checkpoint is written.
KILLED = """
import os, pathlib, pickle, signal, sys
from keras_vit.training import run
config, path, moment = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
save_model = run.save_model

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def at_a_step(self, batch, logs=None):
    if moment == "at a step" and int(self.model.optimizer.iterations) == 10:
        die()

def at_a_checkpoint(model, path):
    if int(model.optimizer.iterations) == 8:
        if moment == "while writing":
            path.with_name(f"writing-{path.name}").write_bytes(b"the first half")
            die()
    save_model(model, path)

run._Keeper.on_train_batch_end = at_a_step
run.save_model = at_a_checkpoint
run.train(config, path, verbose=0)
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    root = write_classes(tmp_path_factory.mktemp("data") / "images", count=12)
    return RunConfig(f"folder:{root}", RECIPE, MODEL)


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    """An uninterrupted run's folder and record."""
    return train(config, tmp_path_factory.mktemp("runs") / "whole", verbose=0)


def state(workdir):
    """Every number of the finished model and of the last checkpoint, its optimizer's included."""
    checkpoint = keras.saving.load_model(workdir.checkpoint)
    optimizer = {v.path.partition("/")[2]: numpy(v) for v in checkpoint.optimizer.variables}
    return arrays(keras.saving.load_model(workdir.model)), arrays(checkpoint), optimizer


def assert_same_end(workdir, expected):
    """The same metrics but for the time they took, and the same numbers bit for bit."""
    rows, expected_rows = (
        [{name: value for name, value in row.items() if name != "seconds"} for row in run.metrics()]
        for run in (workdir, expected)
    )
    assert rows == expected_rows
    for found, wanted in zip(state(workdir), state(expected)):
        np.testing.assert_equal(found, wanted)


def test_a_run_leaves_its_record_metrics_and_model(finished, config):
    workdir, record = finished
    assert [row["step"] for row in workdir.metrics()] == [4, 8, 12, 14]
    assert {"loss", "accuracy", "val_loss", "val_accuracy", "learning_rate"} <= {*workdir.metrics()[0]}
    assert record["steps"] == 14 and record["test_samples"] == 4 and record["bad_images"] == []
    assert record["test_accuracy"] in (0, 0.25, 0.5, 0.75, 1)
    assert record == workdir.result
    model = keras.saving.load_model(workdir.model)
    assert (model.class_names, model.num_classes) == (("cat", "dog"), 2)
    assert record["parameters"] == model.count_params()
    assert sorted(path.name for path in workdir.path.iterdir()) == [
        "checkpoints",
        "config.json",
        "figures",
        "metrics.csv",
        "model.keras",
        "result.json",
    ]


def test_the_rate_of_the_recipe_was_used(finished):
    rates = {row["step"]: row["learning_rate"] for row in finished[0].metrics()}
    assert rates[8] == pytest.approx(3e-3 * 0.5, rel=1e-4)  # half-way between the warm-up and the end
    assert rates[14] == pytest.approx(0, abs=1e-9)


def test_a_finished_run_returns_its_record_and_trains_nothing(finished, config, monkeypatch):
    workdir, record = finished
    before = {path: path.stat().st_mtime_ns for path in workdir.path.rglob("*")}
    monkeypatch.setattr(run, "load_dataset", None)
    monkeypatch.setattr(run, "VisionTransformer", None)
    again, found = train(config, workdir.path, verbose=0)
    assert (again.path, found) == (workdir.path, record)
    assert {path: path.stat().st_mtime_ns for path in workdir.path.rglob("*")} == before


@pytest.mark.parametrize("moment", ["at a step", "while writing"])
def test_a_killed_run_goes_on_and_ends_as_if_it_had_not_been(moment, finished, config, tmp_path):
    path = tmp_path / "run"
    (tmp_path / "arguments").write_bytes(pickle.dumps((config, path, moment)))
    done = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path / "arguments"],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (path / "result.json").exists()
    left = run.Workdir(path, dataclasses.asdict(config))
    assert [row["step"] for row in left.metrics()] == [4, 8]
    done = int(keras.saving.load_model(left.checkpoint).optimizer.iterations)
    assert done == (8 if moment == "at a step" else 4)

    workdir, record = train(config, path, verbose=0)
    assert record["steps"] == 14
    assert_same_end(workdir, finished[0])


def test_a_continued_run_says_so(config, tmp_path, capfd, monkeypatch):
    path = tmp_path / "run"
    monkeypatch.setattr(run, "evaluate", None)  # stops it after the training
    with pytest.raises(TypeError):
        train(config, path, verbose=0)
    monkeypatch.undo()
    (path / "metrics.csv").unlink()
    train(config, path, verbose=2)
    assert f"continuing {path} from step 14 of 14" in capfd.readouterr().out


def test_another_configuration_is_refused_naming_the_fields(finished, config):
    other = dataclasses.replace(config, recipe=RECIPE.with_changes(base_lr=0.1, flip=False))
    with pytest.raises(ValueError, match="another configuration; it differs in recipe.base_lr.*recipe.flip"):
        train(other, finished[0].path, verbose=0)


def test_a_run_starts_from_a_checkpoint_with_a_new_head(config, golden, tmp_path):
    weights = str(golden / "token_rep.npz")
    short = RECIPE.with_changes(total_steps=1, warmup_steps=0, base_lr=1e-9)
    workdir, _ = train(
        dataclasses.replace(config, recipe=short, model=None, weights=weights, image_size=(24, 40)),
        tmp_path / "run",
        verbose=0,
    )
    model = keras.saving.load_model(workdir.model)
    assert (model.image_size, model.num_classes, model.representation_size) == ((24, 40), 2, None)
    with np.load(weights) as stored:
        start = stored["Transformer/encoderblock_1/MlpBlock_3/Dense_0/kernel"]
    np.testing.assert_allclose(arrays(model)["encoder_block_1/mlp/dense_0/kernel"], start, atol=1e-6)
    assert np.abs(arrays(model)["head/kernel"]).max() < 1e-6


def missing_folder(config, golden, tmp_path):
    return dataclasses.replace(config, dataset=f"folder:{tmp_path / 'nowhere'}")


def broken_image(config, golden, tmp_path):
    root = write_classes(tmp_path / "images")
    write_broken(root / "cat" / "bad.png")
    return dataclasses.replace(config, dataset=f"folder:{root}")


def unknown_variant(config, golden, tmp_path):
    return dataclasses.replace(config, model="X/16")


def missing_weights(config, golden, tmp_path):
    return dataclasses.replace(config, weights=str(tmp_path / "nowhere.npz"), model=None)


def other_weights(config, golden, tmp_path):
    return dataclasses.replace(config, weights=str(golden / "token.npz"), model="Ti/8")


def size_that_does_not_divide(config, golden, tmp_path):
    return dataclasses.replace(config, image_size=(20, 20))


def long_warm_up(config, golden, tmp_path):
    return dataclasses.replace(config, recipe=RECIPE.with_changes(warmup_steps=20))


REFUSED = {
    missing_folder: "no such folder: .*nowhere",
    broken_image: r"1 image\(s\) cannot be read: .*cat/bad.png",
    unknown_variant: "variant 'X/16' is unknown",
    missing_weights: "no such checkpoint file: .*nowhere.npz",
    other_weights: "token.npz has hidden_size 24, but Ti/8 has 192",
    size_that_does_not_divide: "20×20 .* not divisible by the patch of 8×8",
    long_warm_up: "warmup_steps must be .* got 20 and 14",
}


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_bad_input_is_refused_and_leaves_no_folder(make, config, golden, tmp_path):
    with pytest.raises(ValueError, match=REFUSED[make]):
        train(make(config, golden, tmp_path), tmp_path / "run", verbose=0)
    assert not (tmp_path / "run").exists()


def test_neither_model_nor_weights_is_refused():
    with pytest.raises(ValueError, match="give a model, .* or weights"):
        RunConfig("digits", RECIPE)


def test_unreadable_images_are_left_out_and_listed_in_the_record(config, tmp_path):
    root = write_classes(tmp_path / "images")
    bad = write_broken(root / "cat" / "bad.png")
    skipping = dataclasses.replace(
        config, dataset=f"folder:{root}", on_bad_image="skip", recipe=RECIPE.with_changes(total_steps=1)
    )
    assert train(skipping, tmp_path / "run", verbose=0)[1]["bad_images"] == [str(bad)]


def test_another_backend_is_refused(config, tmp_path, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="training needs KERAS_BACKEND=tensorflow; got 'jax'"):
        train(config, tmp_path / "run", verbose=0)


def test_a_damaged_checkpoint_is_named(config, tmp_path):
    workdir = run.Workdir(tmp_path / "run", dataclasses.asdict(config))
    workdir.make()
    workdir.checkpoint.write_bytes(b"PK half a checkpoint")
    with pytest.raises(ValueError, match="last.keras' is damaged .*; remove it to train from the start"):
        train(config, tmp_path / "run", verbose=0)
