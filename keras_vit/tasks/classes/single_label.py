"""Classification: an image has exactly one class."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.labels import label_kind
from keras_vit.lazy import LazyModule
from keras_vit.tasks.task import LabelTask, names_or_indices

MAX_CONFUSION_CLASSES = 4096
keras = LazyModule("keras")
losses, metrics = LazyModule("keras_vit.losses"), LazyModule("keras_vit.metrics")


@dataclasses.dataclass(frozen=True)
class Predictions:
    """What is stored of a classifier's outputs: a few numbers per sample, whatever the number of classes.

    Args:
        best: int32 (samples, 5), the classes with the highest logits, highest first; fewer columns if there
            are fewer classes.
        labels: int32 (samples,).
        log_probabilities: float64 (samples,), of the labels, in nats.
        num_classes: The number of the model's classes.
    """

    best: np.ndarray
    labels: np.ndarray
    log_probabilities: np.ndarray
    num_classes: int

    @classmethod
    def of(cls, logits: np.ndarray, labels: np.ndarray) -> Predictions:
        """Of equal logits, the first counts as the highest, as in argmax."""
        classes = logits.shape[1]
        best = np.asarray(keras.ops.top_k(logits, min(5, classes))[1], "int32")
        logits = logits.astype("float64")
        top = logits.max(axis=1)
        log_sum = top + np.log(np.exp(logits - top[:, np.newaxis]).sum(axis=1))
        return cls(best, labels, logits[np.arange(len(labels)), labels] - log_sum, classes)


def accuracy(predictions: Predictions) -> dict[str, Any]:
    """The scores of a classifier, as `evaluate` returns them.

    Args:
        predictions: Predictions.

    Returns:
        dict of `samples`, `accuracy`, `top5_accuracy` and `loss`.

    Example:
        >>> best, labels = np.array([[0, 1], [0, 1]]), np.array([0, 1])
        >>> accuracy(Predictions(best, labels, np.log([0.5, 0.5]), 2))["accuracy"]
        0.5
    """
    hits = predictions.best == predictions.labels[:, np.newaxis]
    return {
        "samples": len(hits),
        "accuracy": float(hits[:, 0].mean()),
        "top5_accuracy": float(hits.any(axis=1).mean()) if predictions.num_classes > 5 else None,
        "loss": float(-predictions.log_probabilities.mean()),
    }


def per_class(predictions: Predictions, class_names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The scores of each class.

    Args:
        predictions: Predictions.
        class_names: One name per class; None for indices.

    Returns:
        A dict for each class: `name`, the count of its `samples`, how many of them are `right`, `accuracy`
        (their fraction, also called recall; None without samples), how often the class was `predicted`, and
        `precision` (the fraction of these that are right; None if it never was).

    Raises:
        ValueError: if the number of names is not that of classes.

    Example:
        >>> best, labels = np.array([[0, 1], [0, 1]]), np.array([0, 1])
        >>> per_class(Predictions(best, labels, np.log([0.5, 0.5]), 2), ["cat", "dog"])[0]
        {'name': 'cat', 'samples': 1, 'right': 1, 'accuracy': 1.0, 'predicted': 2, 'precision': 0.5}
    """
    names = names_or_indices(class_names, predictions.num_classes)
    best, labels = predictions.best[:, 0], predictions.labels
    counts = (
        np.bincount(ids, minlength=len(names)).tolist() for ids in (labels, best, labels[best == labels])
    )
    return [
        {
            "name": name,
            "samples": samples,
            "right": right,
            "accuracy": right / samples if samples else None,
            "predicted": predicted,
            "precision": right / predicted if predicted else None,
        }
        for name, samples, predicted, right in zip(names, *counts)
    ]


def confusion_matrix(predictions: Predictions) -> np.ndarray:
    """How often each class is predicted for samples of each class.

    Args:
        predictions: Predictions.

    Returns:
        int64 (classes, classes): rows are true classes, columns predicted ones.

    Raises:
        ValueError: with more than 4096 classes.

    Example:
        >>> best, labels = np.array([[0, 1], [0, 1]]), np.array([0, 1])
        >>> confusion_matrix(Predictions(best, labels, np.log([0.5, 0.5]), 2)).tolist()
        [[1, 0], [1, 0]]
    """
    from sklearn.metrics import confusion_matrix

    classes = predictions.num_classes
    if classes > MAX_CONFUSION_CLASSES:
        raise ValueError(f"expected at most {MAX_CONFUSION_CLASSES} classes; the model has {classes}")
    return confusion_matrix(predictions.labels, predictions.best[:, 0], labels=np.arange(classes))


class SingleLabel(LabelTask):
    """Classification into exactly one class."""

    label = label_kind("single_label")
    recipe_fields = (*LabelTask.recipe_fields, "loss", "label_smoothing")
    validation_metric = "accuracy"
    primary_metric = "accuracy"
    bounds_exports = True
    primary_metric_title = "top-1 accuracy"
    title = "image classification"
    slug = "classification"

    def loss(self, recipe, model):
        names = {"softmax": "SoftmaxCrossEntropy", "sigmoid": "SigmoidCrossEntropy"}
        if recipe.loss == "softmax" and model.output_shape[-1] == 1:
            raise ValueError(
                "expected at least 2 classes for softmax, whose loss for one is always 0; got 1: use the "
                "task 'multi_label' for a class that an image has or not, or 'regression' for a number"
            )
        cross_entropy = getattr(losses, names[recipe.loss])
        return cross_entropy(recipe.label_smoothing)

    def metrics(self, model):
        return [metrics.Accuracy()]

    def check_recipe(self, recipe):
        pass

    def label_shape(self, model, recipe):
        return super().label_shape(model, recipe) if recipe.mixes else ((), "int32")

    def batches(self, batches, model, source, **place):
        weights = source.recipe.class_weights
        if source.split != "train" or weights is None:
            return batches
        from keras_vit.data.class_weights import class_weights, with_class_weights  # needs TensorFlow

        labels, classes = source.samples.labels, len(source.dataset.class_names)
        return with_class_weights(batches, class_weights(weights, labels, classes))

    predictions = staticmethod(Predictions.of)
    scores = staticmethod(accuracy)
    per_class = staticmethod(per_class)
    class_score = "accuracy"
    confusion = staticmethod(confusion_matrix)

    def confidence(self, output):
        return f" ({self.label.probabilities(output).max():.1%})"

    def errors(self, predictions):
        return -predictions.log_probabilities

    def correct(self, predictions):
        return predictions.best[:, 0] == predictions.labels


TASK = SingleLabel()
