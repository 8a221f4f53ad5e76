"""Metrics of training: the accuracy of images and the mean IoU of pixels."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.labels import IGNORE, check_class_count

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
