"""The definition of a task, and how predictions of whole batches are stored."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """What a model is trained for: its loss, and the metric that selects the best checkpoint.

    Args:
        name: A name for messages; of a `Task`, the one that recipes, files and the command line use.
        loss: A function of a `Recipe` that returns a Keras loss.
        metrics: A function of the number of outputs that returns a list of Keras metrics.
        validation_metric: The name of the loss or metric on the validation split that selects the best
            checkpoint.
        higher_is_better: Whether the best checkpoint has its highest value.
    """

    name: str
    loss: Callable
    metrics: Callable
    validation_metric: str
    higher_is_better: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(Objective):
    """An objective with labels: how they are read, scored and described.

    `predictions` below is what `predictions(outputs, labels)` returns for a batch, or `concatenate` for
    several. `names` is a name for each output.

    Args:
        noun: Singular and plural of what each output is about, such as ("class", "classes").
        has_class_ids: Whether a label is the index of a class; otherwise it is a number for each output.
        activation: The name of the function from logits to probabilities in `keras.ops` and `tf.nn`; None if
            outputs are not class scores.
        probabilities: That function for NumPy arrays, or None.
        decide: A function from outputs to labels, the most likely ones.
        predictions: A function from outputs (batch, outputs) and labels to what the functions below need.
        scores: A function from predictions to a dict of scores.
        primary_metric: The key of the most important score.
        primary_metric_title: Its name in a report.
        per_class: A function from predictions and names to a dict for each class, or None.
        errors: A function from predictions to an error for each sample.
        correct: A function from predictions to a bool for each sample.
        check_labels: A function of labels and the number of outputs; ValueError if they do not fit.
        parse_label: A function from a cell of a CSV table to a part of a label; ValueError if it is none.
        format_label: A function from a label and names to text.
        title: The task in words, such as "image classification".
        slug: The same on Kaggle.
        has_class_maps: Whether a label is a map of the classes of all pixels, and outputs are logits (batch,
            height, width, classes).
    """

    noun: tuple[str, str]
    has_class_ids: bool
    activation: str | None
    probabilities: Callable | None
    decide: Callable
    predictions: Callable
    scores: Callable
    primary_metric: str
    primary_metric_title: str
    per_class: Callable | None
    errors: Callable
    correct: Callable
    check_labels: Callable
    parse_label: Callable
    format_label: Callable
    title: str
    slug: str
    has_class_maps: bool = False

    @property
    def has_classes(self):
        """Whether outputs are class scores."""
        return self.activation is not None

    @property
    def output_name(self):
        """The name of an exported model's output."""
        return "logits" if self.has_classes else "values"

    def agreement(self, outputs, others):
        """The fraction of decisions that two arrays of outputs share; None if there are no classes."""
        return float(np.mean(self.decide(outputs) == self.decide(others))) if self.has_classes else None


@dataclasses.dataclass(frozen=True)
class Outputs:
    """Predictions of a task whose labels are a number for each output.

    Args:
        outputs, labels: float32 (samples, outputs).
    """

    outputs: np.ndarray
    labels: np.ndarray

    @classmethod
    def of(cls, outputs, labels):
        return cls(outputs.astype("float32"), labels.astype("float32"))


def concatenate(predictions: list[Any]):
    """Join the predictions of several batches."""
    first = predictions[0]
    columns = zip(*(vars(part).values() for part in predictions))
    return type(first)(
        *(np.concatenate(column) if isinstance(column[0], np.ndarray) else column[0] for column in columns)
    )


def check_rows(labels, num_outputs):
    """Raise ValueError unless each label has a number for each output."""
    if labels.shape[1:] != (num_outputs,):
        raise ValueError(
            f"expected labels of {num_outputs} numbers, as many as the model's outputs; got labels of shape "
            f"{labels.shape[1:]} (labels that are class indices are of the task 'single_label')"
        )


def checked_names(names, count):
    """A list of `count` names; indices where `names` is None."""
    names = list(names) if names else [str(i) for i in range(count)]
    if len(names) != count:
        raise ValueError(f"expected {count} class names; got {len(names)}")
    return names


def check_shapes(names, outputs, labels):
    """Raise ValueError unless two arrays have one shape (samples, outputs), with a sample or more."""
    if outputs.shape != labels.shape or outputs.ndim != 2 or not len(outputs):
        raise ValueError(
            f"expected {names} of one shape (samples, outputs), with at least one sample; got "
            f"{outputs.shape} and {labels.shape}"
        )


def parse_number(text, accepts, expected):
    """The number in a cell of a table; ValueError with what was expected if it is not accepted."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not accepts(number):
        raise ValueError(f"expected {expected}; got {text!r}")
    return number
