"""Semantic segmentation: each pixel of an image has a class, or none that counts."""

import keras
import numpy as np
from keras import ops

from keras_vit.tasks.losses import MEAN
from keras_vit.tasks.segmentation_scores import (
    IGNORE,
    SegmentationPredictions,
    segmentation_classes,
    segmentation_scores,
)
from keras_vit.tasks.single_label import softmax
from keras_vit.tasks.task import Task

LIMB = 2**20  # A count of pixels is high · LIMB + low, since a float32 is exact up to 2**24 only.


@keras.saving.register_keras_serializable("keras_vit")
class SegmentationCrossEntropy(keras.losses.Loss):
    """Cross-entropy of softmax(logits) in each pixel, averaged over the pixels with a label.

    A class out of range makes the loss NaN, so that wrong labels are noticed. On several replicas or
    micro-batches, with different numbers of labeled pixels, a `DistributedModel` needs `pixel_weights` as
    sample weights to compute the mean over all pixels of the global batch; runs give it them.

    Args:
        ignore: The number of pixels without a label.
        reduction: As of Keras's losses; by default the mean weighted by the sample weights.

    Call arguments:
        y_true: Ints (batch, height, width).
        y_pred: Logits (batch, height, width, classes).
        sample_weight: (batch,) or (batch, height, width).

    Example:
        >>> loss = SegmentationCrossEntropy()
        >>> round(float(loss(np.array([[[1, 255]]]), np.zeros((1, 1, 2, 2)))), 4)
        0.6931
    """

    def __init__(self, ignore=IGNORE, reduction=MEAN, name="segmentation_cross_entropy", **kwargs):
        super().__init__(reduction=reduction, name=name, **kwargs)
        self.ignore = ignore

    def __call__(self, y_true, y_pred, sample_weight=None):
        weights = pixel_weights(y_true, self.ignore)
        if sample_weight is not None:
            sample_weight = ops.cast(sample_weight, "float32")
            for _ in range(len(weights.shape) - len(sample_weight.shape)):
                sample_weight = ops.expand_dims(sample_weight, -1)
            weights = weights * sample_weight
        return super().__call__(y_true, y_pred, sample_weight=weights)

    def call(self, y_true, y_pred):
        labels, classes = ops.cast(y_true, "int32"), y_pred.shape[-1]
        known = (labels >= 0) & (labels < classes)
        losses = ops.sparse_categorical_crossentropy(ops.where(known, labels, 0), y_pred, from_logits=True)
        unknown = ops.where(labels == self.ignore, 0.0, float("nan"))
        return ops.where(known, losses, ops.cast(unknown, losses.dtype))

    def get_config(self):
        return {**super().get_config(), "ignore": self.ignore}


def pixel_weights(labels, ignore=IGNORE):
    """1 for pixels with a label, 0 for others: float32 of the shape of the labels.

    >>> pixel_weights(np.array([[[0, 255]]])).tolist()
    [[[1.0, 0.0]]]
    """
    if isinstance(labels, np.ndarray):
        return (labels != ignore).astype("float32")
    return ops.cast(ops.not_equal(ops.cast(labels, "int32"), ignore), "float32")


@keras.saving.register_keras_serializable("keras_vit")
class MeanIoU(keras.metrics.Metric):
    """The mean intersection over union of the classes, from exact counts of pixels.

    `keras.metrics.MeanIoU` counts in float32, which stops at 2**24 pixels, 64 images of 512 × 512. Here a
    count has two parts, which are exact up to 2**44, also summed over replicas and workers. Ignored pixels,
    and pixels or samples whose weight is 0, do not count; others count once.

    Args:
        num_classes: The number of classes.
        ignore: The number of pixels without a label.

    Example:
        >>> metric = MeanIoU(2)
        >>> float(metric(np.array([[[0, 1, 255]]]), np.array([[[[1.0, 0], [1, 0], [1, 0]]]])))
        0.25
    """

    def __init__(self, num_classes, ignore=IGNORE, name="mean_iou", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.num_classes, self.ignore = num_classes, ignore
        cells = (num_classes * num_classes,)
        self.low = self.add_variable(cells, "zeros", "float32", name="low")
        self.high = self.add_variable(cells, "zeros", "float32", name="high")

    def update_state(self, y_true, y_pred, sample_weight=None):
        classes, cells = self.num_classes, self.num_classes**2
        labels = ops.cast(y_true, "int32")
        predicted = ops.cast(ops.argmax(y_pred, axis=-1), "int32")
        counted = (labels >= 0) & (labels < classes) & (labels != self.ignore)
        if sample_weight is not None:
            weights = ops.convert_to_tensor(sample_weight)
            for _ in range(len(labels.shape) - len(weights.shape)):
                weights = ops.expand_dims(weights, -1)
            counted = counted & (weights != 0)
        cell = ops.reshape(ops.where(counted, labels * classes + predicted, cells), (-1,))
        counts = ops.segment_sum(ops.ones_like(cell), cell, num_segments=cells + 1)[:-1]
        total = ops.cast(self.low, "int32") + counts
        self.high.assign(self.high + ops.cast(total // LIMB, "float32"))
        self.low.assign(ops.cast(total % LIMB, "float32"))

    def result(self):
        pixels = ops.reshape(self.high * LIMB + self.low, (self.num_classes, self.num_classes))
        right = ops.diagonal(pixels)
        union = ops.sum(pixels, 0) + ops.sum(pixels, 1) - right
        counts = ops.cast(union > 0, "float32")
        return ops.divide_no_nan(ops.sum(ops.divide_no_nan(right, union)), ops.sum(counts))

    def confusion_matrix(self):
        """The exact counts: int64 (classes, classes), rows are true classes, columns predicted ones."""
        low, high = (ops.convert_to_numpy(part).astype("int64") for part in (self.low, self.high))
        return (high * LIMB + low).reshape(self.num_classes, self.num_classes)

    def get_config(self):
        return {"num_classes": self.num_classes, "ignore": self.ignore, "name": self.name}


def check_class_maps(labels, num_classes):
    """Raise ValueError unless the labels are class maps of a model with so many classes."""
    if labels.ndim != 3:
        raise ValueError(
            f"expected a class map (height, width) per sample; got labels of shape {labels.shape[1:]}"
        )
    found = labels[labels != IGNORE]
    if found.size and not 0 <= found.min() <= found.max() < num_classes:
        worst = found.min() if found.min() < 0 else found.max()
        raise ValueError(f"expected classes below {num_classes}, or {IGNORE} to ignore a pixel; got {worst}")


def _parse(text):
    raise ValueError(f"expected a mask, which a table cannot hold; got {text!r}")


def _format(label, names):
    """The classes of a map, the largest first."""
    pixels = np.bincount(np.ravel(label)[np.ravel(label) != IGNORE], minlength=len(names))
    order = [number for number in np.argsort(-pixels, kind="stable") if pixels[number]]
    return ", ".join(str(names[number]) for number in order) or "none"


SEGMENTATION = Task(
    name="segmentation",
    noun=("class", "classes"),
    loss=lambda recipe: SegmentationCrossEntropy(),
    metrics=lambda outputs: [MeanIoU(outputs)],
    validation_metric="mean_iou",
    higher_is_better=True,
    has_class_ids=False,
    has_class_maps=True,
    activation="softmax",
    probabilities=softmax,
    decide=lambda outputs: outputs.argmax(-1),
    predictions=SegmentationPredictions.of,
    scores=segmentation_scores,
    primary_metric="mean_iou",
    primary_metric_title="mean IoU",
    per_class=segmentation_classes,
    errors=lambda predictions: 1 - predictions.image_iou,
    # No map is right in every pixel: the images with the highest IoU count as the best.
    correct=lambda predictions: np.ones(len(predictions.lengths), bool),
    check_labels=check_class_maps,
    parse_label=_parse,
    format_label=_format,
    title="semantic segmentation",
    slug="semantic-segmentation",
)
