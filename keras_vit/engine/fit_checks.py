"""Checks of `compile` and `fit` for mistakes that would make training fail silently."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.losses import SigmoidCrossEntropy, SoftmaxCrossEntropy, SquaredError
from keras_vit.types import Tensor

# Keras's losses that by default expect probabilities, as functions and as classes.
CROSSENTROPIES = {
    keras.losses.binary_crossentropy: keras.losses.BinaryCrossentropy,
    keras.losses.binary_focal_crossentropy: keras.losses.BinaryFocalCrossentropy,
    keras.losses.categorical_crossentropy: keras.losses.CategoricalCrossentropy,
    keras.losses.categorical_focal_crossentropy: keras.losses.CategoricalFocalCrossentropy,
    keras.losses.sparse_categorical_crossentropy: keras.losses.SparseCategoricalCrossentropy,
}
# Losses of class indices, or also of them.
INDEX_LOSSES = (SoftmaxCrossEntropy, SigmoidCrossEntropy, keras.losses.SparseCategoricalCrossentropy)
RATE_CALLBACKS = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)
TOLERANCE = 0.1  # relative difference between the lengths of `fit` and of the schedule


def warn_of_probabilities(loss: Any) -> None:
    """Warn of losses that expect probabilities, for a model that outputs logits.

    >>> warn_of_probabilities(keras.losses.BinaryCrossentropy(from_logits=True))
    """
    for one in map(keras.losses.get, keras.tree.flatten(loss)):
        for function, cls in CROSSENTROPIES.items():
            if one is function or isinstance(one, cls) and not one.get_config()["from_logits"]:
                warnings.warn(
                    f"the model outputs logits, but this loss expects probabilities, so that training fails "
                    f"silently; use keras.losses.{cls.__name__}(from_logits=True)",
                    stacklevel=3,
                )


def check_array(model: keras.Model, images: Any) -> None:
    """Raise ValueError for an array that is no input of a model, such as channels-first images.

    It also refuses floats for an input of uint8, to which Keras would round them.

    Keras checks shapes while it traces, and no longer once a model has had inputs of several sizes.

    Args:
        model: A model with one input or several.
        images: What `fit`, `evaluate` or `predict` got; only an array for a single input is checked.

    >>> check_array(model, np.zeros((2, 32, 32, 3)))
    """
    check_is_array(images)
    inputs: Sequence[keras.KerasTensor] = getattr(model, "inputs", None) or ()
    if len(inputs) != 1 or not isinstance(images, np.ndarray):
        return
    shape = inputs[0].shape
    if len(images.shape) != len(shape) or not all(
        size and size == (expected or size) for size, expected in zip(images.shape, shape)
    ):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"expected an array of the shape ({wanted}), not empty; got {images.shape}")
    check_dtype(inputs[0], images)


def check_is_array(images: Any) -> None:
    """Raise ValueError for the path of an image, of which Keras says no more than that it is no array.

    >>> check_is_array("photo.jpg")
    Traceback (most recent call last):
    ValueError: expected an array, as from model.preprocessing(['photo.jpg']); got 'photo.jpg'
    """
    first = images[0] if isinstance(images, list) and images else images
    if isinstance(first, str | os.PathLike):
        shown = repr(os.fspath(first))
        raise ValueError(f"expected an array, as from model.preprocessing([{shown}]); got {shown}")


def check_dtype(expected: Tensor, images: Tensor) -> None:
    """Raise ValueError for an input of uint8 and images of another dtype.

    Args:
        expected, images: Arrays or tensors, also symbolic ones.

    >>> check_dtype(keras.KerasTensor((None, 8), "uint8"), np.zeros((2, 8)))
    Traceback (most recent call last):
    ValueError: expected uint8 images, or value_range=(0, 1) in with_preprocessing for floats; got float64
    """
    dtype = keras.backend.standardize_dtype(images.dtype)
    if keras.backend.standardize_dtype(expected.dtype) == "uint8" != dtype:
        raise ValueError(
            f"expected uint8 images, or value_range=(0, 1) in with_preprocessing for floats; got {dtype}"
        )


def check_class_indices(loss: Any, labels: Any, classes: int) -> None:
    """Raise ValueError for class indices that a model does not have, whose loss would be NaN.

    Args:
        loss: The compiled model's.
        labels: The labels of `fit`; only an array of ints is checked.
        classes: The class count of the model.

    >>> check_class_indices(SoftmaxCrossEntropy(), np.array([0, 9]), 10)
    """
    loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    is_of_indices = isinstance(loss, INDEX_LOSSES) or loss is keras.losses.sparse_categorical_crossentropy
    if not is_of_indices or not isinstance(labels, np.ndarray) or labels.dtype.kind not in "iu":
        return
    # Rows with a number for each class are no indices, also of one class.
    is_indices = 0 < labels.size == len(labels) and labels.shape[1:] != (classes,)
    if is_indices and not 0 <= labels.min() <= labels.max() < classes:
        raise ValueError(
            f"expected labels from 0 to {classes - 1}, for a model of {classes} classes; got labels from "
            f"{labels.min()} to {labels.max()}"
        )


def check_class_weight(loss: Any, class_weight: Any, outputs: int) -> None:
    """Raise ValueError for weights of classes where labels are rows of numbers.

    Keras would take the index of a row's largest number for its class.

    Args:
        loss: The compiled model's.
        class_weight: That of `fit`, or None.
        outputs: The number of the model's outputs.

    >>> check_class_weight(SoftmaxCrossEntropy(), {0: 2.0}, 10)
    """
    is_multi_label = isinstance(loss, SigmoidCrossEntropy) and not loss.indices and outputs > 1
    if class_weight is not None and (is_multi_label or isinstance(loss, SquaredError)):
        raise ValueError(
            "class_weight needs a class for each image; got labels with a number for each output"
        )


class WarnOfNaN(keras.callbacks.Callback):
    """Warn once if the loss is NaN.

    The loss of the logs is the epoch's mean, which remains NaN until the epoch ends. So it is read there and
    after 1, 2, 4, 8 … steps: a GPU waits for each reading.
    """

    is_nan = False
    async_safe = True  # Keras may call it in another thread: on JAX a step then need not wait for its loss.

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.next = 1

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if batch + 1 >= self.next:
            self.next = 2 * (batch + 1)
            self._warn(f"by step {batch + 1} of this epoch", logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._warn("at the end of this epoch", logs)

    def _warn(self, when: str, logs: Any) -> None:
        if not self.is_nan and math.isnan(logs.get("loss", 0.0)):
            self.is_nan = True
            warnings.warn(
                f"the loss is NaN {when}: check that all labels are classes of the model, counted from 0, "
                "that images and weights are finite, and the learning rate",
                stacklevel=2,
            )


def check_callbacks(
    optimizer: keras.optimizers.Optimizer, callbacks: Iterable[keras.callbacks.Callback]
) -> None:
    """Raise ValueError for callbacks that set a learning rate for which there is a schedule.

    Args:
        optimizer: The compiled model's.
        callbacks: A list of Keras callbacks.

    >>> check_callbacks(keras.optimizers.SGD(0.1), [keras.callbacks.ReduceLROnPlateau()])
    """
    scaled = getattr(optimizer, "inner_optimizer", optimizer)  # of mixed_float16
    rate = getattr(scaled, "_learning_rate", None)
    if not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return
    for callback in callbacks:
        if isinstance(callback, RATE_CALLBACKS):
            raise ValueError(
                f"expected a number as learning_rate for {type(callback).__name__}; got the schedule "
                f"{type(rate).__name__}: remove one of them"
            )


class ScheduleLength(keras.callbacks.Callback):
    """Warn if `fit` ends far from the end of the learning rate's schedule.

    The warning comes before the first step, or at the end if Keras does not know the steps per epoch.

    Args:
        total_steps: Steps of the schedule.
    """

    def __init__(self, total_steps: int) -> None:
        super().__init__()
        self.total_steps = total_steps
        self.checked = False

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if not self.checked and self.params["steps"]:
            self._check(self._step() + (self.params["epochs"] - epoch) * self.params["steps"])

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if not self.checked and not self.model.stop_training:
            self._check(self._step())

    def _step(self) -> int:
        return int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))

    def _check(self, end: int) -> None:
        self.checked = True
        if abs(end - self.total_steps) > TOLERANCE * self.total_steps:
            effect = (
                "afterwards the learning rate is about 0"
                if end > self.total_steps
                else "the learning rate has not decayed by then, which is right only if another `fit` follows"
            )
            warnings.warn(
                f"the learning rate's schedule has total_steps={self.total_steps}, but `fit` ends at "
                f"step {end}: {effect}; compile with total_steps={end}",
                stacklevel=2,
            )
