"""Callbacks of a run: metrics, checkpoints, progress, evaluation of averaged weights."""

import contextlib
import math
import shutil
import sys
import time

import keras
import tensorflow as tf
from keras import ops
from tqdm import tqdm

from keras_vit.engine.preemption import stop
from keras_vit.training.building import finished_model
from keras_vit.training.checkpoints import check_finite, put_back, step_of

MAX_STEP_ROWS = 200  # of steps.csv
STEP_COLUMNS = ("step", "loss", "learning_rate")
MAX_LINES = 40  # of progress


class JoinCheckpoints(keras.callbacks.Callback):
    """Take part in the checkpoints of the first process on JAX, which gathers the parts of all.

    Args:
        checkpoints: The run's `Checkpoints`.
        stopping: A function that returns whether the step ends with a checkpoint and the exit of the process.
    """

    def __init__(self, checkpoints, stopping):
        super().__init__()
        self.checkpoints = checkpoints
        self.stopping = stopping

    def on_train_batch_end(self, batch, logs=None):
        # Keras evaluates after an epoch's last step.
        if batch + 1 < self.params["steps"] and self.stopping():
            self.save(logs)

    def on_epoch_end(self, epoch, logs=None):
        self.save(logs)

    def save(self, logs):
        step_of(self.model)  # which puts the values back
        self.checkpoints.gather(self.model)
        if self.stopping():
            stop("the first process writes a checkpoint")


class CheckpointCallback(JoinCheckpoints):
    """Write `metrics.csv`, `steps.csv`, TensorBoard's event files and checkpoints.

    `metrics.csv` gets a row with each checkpoint; its seconds are those of the steps, without evaluation.
    `steps.csv` has at most `MAX_STEP_ROWS` rows with the learning rate and the loss, averaged over the steps
    since the last row or checkpoint. Both are written just before the checkpoint. In a resumed run, rows of
    steps after its checkpoint are removed, and the event files are written again from both tables. If the
    loss, a validation score or a weight is not finite, the run stops with an error before it writes a
    checkpoint.

    Args:
        workdir: The run's `Workdir`.
        done: The step that the run starts or resumes at.
        batch_size: Images per step.
        total_steps: Steps of the run.
        checkpoints, stopping: As for `JoinCheckpoints`.
    """

    def __init__(self, workdir, checkpoints, done, batch_size, total_steps, stopping=bool):
        super().__init__(checkpoints, stopping)
        self.workdir = workdir
        self.batch_size = batch_size
        self.every = math.ceil(total_steps / MAX_STEP_ROWS)
        self.rows = [row for row in workdir.metrics() if row["step"] <= done]
        self.steps = [step for step in workdir.steps() if step["step"] <= done]

    def on_train_begin(self, logs=None):
        self.events = EventFiles(self.workdir.path / "tensorboard")
        for row in self.steps:
            self.events.add(row)
        for row in self.rows:
            self.events.add_metrics(row)

    def on_epoch_begin(self, epoch, logs=None):
        self.started, self.seconds = time.perf_counter(), None
        self.first = step_of(self.model)
        self.summed = self.first, 0.0  # the step of the last row, and the sum of the losses up to it

    def on_train_batch_end(self, batch, logs=None):
        step = self.first + batch + 1
        if step % self.every == 0:
            self._add_step(step, logs)
        if batch + 1 == self.params["steps"]:
            float(logs["loss"])  # It waits for the steps that the device has not computed yet.
            self.seconds = time.perf_counter() - self.started  # without the evaluation that follows
        super().on_train_batch_end(batch, logs)

    def _add_step(self, step, logs):
        check_finite(logs, step)
        last, before = self.summed
        total = float(logs["loss"]) * (step - self.first)  # Keras reports the epoch's mean.
        self.summed = step, total
        row = step, (total - before) / (step - last), self._learning_rate()
        self.steps.append(dict(zip(STEP_COLUMNS, row)))
        self.events.add(self.steps[-1])

    def save(self, logs):
        step, seconds = step_of(self.model), self.seconds or time.perf_counter() - self.started
        metrics = {name: float(value) for name, value in logs.items()}
        check_finite(metrics, step)
        row = {
            "step": step,
            "seconds": seconds,
            "images_per_second": (step - self.first) * self.batch_size / seconds,
            "learning_rate": self._learning_rate(),
        }
        self.rows.append(row | metrics)
        self.events.add_metrics(self.rows[-1])
        self.workdir.write_steps(self.steps)
        self.workdir.write_metrics(self.rows)
        self.checkpoints.save(self.model, metrics)
        if self.stopping():
            stop(f"the checkpoint of step {step} is written")

    def _learning_rate(self):
        put_back(self.model)
        optimizer = inner_optimizer(self.model)
        rate = optimizer._learning_rate
        # The step as a number, because an operation on a variable of several processes needs them all.
        return float(rate(optimizer.iterations.numpy()) if callable(rate) else rate.numpy())

    def on_train_end(self, logs=None):
        self.events.close()


class EventFiles:
    """TensorBoard's event files of a run, `train` and `validation`; existing ones are removed.

    Args:
        path: Their folder.
    """

    def __init__(self, path):
        shutil.rmtree(path, ignore_errors=True)
        self.writers = {
            name: tf.summary.create_file_writer(str(path / name)) for name in ("train", "validation")
        }

    def add(self, row, excluded=("step",)):
        """Add the values of a row of `steps.csv` or `metrics.csv`, except for the excluded columns."""
        for name in row.keys() - {*excluded}:
            writer = self.writers["validation" if name.startswith("val_") else "train"]
            with writer.as_default(step=int(row["step"])):
                tf.summary.scalar(name.removeprefix("val_"), row[name])

    def add_metrics(self, row):
        """Add a row of `metrics.csv` without loss and learning rate, which `steps.csv` has."""
        self.add(row, (*STEP_COLUMNS, "seconds"))
        for writer in self.writers.values():
            writer.flush()

    def close(self):
        for writer in self.writers.values():
            writer.close()


class Phases:
    """The seconds that a run spends on each part of its start.

    >>> phases = Phases()
    >>> phases.end("data")
    >>> str(phases)
    '0 s data'
    """

    def __init__(self):
        self.seconds, self.last = {}, time.perf_counter()

    def __str__(self):
        return ", ".join(f"{seconds:.0f} s {name}" for name, seconds in self.seconds.items())

    def end(self, name):
        now = time.perf_counter()
        self.seconds[name], self.last = now - self.last, now


class Progress(keras.callbacks.Callback):
    """A progress bar with images per second and the remaining time, or lines where there is no terminal.

    There is a line for the first step, for steps 10, 100 and 1000, and about `MAX_LINES` more, which have the
    scores of evaluations.

    Args:
        total_steps, done: Steps of the run, and the step that it starts or resumes at.
        batch_size: Images per step.
        bar: Whether to draw the bar.
        phases: The `Phases` before the first step, which are written with it.
    """

    def __init__(self, total_steps, done, batch_size, bar, phases=None):
        super().__init__()
        self.phases = phases
        self.total, self.done, self.batch_size = total_steps, done, batch_size
        self.every = math.ceil(total_steps / MAX_LINES)
        self.first = self.started = None  # from the end of the first step, which traces the graph
        self.shown = done  # the step of the last line
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
        if self.first is None:
            self.first, self.started = self.done, time.perf_counter()
            self._write_phases()
        # The line of an epoch's last step follows its evaluation.
        if self.bar.disable and batch + 1 < self.params["steps"]:
            self._write_if_due(logs)

    def on_epoch_end(self, epoch, logs=None):
        self._write_if_due(logs)

    def on_train_end(self, logs=None):
        self.bar.close()

    def _write_phases(self):
        """Write what the time until the run's first step was spent on, once."""
        if self.phases is not None and self.phases.seconds:
            self.phases.end("compilation and first batch")
            self.bar.write(f"first step after {sum(self.phases.seconds.values()):.0f} s: {self.phases}")
            self.phases.seconds.clear()

    def _write_if_due(self, logs):
        early_or_last = self.done in (self.first, 10, 100, 1000, self.total)
        if not early_or_last and self.done - self.shown < self.every:
            return
        self.shown = self.done
        scores = "".join(f"  {name} {float(value):.4f}" for name, value in logs.items())
        line = f"step {self.done} of {self.total}{scores}"
        if self.done > self.first:
            seconds = (time.perf_counter() - self.started) / (self.done - self.first)
            left = tqdm.format_interval(seconds * (self.total - self.done))
            line += f"  {self.batch_size / seconds:.0f} images/s  {left} left"
        self.bar.write(line)
        sys.stdout.flush()


class Validate(keras.callbacks.Callback):
    """Add scores of the model, finished as it is now, to the logs of epochs; the first of the callbacks.

    If the optimizer averages the weights, the scores are those of the averages.

    Args:
        scores: A function from the model of `finished_model` to a dict.
        epochs: The numbers of the epochs, from 1.
        devices: The run's devices; all processes compute the scores, each on one device.
    """

    def __init__(self, scores, epochs, devices):
        super().__init__()
        self.scores, self.epochs, self.devices = scores, epochs, devices
        self.finished = None  # It keeps its traced function from one evaluation to the next.

    def on_epoch_end(self, epoch, logs=None):
        if epoch + 1 in self.epochs:
            put_back(self.model)
            with averaged(self.model), self.devices.one_device():
                self.finished = finished_model(self.model, self.finished)
                scores = self.scores(self.finished)
            logs.update({f"val_{name}": value for name, value in scores.items()})


class EvaluateAverage(keras.callbacks.Callback):
    """Evaluate the moving average of the weights."""

    def on_test_begin(self, logs=None):
        self.swapped = contextlib.ExitStack()
        self.swapped.enter_context(averaged(self.model))

    def on_test_end(self, logs=None):
        self.swapped.close()


@contextlib.contextmanager
def averaged(model):
    """A context in which a model has the moving averages of its weights, if its optimizer computes them.

    Afterwards the weights are restored bit for bit. `keras.callbacks.SwapEMAWeights` swaps by adding and
    subtracting on TensorFlow, which rounds both.
    """
    optimizer, weights = inner_optimizer(model), []
    if optimizer.use_ema:
        weights = [(variable, ops.copy(variable)) for variable in optimizer._trainable_variables]
        for (variable, _), average in zip(weights, optimizer._model_variables_moving_average):
            variable.assign(ops.copy(average))  # JAX would reuse the memory of the average itself.
    try:
        yield
    finally:
        for variable, value in weights:
            variable.assign(value)


def inner_optimizer(model):
    """The model's optimizer, without the `LossScaleOptimizer` of mixed_float16."""
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)
