"""Regression: an image has one or several numbers."""

import math

import keras
import numpy as np

from keras_vit.tasks.losses import SquaredError
from keras_vit.tasks.task import Outputs, Task, check_rows, check_shapes, parse_number


def regression_scores(outputs, targets):
    """The scores of a regression.

    Args:
        outputs, targets: (samples, outputs).

    Returns:
        dict of `samples`; `mse` and `mae`, the mean squared and absolute error over samples and outputs;
        and `r2`, the coefficient of determination, averaged over outputs (None if an output has the same
        target in all samples).

    Raises:
        ValueError: if there are no samples or the shapes differ.

    Example:
        >>> regression_scores([[1.0], [2.0], [3.0]], [[1.0], [2.0], [4.0]])["mae"]
        0.3333333333333333
    """
    from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

    outputs, targets = np.asarray(outputs, "float64"), np.asarray(targets, "float64")
    check_shapes("outputs and targets", outputs, targets)
    varies = (targets != targets[0]).any(axis=0).all()
    return {
        "samples": len(targets),
        "mse": float(mean_squared_error(targets, outputs)),
        "mae": float(mean_absolute_error(targets, outputs)),
        "r2": float(r2_score(targets, outputs)) if varies else None,
    }


REGRESSION = Task(
    name="regression",
    noun=("target", "targets"),
    loss=lambda recipe: SquaredError(),
    metrics=lambda outputs: [keras.metrics.MeanAbsoluteError(name="absolute_error")],
    validation_metric="absolute_error",
    higher_is_better=False,
    has_class_ids=False,
    activation=None,
    probabilities=None,
    decide=np.asarray,
    predictions=Outputs.of,
    scores=lambda predictions: regression_scores(predictions.outputs, predictions.labels),
    primary_metric="mae",
    primary_metric_title="mean absolute error",
    per_class=None,
    errors=lambda predictions: np.abs(predictions.outputs - predictions.labels).mean(axis=1),
    # No number is predicted exactly: the samples with the smallest errors count as the best.
    correct=lambda predictions: np.ones(len(predictions.outputs), bool),
    check_labels=check_rows,
    parse_label=lambda text: parse_number(text, math.isfinite, "a number"),
    format_label=lambda label, names: ", ".join(f"{name} {x:.4g}" for name, x in zip(names, label)),
    title="regression",
    slug="regression",
)
