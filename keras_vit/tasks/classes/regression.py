"""Regression: an image has one or several numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_vit.labels import label_kind
from keras_vit.lazy import LazyModule
from keras_vit.models.classifying import check_finite
from keras_vit.tasks.task import LabelTask, check_shapes

keras, losses = LazyModule("keras"), LazyModule("keras_vit.losses")


def regression_scores(outputs: np.ndarray, targets: np.ndarray) -> dict[str, Any]:
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


class Regression(LabelTask):
    """Regression of one or several numbers."""

    label = label_kind("regression")
    validation_metric = "absolute_error"
    higher_is_better = False
    primary_metric = "mae"
    primary_metric_title = "mean absolute error"
    title = slug = "regression"

    def loss(self, recipe, model):
        return losses.SquaredError()

    def metrics(self, model):
        return [keras.metrics.MeanAbsoluteError(name="absolute_error")]

    def rows(self, model, paths, inputs, top):
        return [{"values": row.tolist()} for row in check_finite(model.predict_on_batch(inputs))]

    def value_names(self, model):
        return model.class_names or [f"value {i}" for i in range(model.num_classes)]

    def scores(self, predictions):
        return regression_scores(predictions.outputs, predictions.labels)

    def errors(self, predictions):
        return np.abs(predictions.outputs - predictions.labels).mean(axis=1)

    def correct(self, predictions):
        # No number is predicted exactly: the samples with the smallest errors count as the best.
        return np.ones(len(predictions.outputs), bool)


TASK = Regression()
