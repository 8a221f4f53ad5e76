"""The end of runs whose validations no longer improve."""

import shutil

import keras
import numpy as np
import pytest
from made.tables import by_table
from made.workers import arrays, end_of

from keras_vit.engine.strategy import make_devices
from keras_vit.reports.page import Report
from keras_vit.reports.run_report import add_run
from keras_vit.training.checkpoints import Checkpoints
from keras_vit.training.patience import StopEarly, without_improvement
from keras_vit.training.run import train

# With a high learning rate its third validation has a higher loss than its second.
DIVERGING = {"patience": 1, "base_lr": 0.3, "total_steps": 60, "warmup_steps": 0, "ema": None}


@by_table(
    "scores, largest, expected",
    [
        ([], True, 0),
        ([0.5], True, 0),
        ([0.5, 0.6], True, 0),
        ([0.6, 0.5, None, 0.6], True, 2),
        ([2.0, None, 1.0, 1.5, 0.5], False, 0),
        ([2.0, 0.5, None, 1.5, 0.5], False, 2),
    ],
)
def test_validations_are_counted_from_the_first_of_the_best(scores, largest, expected):
    rows = [{"loss": 0.0} if score is None else {"loss": 0.0, "val_score": score} for score in scores]
    assert without_improvement(rows, "val_score", largest) == expected


@pytest.mark.parametrize("before, epochs", [([], 5), ([0.4, 0.3], 1), ([0.2], 5)])
def test_fit_ends_after_a_validation_without_improvement(before, epochs, tmp_path, eager):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = [{"val_score": score} for score in before]
    stop = StopEarly(Checkpoints(tmp_path, "val_score", True), rows, 2, make_devices("single"))
    scores = [{"val_score": score} if score else {} for score in (0.3, None, 0.2, None, 0.1, 0.4, 0.5)]
    validate = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(scores[epoch]))
    history = model.fit(np.ones((1, 2)), np.ones((1, 1)), epochs=7, verbose=0, callbacks=[validate, stop])
    assert len(history.epoch) == epochs and stop.is_due


def config_of(labeled):
    return labeled("mae", **DIVERGING, accumulation_steps=1)


def test_a_run_ends_early_with_its_best_model(labeled, tmp_path, eager_once, capfd):
    workdir, record = train(config_of(labeled), tmp_path / "run", verbose=2)
    losses = {int(row["step"]): row["val_loss"] for row in workdir.metrics() if "val_loss" in row}
    best, last = [*losses][-2:]
    assert best == min(losses, key=losses.get) and last < 60
    assert (record["steps"], record["best_step"]) == (last, best)
    lines = capfd.readouterr().out.splitlines()
    assert f"stopped at step {last} of 60: 1 validations without a better loss" in lines
    assert f"the model is that of step {best}" in lines
    with np.load(workdir.checkpoints / f"step-{best:08d}" / "values.npz") as values:
        stored = [*values.values()]
    for array in arrays(keras.saving.load_model(workdir.pretrainer)).values():
        assert any(np.array_equal(array, value) for value in stored)
    report = Report()
    add_run(report, workdir.config, record)
    assert "after 1 validations without a better score" in report.page("A run")


@pytest.mark.slow
@pytest.mark.parametrize("is_lost", [False, True], ids=["after", "before"])
def test_a_resumed_run_ends_where_it_would_have_ended(is_lost, labeled, tmp_path):
    """Interrupted after the last step, or before it."""
    workdir, record = train(config_of(labeled), tmp_path / "run", verbose=0)
    expected = end_of(workdir.path)
    for name in ("result.json", "model.keras", "pretrainer.keras"):
        (workdir.path / name).unlink()
    if is_lost:
        shutil.rmtree(workdir.checkpoints / f"step-{record['steps']:08d}")
    _, again = train(config_of(labeled), workdir.path, verbose=0)
    assert (again["steps"], again["best_step"]) == (record["steps"], record["best_step"])
    np.testing.assert_equal(end_of(workdir.path), expected)
