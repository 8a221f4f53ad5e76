import contextlib
import json
import os
import pathlib
import shutil
import signal
import types

import keras
import numpy as np
import pytest
from made.changes import exchange
from made.folders import write_broken, write_classes
from made.runs import changed
from made.workers import end_of, finish, output_of, start

from keras_vit import from_pretrained
from keras_vit.data.datasets import load_dataset
from keras_vit.data.fingerprint import fingerprint
from keras_vit.engine import device_dtype
from keras_vit.engine.strategy import make_devices
from keras_vit.evaluation.predicting import predict
from keras_vit.training import RECIPES, run
from keras_vit.training.run import train
from keras_vit.training.workdir import Workdir, stored_recipe, write_json

slow = pytest.mark.slow
# A run of one step, for what does not depend on their number.
SHORT = {"total_steps": 1, "warmup_steps": 0, "ema": None, "accumulation_steps": 1, "mixup": 0.0}


@pytest.fixture
def unfinished(finished, tmp_path):
    """A run that was interrupted after its last step, and its configuration with its own data."""
    config, workdir = finished
    shutil.copytree(config.dataset.removeprefix("folder:"), tmp_path / "images")
    shutil.copytree(workdir.path, tmp_path / "run")
    for name in ("result.json", "model.keras"):
        (tmp_path / "run" / name).unlink()
    config = changed(config, dataset=f"folder:{tmp_path / 'images'}")
    write_json(tmp_path / "run" / "config.json", config.with_dtype("float32").as_json())
    return config, tmp_path / "run"


def assert_same_end(workdir, expected):
    """The same metrics except for times, and the same numbers bit for bit."""
    assert workdir.steps() == expected.steps() != []
    np.testing.assert_equal(end_of(workdir.path), end_of(expected.path))


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
        *("checkpoints", "config.json", "data.json", "data_files.parquet", "figures", "metrics.csv"),
        *("model.keras", "result.json", "steps.csv", "tensorboard"),
    ]


def test_a_finished_run_returns_its_result_and_trains_nothing(finished, monkeypatch):
    config, workdir = finished
    monkeypatch.setattr(run, "load_dataset", None)
    again, found = train(config, workdir.path, verbose=0)
    assert (again.path, found) == (workdir.path, workdir.result)


def test_a_run_resumes_from_its_newest_whole_checkpoint_as_if_it_had_not_ended(unfinished, finished, capfd):
    config, path = unfinished
    (path / "checkpoints" / "step-00000014" / "values.npz").write_bytes(b"the first half")
    workdir, record = train(config, path, verbose=2)
    assert record["steps"] == 14
    assert capfd.readouterr().out.splitlines()[-1].startswith("step 14 of 14  ")
    assert_same_end(workdir, finished[1])


@slow
def test_a_run_trains_on_some_of_the_readable_images(finished, tmp_path, monkeypatch, capsys):
    seen, batches = [], run.training_batches
    monkeypatch.setattr(
        run, "training_batches", lambda samples, *a, **k: seen.append(samples) or batches(samples, *a, **k)
    )
    root = write_classes(tmp_path / "images", count=12)
    bad = write_broken(root / "cat" / "bad.png")
    options = {"dataset": f"folder:{root}", "on_bad_image": "skip", "train_samples": 6}
    _, record = train(changed(finished[0], **SHORT, **options), tmp_path / "run", verbose=2)
    assert record["bad_images"] == [str(bad)]
    assert record["data"].startswith("2 classes (cat, dog): 18 train, ")
    assert record["data"].endswith("; 6 of the training samples used")
    assert record["data"] in capsys.readouterr().out.splitlines()
    assert sorted(seen[0].labels) == [0, 0, 0, 1, 1, 1]


def test_the_line_of_the_data_says_how_many_samples_are_used():
    dataset, recipe = load_dataset("digits"), RECIPES["digits"]
    assert run._summary(dataset, recipe) == dataset.summary()
    line = f"{dataset.summary()}; 20 of the training samples used"
    assert run._summary(dataset, recipe.with_changes(train_samples=20)) == line


def broken_image(tmp_path):
    root = write_classes(tmp_path / "images")
    write_broken(root / "cat" / "bad.png")
    return {"dataset": f"folder:{root}"}


REFUSED = {
    "broken image": (broken_image, r"1 image\(s\) cannot be read: .*cat/bad.png"),
    "long warm-up": (lambda tmp: {"warmup_steps": 20}, "warmup_steps must be .* got 20 and 14"),
    "samples": (lambda tmp: {"train_samples": 19}, "train_samples must be at most 18, .*; got 19"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_bad_input_is_refused_and_creates_no_folder(reason, finished, tmp_path):
    changes, words = REFUSED[reason]
    with pytest.raises(ValueError, match=words):
        train(changed(finished[0], **changes(tmp_path)), tmp_path / "run", verbose=0)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("weights, chosen", [((0, 1), {1}), ([1, 0], {0})], ids=str)
def test_a_class_without_weight_is_never_predicted(weights, chosen, finished, eager_once, tmp_path):
    config = changed(finished[0], class_weights=weights, base_lr=0.3, total_steps=4, warmup_steps=0, ema=None)
    workdir, _ = train(config, tmp_path / "run", verbose=0)
    samples = load_dataset(config.dataset).split("train")
    predictions = predict(from_pretrained(workdir.path), samples)
    assert {*predictions.best[:, 0].tolist()} == chosen


def test_a_batch_that_the_devices_cannot_divide_is_refused(finished, tmp_path):
    with pytest.raises(ValueError, match="batch_size must be a multiple of 4, the devices; got 6"):
        train(changed(finished[0], batch_size=6), tmp_path / "run", verbose=0, strategy="mirrored")


def test_another_backend_is_refused(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(ValueError, match="training needs KERAS_BACKEND=tensorflow or jax; got 'torch'"):
        train(finished[0], tmp_path / "run", verbose=0)


def test_a_run_is_not_resumed_with_other_data(unfinished, tmp_path):
    config, path = unfinished
    written = ("config.json", ".lock", ".lock-holder")
    files = {file: file.stat().st_mtime_ns for file in path.rglob("*") if file.name not in written}
    exchange(tmp_path / "images" / "cat", tmp_path / "images" / "dog")
    words = r"run' have changed: .* file.*, first: cat/\d\d.png.*; restore them"
    with pytest.raises(ValueError, match=words):
        train(config, path, verbose=0)
    assert {file: file.stat().st_mtime_ns for file in files} == files


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["result.json", "model.keras"])
def test_an_interrupted_run_says_so_and_completes_what_is_missing(missing, unfinished, finished, capfd):
    config, path = unfinished
    expected = [
        "computing in float32 (dtype=auto)",
        "2 classes (cat, dog): 18 train, 2 validation, 4 test; validation and test held out",
        "as noted",
    ]
    expected += [f"resuming {path} from step 14 of 14"]
    if missing == "model.keras":
        shutil.copy(finished[1].path / "result.json", path)
        expected.insert(0, f"'{path}/model.keras' is missing and is rebuilt from the last checkpoint")
    workdir, record = train(config, path, verbose=2, note="as noted")
    assert capfd.readouterr().out.splitlines() == expected
    assert_same_end(workdir, finished[1])
    assert record == finished[1].result
    recorded = [json.loads((folder / "data.json").read_text()) for folder in (path, finished[1].path)]
    assert recorded[0] == recorded[1]


def test_the_dtype_is_that_of_the_device_where_a_run_begins(finished, tmp_path, monkeypatch, capfd):
    config, path, models = changed(finished[0], **SHORT), tmp_path / "run", []
    monkeypatch.setattr(run, "_fit", lambda config, model, *_: models.append(model))
    monkeypatch.setattr(run, "_finish", lambda *_: {})
    for devices in [(7, 5)], []:
        monkeypatch.setattr(device_dtype, "accelerators", lambda devices=devices: devices)
        train(config, path, verbose=2)
        assert capfd.readouterr().out.startswith("computing in mixed_float16 (dtype=auto)\n")
        assert stored_recipe(path)["dtype"] == models[-1].dtype_policy.name == "mixed_float16"
        assert isinstance(models[-1].optimizer, keras.optimizers.LossScaleOptimizer)
    with pytest.raises(ValueError, match="recipe.dtype .there 'mixed_float16', asked 'float32'."):
        train(changed(config, dtype="float32"), path, verbose=0)


def test_all_workers_compute_in_a_dtype_that_the_least_of_them_supports(monkeypatch):
    monkeypatch.setattr(device_dtype, "accelerators", lambda: [(8, 0)])
    devices = types.SimpleNamespace(scope=contextlib.nullcontext, smallest=lambda number: min(number, 1))
    assert run._common_dtype(devices) == "mixed_float16"


def test_two_processes_do_not_train_in_one_folder(unfinished):
    config, path = unfinished
    words = rf"process {os.getpid()} on .* trains in '{path}'; wait for"
    workdir = Workdir(path, config.with_dtype("float32").as_json())
    with workdir.locked(), pytest.raises(ValueError, match=words):
        train(config, path, verbose=0)


@slow
@pytest.mark.parametrize("moment, status", [("term 5", 143), ("interrupt 5", -signal.SIGINT)])
def test_on_a_signal_the_run_ends_with_a_checkpoint_and_resumes_as_if_it_had_not(
    moment, status, finished, tmp_path
):
    config, expected = finished
    assert finish([start(tmp_path, config, tmp_path / "run", moment=moment)]) == [status]
    line = "stopped: the checkpoint of step 5 is written; the same command resumes the run\n"
    assert line in output_of(tmp_path, moment=moment)
    workdir, _ = train(config, tmp_path / "run", verbose=0)
    np.testing.assert_equal(end_of(workdir.path)[1:], end_of(expected.path)[1:])
    assert [row["step"] for row in workdir.metrics()] == [2, 4, 5, 6, 8, 10, 12, 14]


@pytest.mark.slow
@pytest.mark.parametrize("split", ["test", "train"])
def test_images_that_break_during_a_run_are_named(split, unfinished, monkeypatch):
    config, path = unfinished
    if split == "train":
        shutil.rmtree(path / "checkpoints")
    dataset = run.load_data(config)
    found = fingerprint(dataset)
    monkeypatch.setattr(run, "fingerprint", lambda *args: found)  # as if they broke a moment later
    gone, bad = sorted(dataset.split(split).images)[:2]
    pathlib.Path(gone).unlink()
    write_broken(pathlib.Path(bad))
    words = rf"2 image\(s\) cannot be read: {gone} \(No such file or .*\), {bad} \(.*\); restore them and run"
    with pytest.raises(ValueError, match=words):
        train(config, path, verbose=0, dataset=dataset)


def test_a_test_score_of_nan_writes_no_model(unfinished, monkeypatch):
    config, path = unfinished
    scores = {"accuracy": 1.0, "loss": float("nan")}
    monkeypatch.setattr(type(config.task), "test", lambda *args: scores)
    with pytest.raises(ValueError, match="test_loss is nan at step 14: the run has diverged"):
        train(config, path, verbose=0)
    assert not {file.name for file in path.iterdir()} & {"model.keras", "result.json"}


def test_no_more_images_are_evaluated_at_once_than_trained(unfinished, finished, monkeypatch):
    config, path = unfinished  # with 4 images in 2 micro-batches
    model, dataset = from_pretrained(finished[1].path), load_dataset(config.dataset)
    model.compile()
    batches = run._batches(config, model, dataset, dataset.split("train"), make_devices("single"))
    assert {len(labels) for _, labels in batches} == {2}

    def test(task, model, finished, dataset, recipe):
        assert recipe.batch_size == 2
        return {"accuracy": 1.0, "samples": 4}

    monkeypatch.setattr(type(config.task), "test", test)
    assert train(config, path, verbose=0)[1]["test_accuracy"] == 1.0


def test_the_finished_model_has_the_moving_average_of_the_weights(finished):
    _, saved, values = end_of(finished[1].path)
    trained = {name.split("/", 2)[2]: value for name, value in values.items() if name.startswith("model/")}
    optimizer = [value for name, value in values.items() if name.startswith("optimizer/")]
    bias = saved["head/bias"]
    assert np.abs(bias - trained["head/bias"]).max() > 1e-7
    assert any(value.shape == bias.shape and (value == bias).all() for value in optimizer)
