import dataclasses
import json
import os
import pathlib
import shutil
import signal

import keras
import numpy as np
import pytest
from made.changes import copy_it, exchange, exchange_two_classes, rename_an_image
from made.folders import write_broken, write_classes
from made.workers import finish, random_moments, start
from reference.comparing import arrays
from reference.small import SMALL

from keras_vit.data.fingerprint import fingerprint
from keras_vit.models import DistributedModel
from keras_vit.training import Recipe, run
from keras_vit.training.checkpoints import step_of
from keras_vit.training.recipes import PROVENANCE
from keras_vit.training.run import RunConfig, train
from keras_vit.training.workdir import Workdir, read_json, write_json

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

# All that is random in a run, and all that its state consists of.
HARD = RECIPE.with_changes(
    dropout_rate=0.2,
    stochastic_depth_rate=0.2,
    ema=0.8,
    accumulation_steps=2,
    layer_decay=0.8,
    flip=True,
    shift=0.1,
    mixup=0.3,
    checkpoint_every=2,
)


@pytest.fixture(scope="module")
def hard(config, tmp_path_factory):
    """The configuration of a run with everything random, and what it ends as if nothing happens."""
    config = dataclasses.replace(config, recipe=HARD)
    return config, train(config, tmp_path_factory.mktemp("runs") / "hard", verbose=0)[0]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    root = write_classes(tmp_path_factory.mktemp("data") / "images", count=12)
    return RunConfig(f"folder:{root}", RECIPE, MODEL)


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    """An uninterrupted run's folder and record."""
    return train(config, tmp_path_factory.mktemp("runs") / "whole", verbose=0)


@pytest.fixture
def unfinished(config, finished, tmp_path):
    """The configuration of a run that was cut off after its last step, on data of its own, and its folder."""
    shutil.copytree(config.dataset.removeprefix("folder:"), tmp_path / "images")
    shutil.copytree(finished[0].path, tmp_path / "run")
    for name in ("result.json", "model.keras"):
        (tmp_path / "run" / name).unlink()
    config = dataclasses.replace(config, dataset=f"folder:{tmp_path / 'images'}")
    write_json(tmp_path / "run" / "config.json", config.as_json())
    return config, tmp_path / "run"


def state(workdir):
    """Every number of the finished model and of the last checkpoint."""
    (*_, last) = sorted(workdir.checkpoints.glob("step-*"))
    with np.load(last / "values.npz") as values:
        return arrays(keras.saving.load_model(workdir.model)), last.name, dict(values)


def assert_same_end(workdir, expected):
    """The same metrics but for the time they took, and the same numbers bit for bit."""
    times = ("seconds", "images_per_second")
    rows, expected_rows = (
        [{name: value for name, value in row.items() if name not in times} for row in run.metrics()]
        for run in (workdir, expected)
    )
    assert rows == expected_rows
    assert workdir.steps() == expected.steps() != []
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
    assert sorted(path.name for path in workdir.path.glob("[!.]*")) == [
        "checkpoints",
        "config.json",
        "data.json",
        "figures",
        "metrics.csv",
        "model.keras",
        "result.json",
        "steps.csv",
        "tensorboard",
    ]


def test_the_rate_of_the_recipe_was_used(finished):
    rates = {row["step"]: row["learning_rate"] for row in finished[0].metrics()}
    assert rates[8] == pytest.approx(3e-3 * 0.5, rel=1e-4)  # half-way between the warm-up and the end
    assert rates[14] == pytest.approx(0, abs=1e-9)


def test_a_finished_run_returns_its_record_and_trains_nothing(finished, config, monkeypatch):
    workdir, record = finished
    before = {path: path.stat().st_mtime_ns for path in workdir.path.rglob("*")}
    monkeypatch.setattr(run, "load_dataset", None)
    monkeypatch.setattr(run, "build_model", None)
    again, found = train(config, workdir.path, verbose=0)
    assert (again.path, found) == (workdir.path, record)
    assert {path: path.stat().st_mtime_ns for path in workdir.path.rglob("*")} == before


@pytest.mark.parametrize("moment", random_moments(HARD.total_steps))
def test_a_killed_run_ends_as_if_it_had_not_been(moment, hard, tmp_path):
    config, expected = hard
    path = tmp_path / "run"
    assert finish([start(tmp_path, config, path, moment=moment)]) == [-signal.SIGKILL]
    assert not (path / "result.json").exists()
    assert not (path / "model.keras").exists()
    workdir, record = train(config, path, verbose=0)
    assert record["steps"] == config.recipe.total_steps
    assert_same_end(workdir, expected)


def test_a_continued_run_says_so(config, tmp_path, capfd, monkeypatch):
    path = tmp_path / "run"
    monkeypatch.setattr(run, "evaluate", None)  # stops it after the training
    with pytest.raises(TypeError):
        train(config, path, verbose=0)
    monkeypatch.undo()
    (path / "metrics.csv").unlink()
    train(config, path, verbose=2, note="as noted")
    found = "2 classes (cat, dog): 18 train, 2 validation, 4 test"
    continued = (
        f"continuing {path} from step 14 of 14\n{path}/metrics.csv lacks the rows of steps 4, 8, 12, 14"
    )
    assert capfd.readouterr().out.startswith(f"{found}\nas noted\n{continued}\n")


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


@pytest.mark.parametrize("damage", ["flip", *["truncate", "remove"] * ("FULL" in os.environ)])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(damage, config, finished, tmp_path, capfd):
    path = tmp_path / "run"
    shutil.copytree(finished[0].path, path)
    (path / "result.json").unlink()
    file = path / "checkpoints" / "step-00000014" / "values.npz"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "remove":
        file.unlink()
    else:
        file.write_bytes(content if damage == "flip" else content[: len(content) // 2])
    workdir, _ = train(config, path, verbose=2)
    said = capfd.readouterr().out
    assert "step-00000014 is damaged" in said and "continuing" in said and "from step 12 of 14" in said
    assert_same_end(workdir, finished[0])


def test_a_run_is_not_continued_on_other_data(unfinished, tmp_path):
    config, path = unfinished
    written = ("config.json", ".lock", ".lock-holder")
    files = {file: file.stat().st_mtime_ns for file in path.rglob("*") if file.name not in written}
    exchange(tmp_path / "images" / "cat", tmp_path / "images" / "dog")
    with pytest.raises(
        ValueError, match=r"run' have changed: .* file.*, first: cat/\d\d.png.*; restore them"
    ):
        train(config, path, verbose=0)
    assert {file: file.stat().st_mtime_ns for file in files} == files


def test_a_finished_model_that_is_gone_is_made_anew(unfinished, finished, tmp_path, capfd):
    config, path = unfinished
    shutil.copy(finished[0].path / "result.json", path)
    workdir, record = train(config, path, verbose=2)
    said = capfd.readouterr().out
    assert said.startswith(f"'{path}/model.keras' is gone and is made anew from the last checkpoint\n")
    assert f"continuing {path} from step 14 of 14" in said
    assert_same_end(workdir, finished[0])
    assert record == finished[1]
    workdir.model.unlink()
    shutil.rmtree(workdir.checkpoints)
    with pytest.raises(ValueError, match="model.keras' is gone, and there is no checkpoint .* remove result"):
        train(config, path, verbose=0)


def test_two_processes_do_not_train_in_one_folder(unfinished):
    config, path = unfinished
    with Workdir(path, config.as_json()).locked():
        files = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
        with pytest.raises(ValueError, match=rf"process {os.getpid()} on .* trains in '{path}'; wait for"):
            train(config, path, verbose=0)
        assert {file: file.stat().st_mtime_ns for file in files} == files


def test_on_sigterm_a_checkpoint_comes_with_the_next_step_and_the_run_ends_as_if_it_had_gone_on(
    hard, tmp_path, monkeypatch, capfd
):
    config, expected = hard

    class Terminates(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if step_of(self.model) == 4:
                signal.raise_signal(signal.SIGTERM)

    def fit_and_terminate(self, *args, callbacks, **options):
        return fit(self, *args, callbacks=[*callbacks, Terminates()], **options)

    fit = DistributedModel.fit
    monkeypatch.setattr(DistributedModel, "fit", fit_and_terminate)
    with pytest.raises(SystemExit) as stop:
        train(config, tmp_path / "run", verbose=0)
    assert stop.value.code == 143
    said = "SIGTERM: the checkpoint of step 5 is written; the same command continues the run\n"
    assert capfd.readouterr().err == said
    workdir, _ = train(config, tmp_path / "run", verbose=0)
    for found, wanted in zip(state(workdir), state(expected)):
        np.testing.assert_equal(found, wanted)
    assert [row["step"] for row in workdir.metrics()] == [2, 4, 5, 6, 8, 10, 12, 14]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("split", ["test", pytest.param("train", marks=pytest.mark.slow)])
def test_images_that_break_while_a_run_is_under_way_are_named(split, unfinished, monkeypatch):
    config, path = unfinished
    if split == "train":
        shutil.rmtree(path / "checkpoints")
    dataset = run.load_data(config)
    facts = fingerprint(dataset)
    monkeypatch.setattr(run, "fingerprint", lambda dataset: facts)  # as if they had broken a moment later
    gone, bad = sorted(dataset.split(split).images)[:2]
    pathlib.Path(gone).unlink()
    write_broken(pathlib.Path(bad))
    with pytest.raises(
        ValueError, match=rf"2 image\(s\) cannot be read any more: {gone}, {bad}; restore them"
    ):
        train(config, path, verbose=0, dataset=dataset)


FIELDS = [field.name for field in dataclasses.fields(Recipe) if field.name in run.BEFORE["recipe"]]


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in PROVENANCE])
def test_a_field_that_an_earlier_version_has_not_stored_means_what_it_meant_before(name, config, tmp_path):
    stored = config.as_json()
    del stored["recipe"][name]
    write_json(tmp_path / "config.json", stored)
    same = config.as_json()
    same["recipe"][name] = run.BEFORE["recipe"][name]
    Workdir(tmp_path, same, run.BEFORE).make()
    assert read_json(tmp_path / "config.json") == json.loads(json.dumps(same))
    write_json(tmp_path / "config.json", stored)
    same["recipe"][name] = {"other": 1} if name == "model" else "other"
    with pytest.raises(ValueError, match=rf"differs in recipe.{name}"):
        Workdir(tmp_path, same, run.BEFORE)


def test_a_run_without_a_record_of_its_data_goes_on_with_what_there_is(unfinished, finished, tmp_path):
    config, path = unfinished
    (path / "data.json").unlink()
    assert_same_end(train(config, path, verbose=0)[0], finished[0])
    assert (path / "data.json").read_text() == (finished[0].path / "data.json").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("change", [exchange_two_classes, rename_an_image, copy_it], ids=lambda x: x.__name__)
def test_a_killed_run_goes_on_with_the_same_data_only(change, config, tmp_path):
    root, rng = tmp_path / "images", np.random.default_rng(0)
    shutil.copytree(config.dataset.removeprefix("folder:"), root)
    config = dataclasses.replace(config, dataset=f"folder:{root}")
    assert finish([start(tmp_path, config, tmp_path / "run", moment="step 6")]) == [-signal.SIGKILL]
    shutil.copytree(root, tmp_path / "before")
    change(root, rng)
    if change is not copy_it:
        with pytest.raises(ValueError, match="have changed"):
            train(config, tmp_path / "run", verbose=0)
        shutil.rmtree(root)
        (tmp_path / "before").rename(root)
    workdir = train(config, tmp_path / "run", verbose=0)[0]
    assert_same_end(workdir, train(config, tmp_path / "whole", verbose=0)[0])


def test_batches_that_cannot_be_shared_are_refused_before_the_first_step(config, tmp_path):
    odd = dataclasses.replace(config, recipe=RECIPE.with_changes(batch_size=6))
    with pytest.raises(ValueError, match="batch_size 6 cannot be shared by 4 devices evenly"):
        train(odd, tmp_path / "run", verbose=0, strategy="mirrored")
    split = dataclasses.replace(config, recipe=RECIPE.with_changes(accumulation_steps=5))
    with pytest.raises(ValueError, match="4 images a device cannot be split into 5 micro-batches"):
        train(split, tmp_path / "run", verbose=0)
    assert not (tmp_path / "run").exists()


def test_too_little_space_is_told_before_the_first_step(config, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(run.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OSError, match=r"has 0.0 GB free; the checkpoints of this run take"):
        train(config, tmp_path / "run", verbose=0)


def test_a_run_that_diverges_in_its_last_step_leaves_no_model(config, tmp_path):
    one_step = {"total_steps": 1, "warmup_steps": 0}
    wild = dataclasses.replace(config, recipe=RECIPE.with_changes(base_lr=3e38, **one_step))
    with pytest.raises(ValueError, match="val_loss is nan at step 1, .* another one with a lower base_lr"):
        train(wild, tmp_path / "run", verbose=0)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert not names & {"model.keras", "result.json"} and not [*(tmp_path / "run" / "checkpoints").iterdir()]


def test_a_test_score_of_nan_leaves_no_model(unfinished, tmp_path, monkeypatch):
    config, path = unfinished
    monkeypatch.setattr(run, "evaluate", lambda *args: {"accuracy": 1.0, "loss": float("nan")})
    with pytest.raises(ValueError, match="test_loss is nan at step 14, so the run has diverged"):
        train(config, path, verbose=0)
    assert not {file.name for file in path.iterdir()} & {"model.keras", "result.json"}


def test_the_moving_average_is_what_is_evaluated_and_kept(hard, config):
    _, workdir = hard
    (*_, last) = sorted(workdir.checkpoints.glob("step-*"))
    kept = arrays(keras.saving.load_model(workdir.model))
    with np.load(last / "values.npz") as values:
        stored = {name.split("/", 2)[2]: values[name] for name in values.files if name.startswith("model/")}
        every = [values[name] for name in values.files if name.startswith("optimizer/")]
    different = [name for name in kept if np.abs(kept[name] - stored[name]).max() > 1e-7]
    assert "head/bias" in different
    assert any(a.shape == kept["head/bias"].shape and (a == kept["head/bias"]).all() for a in every)


def test_few_training_samples_are_drawn_evenly(config, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        run, "training_batches", lambda samples, *a, **k: seen.append(samples) or REAL(samples, *a, **k)
    )
    few = dataclasses.replace(config, recipe=RECIPE.with_changes(train_samples=6, total_steps=1))
    train(few, tmp_path / "run", verbose=0)
    assert sorted(seen[0].labels) == [0, 0, 0, 1, 1, 1]


REAL = run.training_batches


@pytest.mark.parametrize("target", ["mean_color", *["pixels", "downsized"] * ("FULL" in os.environ)])
def test_masked_patches_are_predicted_and_the_encoder_is_fine_tuned(target, config, tmp_path):
    short = RECIPE.with_changes(total_steps=2, warmup_steps=0, eval_every=1, label_smoothing=0.0)
    masked = dataclasses.replace(config, recipe=short, objective="masked_patch", target=target)
    workdir, record = train(masked, tmp_path / "masked", verbose=0)
    assert "test_accuracy" not in record
    assert {"loss", "val_loss"} <= {*workdir.metrics()[0]}
    encoder = keras.saving.load_model(workdir.model)
    assert encoder.num_classes is None

    still = dataclasses.replace(
        config, recipe=short.with_changes(base_lr=1e-9), model=None, weights=str(workdir.model)
    )
    tuned = keras.saving.load_model(train(still, tmp_path / "tuned", verbose=0)[0].model)
    assert tuned.num_classes == 2
    for name, value in arrays(encoder).items():
        np.testing.assert_allclose(arrays(tuned)[name], value, atol=1e-6, err_msg=name)


OTHERWISE = {"remat": True, "dtype": "mixed_bfloat16", "freeze": "encoder_norm"}
ALONE = [{name: value} for name, value in OTHERWISE.items()] if "FULL" in os.environ else []


@pytest.mark.parametrize("options", [OTHERWISE, *ALONE], ids=str)
def test_a_run_with_other_ways_to_compute(options, config, tmp_path):
    other = dataclasses.replace(config, recipe=RECIPE.with_changes(total_steps=2, **options))
    workdir, record = train(other, tmp_path / "run", verbose=0)
    assert record["steps"] == 2
    assert keras.saving.load_model(workdir.model).dtype_policy.name == "float32"
