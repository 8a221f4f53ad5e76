import re
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference.comparing import arrays
from reference.small import small
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from keras_vit.engine.strategy import make_devices
from keras_vit.models import DistributedModel
from keras_vit.training import Recipe, callbacks, compile_model
from keras_vit.training.callbacks import (
    MAX_LINES,
    MAX_STEP_ROWS,
    CheckpointCallback,
    EvaluateAverage,
    Progress,
    Validate,
)
from keras_vit.training.checkpoints import Checkpoints
from keras_vit.training.workdir import Workdir

# Each trains for a part of a schedule.
pytestmark = pytest.mark.filterwarnings("ignore:the learning rate's schedule has total_steps:UserWarning")

RECIPE = Recipe("sgd", 0.1, 8, 2, 4, ema=0.5)
IMAGES, LABELS = np.random.default_rng(0).standard_normal((8, 6)).astype("float32"), np.arange(8) % 5


@pytest.fixture
def workdir(tmp_path):
    workdir = Workdir(tmp_path / "run", {})
    workdir.make()
    return workdir


def compiled(done=0):
    images = keras.Input((6,))
    model = DistributedModel(images, keras.layers.Dense(5, name="head")(images))
    compile_model(model, RECIPE)
    model.run_eagerly = True  # Tracing takes longer than a few steps.
    model.optimizer.build(model.trainable_variables)
    model.optimizer._iterations.assign(done)
    return model


def checkpointing(workdir, done=0, total=4):
    return CheckpointCallback(workdir, Checkpoints(workdir.checkpoints), done, 4, total)


def fit(model, *callbacks, epochs=2, labels=LABELS, **options):
    """Two steps of four images per epoch."""
    data = {"x": IMAGES, "y": labels, "batch_size": 4, "epochs": epochs, "shuffle": False}
    return model.fit(**data, callbacks=[*callbacks], verbose=0, **options).history


def steps_of(rows):
    return [row["step"] for row in rows]


def logged(workdir):
    """What TensorBoard reads: {run: {tag: [(step, value), …]}}."""
    runs = {}
    for folder in sorted((workdir.path / "tensorboard").iterdir()):
        read = EventAccumulator(str(folder)).Reload()
        runs[folder.name] = {
            tag: [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in read.Tensors(tag)]
            for tag in read.Tags()["tensors"]
        }
    return runs


def test_metrics_steps_events_and_checkpoints_are_written(workdir):
    model = compiled()
    callback = checkpointing(workdir)
    history = fit(model, callback, validation_data=(IMAGES, LABELS))
    rows, steps, events = workdir.metrics(), workdir.steps(), logged(workdir)
    assert steps_of(rows) == [2, 4] and steps_of(steps) == [1, 2, 3, 4]
    assert [row["loss"] for row in rows] == history["loss"]
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.1, 0.1 * 0.75])
    assert [row["images_per_second"] for row in rows] == pytest.approx([8 / row["seconds"] for row in rows])
    assert callback.checkpoints.newest() == 4
    columns = (workdir.path / "metrics.csv").read_text().splitlines()[0].split(",")
    assert columns[:4] == ["step", "seconds", "images_per_second", "learning_rate"]

    losses = np.array([row["loss"] for row in steps])
    np.testing.assert_allclose(losses.reshape(2, 2).mean(axis=1), history["loss"], rtol=1e-6)
    assert losses[0] != pytest.approx(losses[1])
    assert steps[1]["learning_rate"] == rows[0]["learning_rate"]
    assert events["train"].keys() == {"loss", "learning_rate", "accuracy", "images_per_second"}
    assert events["validation"].keys() == {"loss", "accuracy"}
    np.testing.assert_allclose(events["train"]["loss"], [(row["step"], row["loss"]) for row in steps])
    np.testing.assert_allclose(events["validation"]["loss"], [(row["step"], row["val_loss"]) for row in rows])


def test_the_seconds_of_a_row_are_those_of_the_steps_without_the_evaluation(workdir, monkeypatch):
    clock = types.SimpleNamespace(now=0)
    monkeypatch.setattr(callbacks.time, "perf_counter", lambda: clock.now)
    spends = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda *_, **__: setattr(clock, "now", clock.now + 3),
        on_test_begin=lambda *_, **__: setattr(clock, "now", clock.now + 100),
    )
    fit(compiled(), spends, checkpointing(workdir), validation_data=(IMAGES, LABELS))
    assert [(row["seconds"], row["images_per_second"]) for row in workdir.metrics()] == [(6, 8 / 6)] * 2


def test_a_resumed_run_neither_repeats_nor_loses_a_row(workdir):
    fit(compiled(), checkpointing(workdir))
    metrics, steps, events = workdir.metrics(), workdir.steps(), logged(workdir)["train"]
    model, callback = compiled(), checkpointing(workdir, done=2)
    callback.checkpoints.restore(model, 2)  # as if the last checkpoint had not been written
    fit(model, callback, epochs=1)
    assert steps_of(workdir.metrics()) == [2, 4] and workdir.metrics()[0] == metrics[0]
    assert steps_of(workdir.steps()) == [1, 2, 3, 4] and workdir.steps()[:2] == steps[:2]
    found = logged(workdir)["train"]
    for tag in ("loss", "learning_rate", "accuracy"):
        assert [step for step, _ in found[tag]] == [step for step, _ in events[tag]]
    assert found["loss"][:2] == events["loss"][:2]


def test_a_long_run_has_a_few_hundred_rows_of_averages(workdir):
    callback = checkpointing(workdir, total=100_000)
    assert 100_000 / callback.every == MAX_STEP_ROWS
    callback.every = 2
    history = fit(compiled(), callback)
    assert steps_of(workdir.steps()) == [2, 4]
    np.testing.assert_allclose([row["loss"] for row in workdir.steps()], history["loss"], rtol=1e-6)


def test_the_loss_of_each_step_is_right_for_samples_of_other_weights(workdir):
    model = compiled()
    expected = [model.loss(LABELS[i : i + 4], model(IMAGES[i : i + 4])) for i in (0, 4)]
    weights = np.repeat([1.0, 100.0], 4)
    history = fit(model, checkpointing(workdir), epochs=1, sample_weight=weights)  # The first rate is 0.
    np.testing.assert_allclose([row["loss"] for row in workdir.steps()], expected, rtol=1e-5)
    np.testing.assert_allclose(history["loss"], [np.mean(expected)], rtol=1e-6)


class Breaks(keras.callbacks.Callback):
    """Set weights to NaN after the last training step of an epoch, as an update of that step would."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.model.trainable_variables[0].assign(self.model.trainable_variables[0] * np.nan)


@pytest.mark.parametrize(
    "breaking, options, words",
    [
        ([], {"labels": np.full(8, 9)}, "loss is nan at step 3: .* lower base_lr"),
        ([Breaks], {"validation_data": (IMAGES, LABELS)}, "val_loss is nan at step 4: the run has diverged"),
    ],
    ids=["labels", "validation"],
)
def test_a_diverged_run_stops_and_writes_no_checkpoint(breaking, options, words, workdir):
    model, callback = compiled(), checkpointing(workdir)
    fit(model, callback, epochs=1)
    with pytest.raises(ValueError, match=words):
        fit(model, callback, *(make() for make in breaking), epochs=1, **options)
    assert steps_of(workdir.metrics())[:1] == [2] and callback.checkpoints.newest() == 2


def test_lines_of_progress_have_scores_speed_and_the_remaining_time(capsys):
    fit(compiled(), Progress(8, 0, 4, bar=False))
    lines = capsys.readouterr().out.splitlines()
    pattern = r"step {} of 8  accuracy \d\.\d{{4}}  loss \d+\.\d{{4}}"
    speed = r"  \d+ images/s  \d\d:\d\d left"
    assert re.fullmatch(pattern.format(1), lines[0])
    for step, line in enumerate(lines[1:], 2):
        assert re.fullmatch(pattern.format(step) + speed, line)
    assert len(lines) == 4


def test_the_remaining_time_is_that_of_the_steps_that_follow(capsys, monkeypatch):
    """At three seconds a step, of 4 images."""
    seconds = 0
    monkeypatch.setattr(callbacks.time, "perf_counter", lambda: seconds)
    progress = Progress(100, 0, 4, bar=False)
    progress.set_params({"steps": 100})
    for step in range(10):
        seconds += 3
        progress.on_train_batch_end(step, {"loss": 1.0})
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "step 10 of 100  loss 1.0000  1 images/s  04:30 left"


@pytest.mark.parametrize("total, per_epoch", [(300, 1), (50_000, 5), (300, 300)])
def test_lines_are_few_however_long_the_run(total, per_epoch, capsys):
    progress = Progress(total, 0, 4, bar=False)
    progress.set_params({"steps": per_epoch})
    for step in range(total):
        progress.on_train_batch_end(step % per_epoch, {"loss": 1.0})
        if (step + 1) % per_epoch == 0:
            progress.on_epoch_end(step // per_epoch, {"loss": 1.0, "val_loss": 1.0})
    lines = capsys.readouterr().out.splitlines()
    assert MAX_LINES - 5 <= len(lines) <= MAX_LINES + 5
    assert lines[0].startswith("step 1 of") and "val_loss" in lines[-1] and f"step {total} of" in lines[-1]


def test_a_bar_counts_images_from_where_the_run_resumes(capsys):
    progress = Progress(8, 4, 4, bar=True)
    assert (progress.bar.n, progress.bar.total) == (16, 32)
    fit(compiled(done=4), progress)
    captured = capsys.readouterr()
    assert progress.bar.n == 32
    assert "step 8 of 8" in captured.out and "images" in captured.err


def test_the_average_is_evaluated_and_the_weights_are_restored_bit_for_bit():
    model, seen = compiled(), []

    def record(logs):
        seen.append([variable.numpy() for variable in model.trainable_variables])

    # Keras calls callbacks in order: `before` precedes EvaluateAverage, `after` follows it.
    before = keras.callbacks.LambdaCallback(on_test_begin=record)
    after = keras.callbacks.LambdaCallback(on_test_end=record)
    history = fit(model, before, EvaluateAverage(), after, epochs=1, validation_data=(IMAGES, LABELS))
    np.testing.assert_equal(*seen)
    # Keras leaves the averages in the model at the end of `fit`.
    assert any((variable.numpy() != one).any() for variable, one in zip(model.trainable_variables, seen[0]))
    again = model.evaluate(IMAGES, LABELS, verbose=0, return_dict=True)
    assert again["loss"] == pytest.approx(history["val_loss"][0], rel=1e-6)


@pytest.mark.parametrize("ema", [0.5, None])
def test_the_scores_of_a_validation_are_those_of_the_weights_or_averages_of_now(ema):
    model = small(num_layers=1)
    compile_model(model, RECIPE.with_changes(ema=ema))
    bias, seen = model.get_layer("head").bias, []
    model.optimizer.build([bias])

    def scores(finished):
        seen.append(finished)
        return {"bias": finished.get_layer("head").bias[0]}

    validate = Validate(scores, (1, 3), make_devices("single"))
    validate.set_model(model)
    for epoch, expected in enumerate(({"val_bias": 1}, {}, {"val_bias": 3})):
        for variable in (bias, *model.optimizer.variables):
            is_scored = (variable is bias) == (ema is None)
            variable.assign(np.full(variable.shape, epoch + 1 if is_scored else 7))
        before = arrays(model)
        validate.on_epoch_end(epoch, logs := {})
        assert logs == expected
        np.testing.assert_equal(arrays(model), before)
    assert seen[0] is seen[1]  # whose function is traced once
