"""What happens around the steps of a run: rows of metrics, checkpoints, progress, averaged weights."""

import math
import time

import keras
from tqdm import tqdm

from keras_vit.training.checkpoints import step_of


class Keeper(keras.callbacks.Callback):
    """At each checkpoint's step writes the row of `metrics.csv`, then the checkpoint.

    A run that is killed between the two has a row too many, which is left out when it goes on. Where the
    loss is no number the run stops with an error, and the checkpoint before stays the last.

    Args:
        workdir: The run's `Workdir`.
        checkpoints: Its `Checkpoints`.
        done: The step that the run goes on from.
        batch_size: Images in a step.
    """

    def __init__(self, workdir, checkpoints, done, batch_size):
        super().__init__()
        self.workdir = workdir
        self.checkpoints = checkpoints
        self.batch_size = batch_size
        self.rows = [row for row in workdir.metrics() if row["step"] <= done]

    def on_epoch_begin(self, epoch, logs=None):
        self.started = time.perf_counter()
        self.first = step_of(self.model)

    def on_epoch_end(self, epoch, logs=None):
        step, seconds = step_of(self.model), time.perf_counter() - self.started
        metrics = {name: float(value) for name, value in logs.items()}
        if not math.isfinite(metrics["loss"]):
            raise ValueError(
                f"the loss became {metrics['loss']} before step {step}; lower base_lr or look at the labels"
            )
        row = {
            "step": step,
            "seconds": seconds,
            "images_per_second": (step - self.first) * self.batch_size / seconds,
            "learning_rate": float(inner_optimizer(self.model).learning_rate),
        }
        self.rows.append(row | metrics)
        self.workdir.write_metrics(self.rows)
        self.checkpoints.save(self.model, metrics)


class Progress(keras.callbacks.Callback):
    """A bar with images a second and the time that is left; where there is no terminal, a line a checkpoint.

    Args:
        total_steps, done: Of the run.
        batch_size: Images in a step.
        bar: Whether there is a terminal to draw a bar in.
    """

    def __init__(self, total_steps, done, batch_size, bar):
        super().__init__()
        self.total, self.done, self.batch_size = total_steps, done, batch_size
        self.bar = tqdm(
            total=total_steps * batch_size,
            initial=done * batch_size,
            unit=" images",
            unit_scale=True,
            disable=not bar,
        )

    def on_train_begin(self, logs=None):
        self.started, self.first = time.perf_counter(), self.done

    def on_train_batch_end(self, batch, logs=None):
        if not self.bar.disable:
            self.bar.update(self.batch_size)

    def on_epoch_end(self, epoch, logs=None):
        self.done = step_of(self.model)
        passed = time.perf_counter() - self.started
        left = passed / (self.done - self.first) * (self.total - self.done)
        speed = (self.done - self.first) * self.batch_size / passed
        shown = "  ".join(f"{name} {value:.4f}" for name, value in logs.items())
        line = f"step {self.done} of {self.total}  {shown}  {speed:.0f} images/s"
        if self.bar.disable:
            print(f"{line}  {tqdm.format_interval(left)} left", flush=True)
        else:
            self.bar.write(line)

    def on_train_end(self, logs=None):
        self.bar.close()


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
