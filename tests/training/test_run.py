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
from made.workers import finish, output_of, random_moments, start
from reference.comparing import arrays

from keras_vit.data.fingerprint import fingerprint
from keras_vit.training import run
from keras_vit.training.recipes import PROVENANCE
from keras_vit.training.run import RunConfig, train
from keras_vit.training.workdir import Workdir, write_json

slow = pytest.mark.slow
# A run of one step, for what does not depend on their number.
SHORT = {"total_steps": 1, "warmup_steps": 0, "ema": None, "accumulation_steps": 1, "mixup": 0.0}


def changed(config, **changes):
    """A configuration with other fields, of its own or else of its recipe."""
    own = {f.name for f in dataclasses.fields(RunConfig)}
    recipe = config.recipe.with_changes(**{name: v for name, v in changes.items() if name not in own})
    return dataclasses.replace(
        config, **{"recipe": recipe} | {name: v for name, v in changes.items() if name in own}
    )


@pytest.fixture
def unfinished(finished, tmp_path):
    """A run that was interrupted after its last step, and its configuration with its own data."""
    config, workdir = finished
    shutil.copytree(config.dataset.removeprefix("folder:"), tmp_path / "images")
    shutil.copytree(workdir.path, tmp_path / "run")
    for name in ("result.json", "model.keras"):
        (tmp_path / "run" / name).unlink()
    config = changed(config, dataset=f"folder:{tmp_path / 'images'}")
    write_json(tmp_path / "run" / "config.json", config.as_json())
    return config, tmp_path / "run"


def state(workdir):
    """Every number of the finished model and of the last checkpoint."""
    (*_, last) = sorted(workdir.checkpoints.glob("step-*"))
    with np.load(last / "values.npz") as values:
        return arrays(keras.saving.load_model(workdir.model)), last.name, dict(values)


def rows(workdir):
    times = ("seconds", "images_per_second")
    return [{name: x for name, x in row.items() if name not in times} for row in workdir.metrics()]


def assert_same_end(workdir, expected):
    """The same metrics except for times, and the same numbers bit for bit."""
    assert rows(workdir) == rows(expected)
    assert workdir.steps() == expected.steps() != []
    for found, wanted in zip(state(workdir), state(expected)):
        np.testing.assert_equal(found, wanted)


def test_a_run_writes_its_result_metrics_and_model(finished):
    config, workdir = finished
    assert [row["step"] for row in workdir.metrics()] == [2, 4, 6, 8, 10, 12, 14]
    evaluated = [row["step"] for row in workdir.metrics() if "val_accuracy" in row]
    assert evaluated == [4, 8, 12, 14]
    rates = {row["step"]: row["learning_rate"] for row in workdir.metrics()}
    assert rates[8] == pytest.approx(3e-3 * 0.5, rel=1e-4) and rates[14] == pytest.approx(0, abs=1e-9)
    record, model = workdir.result, keras.saving.load_model(workdir.model)
    assert record["steps"] == 14 and record["test_samples"] == 4 and record["bad_images"] == []
    assert record["test_accuracy"] in (0, 0.25, 0.5, 0.75, 1)
    assert (model.class_names, model.num_classes) == (("cat", "dog"), 2)
    assert record["parameters"] == model.count_params()
    assert sorted(path.name for path in workdir.path.glob("[!.]*")) == [
        *("checkpoints", "config.json", "data.json", "figures", "metrics.csv", "model.keras", "result.json"),
        *("steps.csv", "tensorboard"),
    ]


def test_a_finished_run_returns_its_result_and_trains_nothing(finished, monkeypatch):
    config, workdir = finished
    monkeypatch.setattr(run, "load_dataset", None)
    again, found = train(config, workdir.path, verbose=0)
    assert (again.path, found) == (workdir.path, workdir.result)


@pytest.mark.parametrize(
    "moment", [pytest.param(moment, marks=[slow] * (i > 0)) for i, moment in enumerate(random_moments(14))]
)
def test_a_killed_run_resumes_and_ends_as_if_it_had_not_been(moment, finished, tmp_path):
    config, expected = finished
    path = tmp_path / "run"
    assert finish([start(tmp_path, config, path, moment=moment)]) == [-signal.SIGKILL]
    assert not (path / "result.json").exists() and not (path / "model.keras").exists()
    workdir, record = train(config, path, verbose=0)
    assert record["steps"] == 14
    assert_same_end(workdir, expected)


def test_a_resumed_run_says_so(unfinished, capfd):
    config, path = unfinished
    (path / "metrics.csv").unlink()
    train(config, path, verbose=2, note="as noted")
    lines = [
        "2 classes (cat, dog): 18 train, 2 validation, 4 test",
        "as noted",
        f"resuming {path} from step 14 of 14",
        f"{path}/metrics.csv lacks the rows of steps 2, 4, 6, 8, 10 and 2 more",
    ]
    assert capfd.readouterr().out.splitlines()[:4] == lines


def test_another_configuration_is_refused_with_the_fields_that_differ(finished):
    config, workdir = finished
    with pytest.raises(ValueError, match="another configuration; it differs in recipe.base_lr.*recipe.flip"):
        train(changed(config, base_lr=0.1, flip=False), workdir.path, verbose=0)


def test_a_run_starts_from_a_checkpoint_with_a_new_head_on_some_of_the_readable_images(
    finished, golden, tmp_path, monkeypatch
):
    seen, batches = [], run.training_batches
    monkeypatch.setattr(
        run, "training_batches", lambda samples, *a, **k: seen.append(samples) or batches(samples, *a, **k)
    )
    root = write_classes(tmp_path / "images", count=12)
    bad = write_broken(root / "cat" / "bad.png")
    weights = str(golden / "token_rep.npz")
    options = SHORT | {"base_lr": 1e-9, "model": None, "weights": weights, "image_size": (24, 40)}
    options |= {"dataset": f"folder:{root}", "on_bad_image": "skip", "train_samples": 6}
    workdir, record = train(changed(finished[0], **options), tmp_path / "run", verbose=0)
    model = keras.saving.load_model(workdir.model)
    assert (model.image_size, model.num_classes, model.representation_size) == ((24, 40), 2, None)
    with np.load(weights) as stored:
        kernel = stored["Transformer/encoderblock_1/MlpBlock_3/Dense_0/kernel"]
    np.testing.assert_allclose(arrays(model)["encoder_block_1/mlp/dense_0/kernel"], kernel, atol=1e-6)
    assert np.abs(arrays(model)["head/kernel"]).max() < 1e-6
    assert record["bad_images"] == [str(bad)]
    assert sorted(seen[0].labels) == [0, 0, 0, 1, 1, 1]


def broken_image(tmp_path):
    root = write_classes(tmp_path / "images")
    write_broken(root / "cat" / "bad.png")
    return {"dataset": f"folder:{root}"}


REFUSED = {
    "missing folder": (lambda tmp: {"dataset": f"folder:{tmp / 'nowhere'}"}, "no such folder: .*nowhere"),
    "broken image": (broken_image, r"1 image\(s\) cannot be read: .*cat/bad.png"),
    "unknown variant": (lambda tmp: {"model": "X/16"}, "variant 'X/16' is unknown"),
    "missing weights": (
        lambda tmp: {"weights": str(tmp / "nowhere.npz")},
        "no such checkpoint file: .*nowhere",
    ),
    "image size": (lambda tmp: {"image_size": (20, 20)}, "20×20 .* not divisible by the patch of 8×8"),
    "long warm-up": (lambda tmp: {"warmup_steps": 20}, "warmup_steps must be .* got 20 and 14"),
    "micro-batches": (
        lambda tmp: {"accumulation_steps": 5},
        "accumulation_steps must be at most 4, .* got 5",
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_bad_input_is_refused_and_creates_no_folder(reason, finished, tmp_path):
    changes, words = REFUSED[reason]
    with pytest.raises(ValueError, match=words):
        train(changed(finished[0], **changes(tmp_path)), tmp_path / "run", verbose=0)
    assert not (tmp_path / "run").exists()


def test_a_batch_that_the_devices_cannot_divide_is_refused(finished, tmp_path):
    with pytest.raises(ValueError, match="batch_size must be a multiple of 4, the devices; got 6"):
        train(changed(finished[0], batch_size=6), tmp_path / "run", verbose=0, strategy="mirrored")


def test_a_configuration_without_a_model_or_with_an_unknown_objective_is_refused(finished):
    with pytest.raises(ValueError, match="expected a model, .* or weights; got neither"):
        RunConfig("digits", finished[0].recipe)
    with pytest.raises(ValueError, match="objective must be one of 'classify', 'masked_patch'; got 'draw'"):
        changed(finished[0], objective="draw")


def test_another_backend_is_refused(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="training needs KERAS_BACKEND=tensorflow; got 'jax'"):
        train(finished[0], tmp_path / "run", verbose=0)


@slow
def test_a_damaged_checkpoint_falls_back_to_the_one_before(finished, unfinished, capfd):
    config, path = unfinished
    file = path / "checkpoints" / "step-00000014" / "values.npz"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    workdir, _ = train(config, path, verbose=2)
    output = capfd.readouterr().out
    assert "step-00000014 is damaged" in output and f"resuming {path} from step 12 of 14" in output
    assert_same_end(workdir, finished[1])


def test_a_run_is_not_resumed_with_other_data(unfinished, tmp_path):
    config, path = unfinished
    written = ("config.json", ".lock", ".lock-holder")
    files = {file: file.stat().st_mtime_ns for file in path.rglob("*") if file.name not in written}
    exchange(tmp_path / "images" / "cat", tmp_path / "images" / "dog")
    with pytest.raises(
        ValueError, match=r"run' have changed: .* file.*, first: cat/\d\d.png.*; restore them"
    ):
        train(config, path, verbose=0)
    assert {file: file.stat().st_mtime_ns for file in files} == files


def test_a_run_without_a_record_of_its_data_resumes_with_the_present_ones(unfinished, finished):
    config, path = unfinished
    (path / "data.json").unlink()
    assert_same_end(train(config, path, verbose=0)[0], finished[1])
    recorded = [json.loads((folder / "data.json").read_text()) for folder in (path, finished[1].path)]
    assert recorded[0] == recorded[1]


def test_a_missing_model_of_a_finished_run_is_rebuilt(unfinished, finished, capfd):
    config, path = unfinished
    shutil.copy(finished[1].path / "result.json", path)
    workdir, record = train(config, path, verbose=2)
    output = capfd.readouterr().out
    assert output.startswith(f"'{path}/model.keras' is missing and is rebuilt from the last checkpoint\n")
    assert_same_end(workdir, finished[1])
    assert record == finished[1].result
    workdir.model.unlink()
    shutil.rmtree(workdir.checkpoints)
    with pytest.raises(ValueError, match="model.keras' is missing, and there is no checkpoint"):
        train(config, path, verbose=0)


def test_two_processes_do_not_train_in_one_folder(unfinished):
    config, path = unfinished
    words = rf"process {os.getpid()} on .* trains in '{path}'; wait for"
    with Workdir(path, config.as_json()).locked(), pytest.raises(ValueError, match=words):
        train(config, path, verbose=0)


@slow
def test_on_sigterm_the_run_ends_with_a_checkpoint_and_resumes_as_if_it_had_not(finished, tmp_path):
    config, expected = finished
    assert finish([start(tmp_path, config, tmp_path / "run", moment="term 5")]) == [143]
    line = "SIGTERM: the checkpoint of step 5 is written; the same command resumes the run\n"
    assert line in output_of(tmp_path, moment="term 5")
    workdir, _ = train(config, tmp_path / "run", verbose=0)
    for found, wanted in zip(state(workdir), state(expected)):
        np.testing.assert_equal(found, wanted)
    assert [row["step"] for row in workdir.metrics()] == [2, 4, 5, 6, 8, 10, 12, 14]


@pytest.mark.parametrize("split", ["test", pytest.param("train", marks=slow)])
def test_images_that_break_during_a_run_are_named(split, unfinished, monkeypatch):
    config, path = unfinished
    if split == "train":
        shutil.rmtree(path / "checkpoints")
    dataset = run.load_data(config)
    found = fingerprint(dataset)
    monkeypatch.setattr(run, "fingerprint", lambda dataset: found)  # as if they broke a moment later
    gone, bad = sorted(dataset.split(split).images)[:2]
    pathlib.Path(gone).unlink()
    write_broken(pathlib.Path(bad))
    words = rf"2 image\(s\) cannot be read any more: {gone}, {bad}; restore them"
    with pytest.raises(ValueError, match=words):
        train(config, path, verbose=0, dataset=dataset)


def test_a_field_that_an_earlier_version_did_not_store_has_its_default(finished, tmp_path):
    names = {*run.DEFAULTS["recipe"]} - {*PROVENANCE}
    stored, config = finished[0].as_json(), finished[0].as_json()
    for name in names:
        del stored["recipe"][name]
        config["recipe"][name] = run.DEFAULTS["recipe"][name]
    write_json(tmp_path / "config.json", stored)
    Workdir(tmp_path, config, run.DEFAULTS)
    for name in names:
        other = {"other": 1} if name == "model" else "other"
        changed = config | {"recipe": config["recipe"] | {name: other}}
        with pytest.raises(ValueError, match=rf"differs in recipe.{name}"):
            Workdir(tmp_path, changed, run.DEFAULTS)


@slow
@pytest.mark.parametrize("change", [exchange_two_classes, rename_an_image, copy_it], ids=lambda x: x.__name__)
def test_a_killed_run_resumes_with_the_same_data_only(change, finished, tmp_path):
    root = tmp_path / "images"
    shutil.copytree(finished[0].dataset.removeprefix("folder:"), root)
    config = changed(finished[0], dataset=f"folder:{root}")
    assert finish([start(tmp_path, config, tmp_path / "run", moment="step 6")]) == [-signal.SIGKILL]
    shutil.copytree(root, tmp_path / "before")
    change(root, np.random.default_rng(0))
    if change is not copy_it:
        with pytest.raises(ValueError, match="have changed"):
            train(config, tmp_path / "run", verbose=0)
        shutil.rmtree(root)
        (tmp_path / "before").rename(root)
    workdir = train(config, tmp_path / "run", verbose=0)[0]
    assert_same_end(workdir, finished[1])


def test_too_little_disk_space_is_found_before_the_first_step(finished, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(run.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OSError, match=r"GB for the run's checkpoints; got 0.0 GB of free space"):
        train(finished[0], tmp_path / "run", verbose=0)


@slow
def test_a_run_that_diverges_in_its_last_step_writes_no_model(finished, tmp_path):
    with pytest.raises(ValueError, match="val_loss is nan at step 1: .* another one with a lower base_lr"):
        train(changed(finished[0], **SHORT, base_lr=3e38), tmp_path / "run", verbose=0)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert not names & {"model.keras", "result.json"} and not [*(tmp_path / "run" / "checkpoints").iterdir()]


def test_a_test_score_of_nan_writes_no_model(unfinished, monkeypatch):
    config, path = unfinished
    monkeypatch.setattr(run, "evaluate", lambda *args: {"accuracy": 1.0, "loss": float("nan")})
    with pytest.raises(ValueError, match="test_loss is nan at step 14: the run has diverged"):
        train(config, path, verbose=0)
    assert not {file.name for file in path.iterdir()} & {"model.keras", "result.json"}


def test_the_finished_model_has_the_moving_average_of_the_weights(finished):
    saved, _, values = state(finished[1])
    trained = {name.split("/", 2)[2]: value for name, value in values.items() if name.startswith("model/")}
    optimizer = [value for name, value in values.items() if name.startswith("optimizer/")]
    bias = saved["head/bias"]
    assert np.abs(bias - trained["head/bias"]).max() > 1e-7
    assert any(value.shape == bias.shape and (value == bias).all() for value in optimizer)


@slow
@pytest.mark.parametrize("target", ["mean_color", "pixels", "downsized"])
def test_masked_patches_are_predicted_and_the_encoder_is_fine_tuned(target, finished, tmp_path):
    short = SHORT | {"eval_every": 1, "checkpoint_every": None, "label_smoothing": 0.0}
    masked = changed(finished[0], objective="masked_patch", target=target, **short)
    workdir, record = train(masked, tmp_path / "masked", verbose=0)
    assert "test_accuracy" not in record and {"loss", "val_loss"} <= {*workdir.metrics()[0]}
    encoder = keras.saving.load_model(workdir.model)
    assert encoder.num_classes is None

    still = changed(finished[0], weights=str(workdir.model), **short, base_lr=1e-9)
    tuned = keras.saving.load_model(train(still, tmp_path / "tuned", verbose=0)[0].model)
    assert tuned.num_classes == 2
    for name, value in arrays(encoder).items():
        np.testing.assert_allclose(arrays(tuned)[name], value, atol=1e-6, err_msg=name)


OPTIONS = {"remat": True, "dtype": "mixed_bfloat16", "freeze": "encoder_norm"}


@slow
@pytest.mark.parametrize("options", [OPTIONS, *({name: value} for name, value in OPTIONS.items())], ids=str)
def test_a_run_with_other_ways_to_compute(options, finished, tmp_path):
    workdir, record = train(changed(finished[0], **SHORT, **options), tmp_path / "run", verbose=0)
    assert record["steps"] == 1
    assert keras.saving.load_model(workdir.model).dtype_policy.name == "float32"
