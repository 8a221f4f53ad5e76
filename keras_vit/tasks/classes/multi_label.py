"""Multi-label classification: an image has any number of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.labels import label_kind
from keras_vit.lazy import LazyModule
from keras_vit.tasks.task import LabelTask, check_shapes, names_or_indices

losses, metrics = LazyModule("keras_vit.losses"), LazyModule("keras_vit.metrics")


def multi_label_scores(logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """The scores of a model that decides for each class separately.

    Args:
        logits: (samples, classes); a class is predicted where its logit is above 0, a probability above 0.5.
        labels: (samples, classes), of 0 and 1.

    Returns:
        dict of `samples`; `mean_average_precision` over the classes that have samples (None if no class has);
        `micro_f1`, over all decisions, and `macro_f1`, the mean over classes (0 for a class without samples
        that is never predicted); and `loss` (sigmoid cross-entropy in nats, summed over classes, averaged
        over samples).

    Raises:
        ValueError: if there are no samples, the shapes differ, or a label is not 0 or 1.

    Example:
        >>> multi_label_scores([[9.0, -9.0], [9.0, 9.0]], [[1, 0], [1, 0]])["micro_f1"]
        0.8

    Source: `sklearn.metrics`; the loss is `sigmoid_xent` of `big_vision`.
    """
    classes = multi_label_classes(logits, labels)
    logits, labels = np.asarray(logits, "float64"), np.asarray(labels, "float64")
    precisions = [row["average_precision"] for row in classes if row["samples"]]
    cross_entropy = np.maximum(logits, 0) - logits * labels + np.log1p(np.exp(-np.abs(logits)))
    right, samples, predicted = (
        np.array([row[name] for row in classes]) for name in ("right", "samples", "predicted")
    )
    return {
        "samples": len(labels),
        "mean_average_precision": float(np.mean(precisions)) if precisions else None,
        "micro_f1": float(2 * right.sum() / max(samples.sum() + predicted.sum(), 1)),
        "macro_f1": float(np.mean(2 * right / np.maximum(samples + predicted, 1))),
        "loss": float(cross_entropy.sum(axis=1).mean()),
    }


def multi_label_classes(
    logits: np.ndarray, labels: np.ndarray, class_names: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """The scores of each class.

    Args:
        logits, labels: As for `multi_label_scores`.
        class_names: One name per class; None for indices.

    Returns:
        A dict for each class: `name`; the counts of `samples` that have it, of those among them for which
        it is predicted (`right`), and of all for which it is `predicted`; `recall` and `precision` (`right`
        as a fraction of either) and `average_precision`. None where a value is undefined.

    Raises:
        ValueError: as `multi_label_scores`, or if the number of names is not that of classes.

    Example:
        >>> row, _ = multi_label_classes([[9.0, -9.0], [9.0, 9.0]], [[1, 0], [0, 0]], ["cat", "dog"])
        >>> row["recall"], row["precision"]
        (1.0, 0.5)
    """
    from sklearn.metrics import average_precision_score

    logits, labels = np.asarray(logits), np.asarray(labels)
    check_shapes("logits and labels", logits, labels)
    label_kind("multi_label").check(labels, logits.shape[1])
    rows = []
    for name, logit, label in zip(names_or_indices(class_names, labels.shape[1]), logits.T, labels.T == 1):
        samples, predicted, right = (int(each.sum()) for each in (label, logit > 0, label & (logit > 0)))
        row = {"name": name, "samples": samples, "right": right, "predicted": predicted}
        row["recall"] = right / samples if samples else None
        row["precision"] = right / predicted if predicted else None
        row["average_precision"] = float(average_precision_score(label, logit)) if samples else None
        rows.append(row)
    return rows


class MultiLabel(LabelTask):
    """Classification into any number of classes."""

    label = label_kind("multi_label")
    recipe_fields = (*LabelTask.recipe_fields, "loss")
    validation_metric = "average_precision"
    primary_metric = "mean_average_precision"
    class_score = "recall"
    primary_metric_title = "mean average precision"
    title = "multi-label image classification"
    slug = "multi-label-classification"

    def loss(self, recipe, model):
        return losses.SigmoidCrossEntropy(indices=False)

    def metrics(self, model):
        return [metrics.MeanAveragePrecision(model.output_shape[-1])]

    def scores(self, predictions):
        return multi_label_scores(predictions.outputs, predictions.labels)

    def per_class(self, predictions, names):
        return multi_label_classes(predictions.outputs, predictions.labels, names)

    def errors(self, predictions):
        return np.abs(self.label.probabilities(predictions.outputs) - predictions.labels).mean(axis=1)

    def correct(self, predictions):
        return (self.label.decide(predictions.outputs) == predictions.labels).all(axis=1)


TASK = MultiLabel()
