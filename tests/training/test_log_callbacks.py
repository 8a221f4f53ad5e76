"""Callbacks by name for logs of experiments."""

import csv
import pathlib
import re
import sys
import types

import keras
import numpy as np
import pytest
from made.runs import changed
from made.tables import by_table

from keras_vit.training.log_callbacks import LogCallbacks, find_callback
from keras_vit.training.run import train

LOGGER = "keras.callbacks.CSVLogger"


class Recorder(keras.callbacks.Callback):
    """What it is called with."""

    def __init__(self, events=None, **options):
        super().__init__()
        self.events, self.options = [] if events is None else events, options

    def on_train_begin(self, logs=None):
        self.events.append("begin")

    def on_epoch_end(self, epoch, logs=None):
        self.events.append((epoch, float(self.model.optimizer.learning_rate)))

    def on_train_end(self, logs=None):
        self.events.append("end")


@pytest.fixture
def module(monkeypatch):
    """A module of callbacks, which is installed."""
    module = types.ModuleType("recording")
    module.Recorder = Recorder
    module.recorder = lambda: Recorder(source="a function")
    module.broken = lambda: 1 / 0
    module.number = lambda: 3
    monkeypatch.setitem(sys.modules, "recording", module)
    return module


@by_table(
    "text, options",
    [
        ("recording.Recorder", {}),
        ("recording.Recorder:project=cats and dogs", {"project": "cats and dogs"}),
        ("recording.Recorder:path=/a.csv,size=3,on=True", {"path": "/a.csv", "size": 3, "on": True}),
        ("recording.Recorder:pair=(1, 2),note=a,b", {"pair": (1, 2), "note": "a,b"}),
        ("recording.Recorder:url=http://host:80/a?b=1", {"url": "http://host:80/a?b=1"}),
        ("recording.recorder", {"source": "a function"}),
    ],
)
def test_a_name_is_a_class_or_a_function_with_arguments(text, options, module):
    assert find_callback(text)("run", {}).options == options


@by_table(
    "text, message",
    [
        ("CSVLogger", "^expected a callback as MODULE.NAME or .*; got 'CSVLogger'$"),
        (f"{LOGGER}:log.csv", "^expected a callback as MODULE.NAME or "),
        (None, "^expected a callback as .*; got None$"),
        ("no_such_log.keras.Logger", "^no_such_log.keras.Logger needs .*: pip install no_such_log$"),
        ("keras.callback.CSVLogger", "^keras.callback.CSVLogger: no module keras.callback$"),
        ("keras.callbacks.CsvLoger", r"^keras.callbacks has no CsvLoger \(did you mean 'CSVLogger'\?\)$"),
        ("keras.layers.Dense:units=3", "^expected a Keras callback, or a function .*; got Dense$"),
        (f"{LOGGER}:name=a.csv", r"^keras.callbacks.CSVLogger\(filename, .*\): missing a required argument"),
        ("keras.callbacks.EarlyStopping", "^EarlyStopping does not fit a run: the recipe's patience"),
        ("keras.callbacks.ReduceLROnPlateau", "^ReduceLROnPlateau does not fit a run: the learning rate"),
        ("recording.broken", "^recording.broken failed: division by zero$"),
        ("recording.number", "^expected a Keras callback, .*; got int$"),
    ],
)
def test_what_is_no_callback_is_refused_in_one_line(text, message, module):
    with pytest.raises(ValueError, match=message):
        find_callback(text)("run", {})


def test_a_package_whose_own_import_fails_is_named(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import no_such_part")
    (tmp_path / "failing.py").write_text("raise OSError('no library')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="^half_installed.Log needs .*: pip install no_such_part$"):
        find_callback("half_installed.Log")
    with pytest.raises(ValueError, match=r"^failing.Log: failing cannot be imported \(no library\)$"):
        find_callback("failing.Log")


def test_a_run_of_wandb_is_begun_once_before_its_callback(monkeypatch):
    begun = []
    wandb = types.ModuleType("wandb")
    wandb.run, wandb.Logger = None, Recorder

    def init(**options):
        wandb.run = options
        begun.append(options)

    wandb.init = init
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    for _ in range(2):
        find_callback("wandb.Logger")("flowers", {"dataset": "digits"})
    assert begun == [{"name": "flowers", "config": {"dataset": "digits"}}]


def test_several_calls_of_fit_are_one_training(eager):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    recorder = Recorder()
    logs = LogCallbacks([recorder])
    for epoch in (0, 1):
        data = np.ones((1, 2)), np.ones((1, 1))
        model.fit(*data, initial_epoch=epoch, epochs=epoch + 1, verbose=0, callbacks=[logs])
    logs.close()
    assert recorder.events == ["begin", (0, 0.5), (1, 0.5), "end"]


def test_a_run_calls_the_callbacks_that_it_is_given(finished, tmp_path, eager_once):
    """With 14 steps and checkpoints every 4, the last part is shorter, and a call of `fit` of its own."""
    events = []
    changes = {"eval_every": 4, "checkpoint_every": 4, "total_steps": 6, "warmup_steps": 0, "ema": None}
    config = changed(finished[0], **changes, accumulation_steps=1)
    log = [f"{LOGGER}:filename={tmp_path / 'log.csv'}", Recorder(events)]
    workdir, _ = train(config, tmp_path / "run", verbose=0, log=log)
    assert [events[0], events[-1]] == ["begin", "end"]
    rates = [row["learning_rate"] for row in workdir.metrics()]
    assert events[1:-1] == [(epoch, pytest.approx(rate)) for epoch, rate in enumerate(rates)]
    rows = [*csv.DictReader((tmp_path / "log.csv").read_text().splitlines())]
    assert [float(row["val_loss"]) for row in rows] == [row["val_loss"] for row in workdir.metrics()]


@pytest.mark.parametrize("page", ["cli.md", "training.md"])
def test_the_loggers_of_the_manual_keep_the_rows_of_a_resumed_run(page):
    text = (pathlib.Path(__file__).parents[2] / "docs" / page).read_text()
    names = re.findall(r"keras\.callbacks\.CSVLogger:[\w.,=]+", text)
    assert len(names) == 2 and all(find_callback(name)("run", {}).append for name in names)


def test_a_missing_package_is_refused_before_there_is_a_folder(finished, tmp_path):
    with pytest.raises(ValueError, match="pip install no_such_log$"):
        train(finished[0], tmp_path / "run", verbose=0, log=["no_such_log.Logger"])
    assert not (tmp_path / "run").exists()
