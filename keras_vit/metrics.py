"""Metrics of training: accuracy, the average precision of several labels and the mean IoU of pixels."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.labels import IGNORE, check_class_count

BINS = 1024  # of a logit
LIMB = 2**20  # A count of pixels is high · LIMB + low, since a float32 is exact up to 2**24 only.


@keras.saving.register_keras_serializable("keras_vit")
class Accuracy(keras.metrics.MeanMetricWrapper):
    """The fraction of images whose highest logit is at the label, a class index or the largest of a row.

    Keras's "accuracy" decides by the first batch which of the two labels are; MixUp has rows in training and
    class indices in validation.

    Example:
        >>> float(Accuracy()(np.array([1, 0]), np.array([[0.2, 0.8], [0.3, 0.7]])))
        0.5
    """

    _direction = "up"  # for callbacks with mode="auto"

    def __init__(self, name: str = "accuracy", dtype: str | keras.DTypePolicy | None = None) -> None:
        super().__init__(_hits, name=name, dtype=dtype)

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype}


def _hits(y_true, y_pred):
    if len(y_true.shape) == len(y_pred.shape) and y_true.shape[-1] == y_pred.shape[-1]:
        y_true = ops.argmax(y_true, axis=-1)
    best = ops.cast(ops.argmax(y_pred, axis=-1), "int32")
    return ops.cast(ops.equal(ops.reshape(ops.cast(y_true, "int32"), ops.shape(best)), best), "float32")


@keras.saving.register_keras_serializable("keras_vit")
class MeanAveragePrecision(keras.metrics.Metric):
    """The mean average precision of the classes that have samples, from a histogram of the logits.

    `keras.metrics.AUC` ranks by 200 probabilities, of which few are near 0, and counts a class without
    samples as 0. The bins here have a width of 0.0002 for logits near 0, and of 2 % of others, up to ±110.
    Samples in one bin count as in a random order.

    Args:
        num_classes: The number of classes.

    Example:
        >>> metric = MeanAveragePrecision(2)
        >>> float(metric(np.array([[1, 0], [0, 0]]), np.array([[-7.0, 1.0], [-9.0, 1.0]])))
        1.0

    Source: `sklearn.metrics.average_precision_score`.
    """

    _direction = "up"  # for callbacks with mode="auto"

    def __init__(self, num_classes, name="average_precision", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.num_classes = num_classes
        self.positive = self.add_variable((num_classes * BINS,), "zeros", "float32", name="positive")
        self.total = self.add_variable((num_classes * BINS,), "zeros", "float32", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels, logits = ops.cast(y_true, "float32"), ops.cast(y_pred, "float32")
        weights = ops.ones_like(logits)
        if sample_weight is not None:
            weights *= ops.reshape(ops.cast(sample_weight, "float32"), (-1, 1))
        # The first bin has the highest logits; the arcsinh of 110 · 100 is 10.
        bins = ops.clip((0.5 - ops.arcsinh(100 * logits) / 20) * BINS, 0, BINS - 1)
        cells = ops.cast(bins, "int32") + BINS * ops.arange(self.num_classes, dtype="int32")
        for variable, counts in ((self.positive, weights * labels), (self.total, weights)):
            flat = ops.reshape(counts, (-1,)), ops.reshape(cells, (-1,))
            variable.assign(variable + ops.segment_sum(*flat, num_segments=self.num_classes * BINS))

    def result(self):
        positive, total = (ops.reshape(part, (-1, BINS)) for part in (self.positive, self.total))
        # Up to the mean rank of a bin's positive samples.
        right, predicted = (
            ops.cumsum(part, axis=1) - ops.maximum(part - 1, 0) / 2 for part in (positive, total)
        )
        samples = ops.sum(positive, axis=1)
        precision = ops.sum(ops.divide_no_nan(right, predicted) * positive, axis=1)
        classes = ops.sum(ops.cast(samples > 0, "float32"))
        return ops.divide_no_nan(ops.sum(ops.divide_no_nan(precision, samples)), classes)

    def get_config(self):
        return {"num_classes": self.num_classes, "name": self.name}


@keras.saving.register_keras_serializable("keras_vit")
class MeanIoU(keras.metrics.Metric):
    """The mean intersection over union of the classes, from exact counts of pixels.

    `keras.metrics.MeanIoU` counts in float32, which stops at 2**24 pixels, 64 images of 512 × 512. Here a
    count has two parts, which are exact up to 2**44, also summed over replicas and workers. Ignored pixels,
    and pixels or samples whose weight is 0, do not count; others count once.

    Args:
        num_classes: The number of classes.
        ignore: The number of pixels without a label.

    Raises:
        ValueError: for more than 255 classes, unless `ignore` is another number.

    Example:
        >>> metric = MeanIoU(2)
        >>> float(metric(np.array([[[0, 1, 255]]]), np.array([[[[1.0, 0], [1, 0], [1, 0]]]])))
        0.25
    """

    _direction = "up"  # for callbacks with mode="auto"

    def __init__(self, num_classes, ignore=IGNORE, name="mean_iou", dtype=None):
        super().__init__(name=name, dtype=dtype)
        if ignore == IGNORE:
            check_class_count(num_classes)
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
