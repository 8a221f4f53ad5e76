"""What happens around the steps of a run: metrics, checkpoints, progress, averaged weights."""

import math
import shutil
import sys
import time

import keras
import tensorflow as tf
from tqdm import tqdm

from keras_vit.training.checkpoints import check_finite, step_of
from keras_vit.training.preemption import stop

POINTS = 200  # rows of steps.csv, at most
POINT = ("step", "loss", "learning_rate")  # its columns
LINES = 20  # lines of progress, at most, and as many of evaluations


class Keeper(keras.callbacks.Callback):
    """Records a run: `metrics.csv`, `steps.csv`, TensorBoard's event files and checkpoints.

    `metrics.csv` has a row for each checkpoint. `steps.csv` has at most `POINTS` rows with the learning rate
    and the loss, averaged over the steps since the last row or checkpoint. Both are written just before the
    checkpoint. When a run is resumed, rows of later steps than its checkpoint's are removed, and the event
    files are written again from both tables. If the loss, a validation score or a weight is not finite, the
    run stops with an error, and the checkpoint before stays the last.

    Args:
        workdir: The run's `Workdir`.
        checkpoints: Its `Checkpoints`.
        done: The step that the run goes on from.
        batch_size: Images in a step.
        total_steps: Of the run.
        sigterm: What `sigterm_noted` yields. Once there is a time in it, the next step ends with a checkpoint
            and the process.
    """

    def __init__(self, workdir, checkpoints, done, batch_size, total_steps, sigterm=()):
        super().__init__()
        self.workdir = workdir
        self.checkpoints = checkpoints
        self.batch_size = batch_size
        self.sigterm = sigterm
        self.every = math.ceil(total_steps / POINTS)
        self.rows = [row for row in workdir.metrics() if row["step"] <= done]
        # A run that version 0.1 has begun has no steps.csv.
        points = workdir.steps() or [{name: row[name] for name in POINT} for row in self.rows]
        self.points = [point for point in points if point["step"] <= done]

    def on_train_begin(self, logs=None):
        self.board = EventFiles(self.workdir.path / "tensorboard")
        for point in self.points:
            self.board.add_point(point)
        for row in self.rows:
            self.board.add_row(row)

    def on_epoch_begin(self, epoch, logs=None):
        self.started = time.perf_counter()
        self.first = step_of(self.model)
        self.summed = self.first, 0.0  # the step of the last row, and the sum of the losses up to it

    def on_train_batch_end(self, batch, logs=None):
        step = self.first + batch + 1
        if step % self.every == 0:
            self._add_point(step, logs)
        if self.sigterm and batch + 1 < self.params["steps"]:  # the last one is evaluated first
            self._keep(logs)

    def on_epoch_end(self, epoch, logs=None):
        self._keep(logs)

    def _add_point(self, step, logs):
        check_finite(logs, step)
        last, before = self.summed
        total = float(logs["loss"]) * (step - self.first)  # Keras reports the mean since the epoch began
        self.summed = step, total
        rate = float(inner_optimizer(self.model).learning_rate)
        self.points.append(dict(zip(POINT, (step, (total - before) / (step - last), rate))))
        self.board.add_point(self.points[-1])

    def _keep(self, logs):
        step, seconds = step_of(self.model), time.perf_counter() - self.started
        metrics = {name: float(value) for name, value in logs.items()}
        check_finite(metrics, step)
        row = {
            "step": step,
            "seconds": seconds,
            "images_per_second": (step - self.first) * self.batch_size / seconds,
            "learning_rate": float(inner_optimizer(self.model).learning_rate),
        }
        self.rows.append(row | metrics)
        self.board.add_row(self.rows[-1])
        self.workdir.write_steps(self.points)
        self.workdir.write_metrics(self.rows)
        self.checkpoints.save(self.model, metrics)
        if self.sigterm:
            stop(f"the checkpoint of step {step} is written")

    def on_train_end(self, logs=None):
        self.board.close()


class EventFiles:
    """TensorBoard's event files of a run, by training step; those that were there are removed.

    Args:
        path: The folder; the runs in it are `train` and `validation`.
    """

    def __init__(self, path):
        shutil.rmtree(path, ignore_errors=True)
        self.writers = {
            name: tf.summary.create_file_writer(str(path / name)) for name in ("train", "validation")
        }

    def add_point(self, point):
        """A row of `steps.csv`."""
        self._add("train", point, point["step"])

    def add_row(self, row):
        """A row of `metrics.csv`, but for the numbers of which `steps.csv` has more."""
        left_out = ("step", "seconds", "learning_rate", "loss")
        scores = {name: value for name, value in row.items() if name not in left_out}
        found = {name.removeprefix("val_"): x for name, x in scores.items() if name.startswith("val_")}
        self._add(
            "train", {name: x for name, x in scores.items() if not name.startswith("val_")}, row["step"]
        )
        self._add("validation", found, row["step"])
        for writer in self.writers.values():
            writer.flush()

    def close(self):
        for writer in self.writers.values():
            writer.close()

    def _add(self, run, values, step):
        with self.writers[run].as_default(step=int(step)):
            for name, value in values.items():
                if name != "step":
                    tf.summary.scalar(name, value)


class Progress(keras.callbacks.Callback):
    """A bar with images a second and the time that is left; where there is no terminal, lines.

    There is a line for the first step, for steps 10, 100 and so on, and for evaluations: at most `LINES` of
    these, and as many in between.

    Args:
        total_steps, done: Of the run.
        batch_size: Images in a step.
        bar: Whether there is a terminal to draw a bar in.
    """

    def __init__(self, total_steps, done, batch_size, bar):
        super().__init__()
        self.total, self.done, self.batch_size = total_steps, done, batch_size
        self.every = math.ceil(total_steps / LINES)
        self.first = self.started = None  # the first step's end: tracing the graph is not part of the speed
        self.shown = -math.inf  # the last checkpoint that has a line
        self.bar = tqdm(
            total=total_steps * batch_size,
            initial=done * batch_size,
            unit=" images",
            unit_scale=True,
            disable=not bar,
        )

    def on_train_batch_end(self, batch, logs=None):
        self.done += 1
        self.bar.update(self.batch_size)
        first = self.first is None
        if first:
            self.first, self.started = self.done, time.perf_counter()
        due = first or self.done % self.every == 0 or self.done in (10, 100, 1000, 10_000)
        if due and self.bar.disable and batch + 1 < self.params["steps"]:  # else on_epoch_end has the line
            self._write(logs)

    def on_epoch_end(self, epoch, logs=None):
        if self.done - self.shown < self.every and self.done < self.total:
            return
        self.shown = self.done
        self._write(logs)

    def on_train_end(self, logs=None):
        self.bar.close()

    def _write(self, logs):
        scores = "".join(f"  {name} {float(value):.4f}" for name, value in logs.items())
        line = f"step {self.done} of {self.total}{scores}"
        if self.done > self.first:
            seconds = (time.perf_counter() - self.started) / (self.done - self.first)
            left = tqdm.format_interval(seconds * (self.total - self.done))
            line += f"  {self.batch_size / seconds:.0f} images/s  {left} left"
        self.bar.write(line)
        sys.stdout.flush()


class EvaluateAverage(keras.callbacks.Callback):
    """Evaluate the moving average of the weights, and train on with the weights themselves, unchanged.

    `keras.callbacks.SwapEMAWeights` swaps by adding and subtracting on TensorFlow, which rounds both.
    """

    def on_test_begin(self, logs=None):
        optimizer = inner_optimizer(self.model)
        trained = optimizer._trainable_variables
        self.kept = [(variable, variable.numpy()) for variable in trained]
        for variable, average in zip(trained, optimizer._model_variables_moving_average):
            variable.assign(average.numpy())

    def on_test_end(self, logs=None):
        for variable, value in self.kept:
            variable.assign(value)
        self.kept = []


def inner_optimizer(model):
    """The model's optimizer, without what scales the loss of mixed_float16 around it."""
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)
