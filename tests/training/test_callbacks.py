import csv
import math
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference.small import images_for, small
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from keras_vit.training import Recipe, compile_model
from keras_vit.training.callbacks import (
    LINES,
    POINTS,
    EvaluateAverage,
    Keeper,
    Progress,
    inner_optimizer,
)
from keras_vit.training.checkpoints import Checkpoints
from keras_vit.training.workdir import Workdir

# Each trains for a part of a schedule.
pytestmark = pytest.mark.filterwarnings("ignore:the learning rate's schedule is made for:UserWarning")

RECIPE = Recipe("sgd", 0.1, 8, 2, 4, ema=0.5)


@pytest.fixture
def workdir(tmp_path):
    workdir = Workdir(tmp_path / "run", {})
    workdir.make()
    return workdir


def made(**options):
    model = small(num_layers=1)
    compile_model(model, RECIPE, **options)
    model.run_eagerly = True  # for a few steps, making a graph takes longer
    model.optimizer.build(model.trainable_variables)
    return model


def fit(model, *callbacks, epochs=2, labels=None, **options):
    """Two steps of four images an epoch."""
    labels = np.arange(8) % 5 if labels is None else labels
    data = {"x": images_for(model, 8), "y": labels, "batch_size": 4, "epochs": epochs, "shuffle": False}
    return model.fit(**data, callbacks=[*callbacks], verbose=0, **options).history


def test_a_row_and_a_checkpoint_come_with_every_epoch(workdir):
    model, checkpoints = made(), Checkpoints(workdir.checkpoints)
    history = fit(model, Keeper(workdir, checkpoints, 0, 4, 4))
    rows = workdir.metrics()
    assert [row["step"] for row in rows] == [2, 4]
    assert [row["loss"] for row in rows] == history["loss"]
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.1, 0.1 * 0.75])
    for row in rows:
        assert row["images_per_second"] == pytest.approx(8 / row["seconds"])
    assert checkpoints.newest() == 4
    with (workdir.path / "metrics.csv").open() as file:
        assert list(csv.DictReader(file).fieldnames)[:4] == [
            "step",
            "seconds",
            "images_per_second",
            "learning_rate",
        ]


def test_rows_behind_the_checkpoint_that_a_run_goes_on_from_are_left_out(workdir):
    rows = [
        {"step": step, "learning_rate": 0.1, "loss": loss} for step, loss in ((2, 7.0), (4, 8.0), (6, 9.0))
    ]
    workdir.write_metrics(rows)
    model = made()
    model.optimizer._iterations.assign(2)
    fit(model, Keeper(workdir, Checkpoints(workdir.checkpoints), 2, 4, 4), epochs=1)
    assert [row["step"] for row in workdir.metrics()] == [2, 4]
    assert workdir.metrics()[0]["loss"] == 7.0 and workdir.metrics()[1]["loss"] != 8.0


def test_a_loss_that_is_no_number_stops_the_run_and_is_not_kept(workdir):
    model, checkpoints = made(), Checkpoints(workdir.checkpoints)
    keeper = Keeper(workdir, checkpoints, 0, 4, 4)
    fit(model, keeper, epochs=1)
    with pytest.raises(ValueError, match="loss is nan at step 3, .* lower base_lr"):
        fit(model, keeper, epochs=1, labels=np.full(8, 9))
    assert [row["step"] for row in workdir.metrics()] == [2]
    assert checkpoints.newest() == 2


class Breaks(keras.callbacks.Callback):
    """Sets weights to NaN after the last training step of an epoch, as an update of that step would."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.model.trainable_variables[0].assign(self.model.trainable_variables[0] * np.nan)


@pytest.mark.parametrize("validated", [True, False])
def test_an_update_to_nan_is_found_before_its_checkpoint_is_written(validated, workdir):
    model, checkpoints = made(), Checkpoints(workdir.checkpoints)
    keeper = Keeper(workdir, checkpoints, 0, 4, 4)
    fit(model, keeper, epochs=1)
    data = {"validation_data": (images_for(model, 8), np.arange(8) % 5)} if validated else {}
    named = "val_loss" if validated else "model/.*"
    with pytest.raises(ValueError, match=f"{named} is nan at step 4, so the run has diverged"):
        fit(model, keeper, Breaks(), epochs=1, **data)
    assert checkpoints.newest() == 2


def logged(path):
    """What TensorBoard reads: {run: {tag: [(step, value), …]}}."""
    runs = {}
    for folder in sorted(path.iterdir()):
        read = EventAccumulator(str(folder)).Reload()
        runs[folder.name] = {
            tag: [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in read.Tensors(tag)]
            for tag in read.Tags()["tensors"]
        }
    return runs


def test_loss_and_rate_are_recorded_by_step_and_evaluations_at_theirs(workdir):
    model, data = made(), (images_for(small(num_layers=1), 8), np.arange(8) % 5)
    keeper = Keeper(workdir, Checkpoints(workdir.checkpoints), 0, 4, 4)
    history = fit(model, keeper, validation_data=data)
    points, rows = workdir.steps(), workdir.metrics()
    assert [point["step"] for point in points] == [1, 2, 3, 4]
    losses = np.array([point["loss"] for point in points])
    np.testing.assert_allclose(losses.reshape(2, 2).mean(axis=1), history["loss"], rtol=1e-6)
    assert losses[0] != pytest.approx(losses[1])
    assert points[1]["learning_rate"] == rows[0]["learning_rate"]
    found = logged(workdir.path / "tensorboard")
    assert [*found] == ["train", "validation"]
    assert found["train"].keys() == {"loss", "learning_rate", "accuracy", "images_per_second"}
    assert found["validation"].keys() == {"loss", "accuracy"}
    np.testing.assert_allclose(found["train"]["loss"], [(p["step"], p["loss"]) for p in points])
    np.testing.assert_allclose(found["validation"]["loss"], [(r["step"], r["val_loss"]) for r in rows])
    assert [step for step, _ in found["train"]["accuracy"]] == [2, 4]


def test_a_resumed_run_neither_repeats_nor_loses_a_point(workdir):
    checkpoints = Checkpoints(workdir.checkpoints)
    fit(made(), Keeper(workdir, checkpoints, 0, 4, 4))
    whole = workdir.steps(), logged(workdir.path / "tensorboard")
    model = made()
    checkpoints.restore(model, 2)  # as if the last checkpoint had not been written
    fit(model, Keeper(workdir, checkpoints, 2, 4, 4), epochs=1)
    assert [point["step"] for point in workdir.steps()] == [1, 2, 3, 4]
    assert workdir.steps()[:2] == whole[0][:2]
    found = logged(workdir.path / "tensorboard")
    for tag in ("loss", "learning_rate", "accuracy"):
        assert [step for step, _ in found["train"][tag]] == [step for step, _ in whole[1]["train"][tag]]
    assert found["train"]["loss"][:2] == whole[1]["train"]["loss"][:2]


def test_a_run_that_has_no_steps_yet_takes_them_from_its_metrics(workdir):
    workdir.write_metrics([{"step": 2, "learning_rate": 0.1, "accuracy": 0.5, "loss": 7.0}])
    model = made()
    model.optimizer._iterations.assign(2)
    fit(model, Keeper(workdir, Checkpoints(workdir.checkpoints), 2, 4, 4), epochs=1)
    assert [point["step"] for point in workdir.steps()] == [2, 3, 4]
    assert logged(workdir.path / "tensorboard")["train"]["loss"][0] == (2, 7.0)


def test_a_long_run_has_some_hundred_points(workdir):
    keeper = Keeper(workdir, Checkpoints(workdir.checkpoints), 0, 4, 100_000)
    assert 100_000 / keeper.every == POINTS
    keeper.every = 2
    history = fit(made(), keeper)
    assert [point["step"] for point in workdir.steps()] == [2, 4]
    np.testing.assert_allclose([point["loss"] for point in workdir.steps()], history["loss"], rtol=1e-6)


def test_lines_tell_how_far_it_is_from_the_first_step_on(capsys):
    fit(made(), Progress(8, 0, 4, bar=False))
    lines = capsys.readouterr().out.splitlines()
    pattern = r"step {} of 8  accuracy \d\.\d{{4}}  loss \d+\.\d{{4}}"
    speed = r"  \d+ images/s  \d\d:\d\d left"
    assert re.fullmatch(pattern.format(1), lines[0])
    for step, line in enumerate(lines[1:], 2):
        assert re.fullmatch(pattern.format(step) + speed, line)
    assert len(lines) == 4


@pytest.mark.parametrize("total, per_epoch", [(300, 1), (300, 100), (50_000, 5)])
def test_lines_are_few_however_long_the_run_and_however_often_it_is_evaluated(total, per_epoch, capsys):
    progress = Progress(total, 0, 4, bar=False)
    progress.set_params({"steps": per_epoch})
    for step in range(total):
        progress.on_train_batch_end(step % per_epoch, {"loss": 1.0})
        if (step + 1) % per_epoch == 0:
            progress.on_epoch_end(step // per_epoch, {"loss": 1.0, "val_loss": 1.0})
    lines = capsys.readouterr().out.splitlines()
    assert LINES <= len(lines) <= 2 * LINES + 5
    assert lines[0].startswith("step 1 of") and "val_loss" in lines[-1] and f"step {total} of" in lines[-1]
    evaluations = sum("val_loss" in line for line in lines)
    assert abs(evaluations - min(total // per_epoch, LINES)) <= 1


def test_a_bar_counts_images_from_where_the_run_goes_on(capsys):
    model = made()
    model.optimizer._iterations.assign(4)
    progress = Progress(8, 4, 4, bar=True)
    assert (progress.bar.n, progress.bar.total) == (16, 32)
    fit(model, progress)
    captured = capsys.readouterr()
    assert progress.bar.n == 32
    assert "step 8 of 8" in captured.out and "images" in captured.err


class Weights(keras.callbacks.Callback):
    """The weights around each evaluation."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_test_begin(self, logs=None):
        self.seen.append([v.numpy() for v in self.model.trainable_variables])

    on_test_end = on_test_begin


def test_the_average_is_evaluated_and_the_weights_come_back_bit_for_bit():
    model, before, after = made(), Weights(), Weights()
    images, labels = images_for(model, 8), np.arange(8) % 5

    # `before` looks at each end ahead of EvaluateAverage, `after` behind it.
    callbacks = [before, EvaluateAverage(), after]
    averages = []
    model.evaluate(images, labels, verbose=0)
    history = fit(model, *callbacks, epochs=1, validation_data=(images, labels))
    (weights, judged_until), (judged, restored) = before.seen, after.seen
    for one, other in zip(weights, restored, strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(judged, judged_until, strict=True):
        np.testing.assert_array_equal(one, other)
    assert any((one != other).any() for one, other in zip(weights, judged))
    averages = [v.numpy() for v in inner_optimizer(model)._model_variables_moving_average]
    for one, other in zip(judged, averages, strict=True):
        np.testing.assert_array_equal(one, other)
    # Keras itself leaves the averages in the model when `fit` ends.
    again = model.evaluate(images, labels, verbose=0, return_dict=True)
    assert again["loss"] == pytest.approx(history["val_loss"][0], rel=1e-6)


def test_evaluating_in_between_does_not_change_the_training():
    found = []
    for callbacks, options in (([], {}), ([EvaluateAverage()], {"validation": True})):
        model = made()
        data = (images_for(model, 8), np.arange(8) % 5)
        fit(model, *callbacks, **({"validation_data": data} if options else {}))
        found.append([v.numpy() for v in (*model.weights, *model.optimizer.variables)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_optimizer_inside_the_loss_scale_is_found():
    model = small(num_layers=1, dtype="mixed_float16")
    compile_model(model, RECIPE)
    assert inner_optimizer(model).momentum == RECIPE.momentum
    assert math.isclose(float(inner_optimizer(made()).learning_rate), 0.0)
