"""Losses on logits."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.labels import IGNORE, check_class_count
from keras_vit.rules import number
from keras_vit.types import Tensor

MEAN = "mean_with_sample_weight"  # the weighted sum divided by the sum of the weights


class _CrossEntropy(keras.losses.Loss):
    """Smoothed labels, given as class indices or as one row per image; a mean weighted by the samples."""

    indices = True

    def __init__(self, label_smoothing=0.0, reduction=MEAN, **kwargs):
        super().__init__(reduction=reduction, **kwargs)
        self.label_smoothing = number(0, below=1).check("label_smoothing", label_smoothing)

    def rows(self, y_true, y_pred):
        """The smoothed labels, one row per image."""
        classes = y_pred.shape[-1]
        is_row = len(y_true.shape) == len(y_pred.shape) and y_true.shape[-1] == classes
        is_index = len(y_true.shape) < len(y_pred.shape) or y_true.shape[-1] == 1
        if not is_row and not (is_index and self.indices):
            raise ValueError(
                f"expected labels of {classes} numbers, one per class{' or class indices' * self.indices}; "
                f"got labels of shape {tuple(y_true.shape)}"
            )
        if not is_row:
            ids = ops.reshape(ops.cast(y_true, "int32"), (-1,))
            # The loss of an index out of range is NaN, since one_hot would make it 0 or the smoothing's.
            known = ops.expand_dims((ids >= 0) & (ids < classes), 1)
            y_true = ops.where(known, ops.one_hot(ids, classes), float("nan"))
        y_true = ops.cast(y_true, y_pred.dtype)
        return y_true * (1 - self.label_smoothing) + self.label_smoothing / classes

    def get_config(self):
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable("keras_vit")
class SoftmaxCrossEntropy(_CrossEntropy):
    """Cross-entropy of softmax(logits), for labels given as class indices or as one row per image.

    A class index out of range makes the loss NaN, so that wrong labels are noticed.

    Args:
        label_smoothing: Fraction of each label that is spread evenly over all classes, in [0, 1).
        reduction: As of Keras's losses; by default the mean weighted by the sample weights.

    Example:
        >>> loss = SoftmaxCrossEntropy()
        >>> round(float(loss(np.array([1]), np.array([[0.0, 0.0]]))), 4)
        0.6931

    Source: `cross_entropy_loss` of `vit_jax/train.py`; smoothing: Szegedy et al. 2016, section 7.
    """

    def __init__(
        self, label_smoothing: float = 0.0, name: str = "softmax_cross_entropy", **kwargs: Any
    ) -> None:
        super().__init__(label_smoothing, name=name, **kwargs)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return -ops.sum(self.rows(y_true, y_pred) * ops.log_softmax(y_pred), axis=-1)


@keras.saving.register_keras_serializable("keras_vit")
class SigmoidCrossEntropy(_CrossEntropy):
    """Binary cross-entropy of sigmoid(logits), summed over the classes.

    Args:
        label_smoothing: As for `SoftmaxCrossEntropy`.
        indices: Whether labels may be class indices; False: only rows with a number in [0, 1] for each class.
        reduction: As of Keras's losses; by default the mean weighted with the samples' weights.

    Example:
        >>> loss = SigmoidCrossEntropy()
        >>> round(float(loss(np.array([[1.0, 1.0]]), np.array([[0.0, 0.0]]))), 4)
        1.3863

    Source: `sigmoid_xent` of `big_vision/utils.py`.
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        name: str = "sigmoid_cross_entropy",
        indices: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(label_smoothing, name=name, **kwargs)
        self.indices = indices

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "indices": self.indices}

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        rows = self.rows(y_true, y_pred)
        return -ops.sum(rows * ops.log_sigmoid(y_pred) + (1 - rows) * ops.log_sigmoid(-y_pred), axis=-1)


@keras.saving.register_keras_serializable("keras_vit")
class SquaredError(keras.losses.MeanSquaredError):
    """The squared error, averaged over the outputs.

    Args:
        reduction: As of Keras's losses; by default the mean weighted by the sample weights.

    Raises:
        ValueError: for targets that do not have a number for each output. Keras's own loss would compare a
            single target with every output.

    Example:
        >>> float(SquaredError()(np.array([[1.0, 3.0]]), np.array([[0.0, 0.0]])))
        5.0
    """

    def __init__(self, reduction: str = MEAN, name: str = "squared_error", **kwargs: Any) -> None:
        super().__init__(reduction=reduction, name=name, **kwargs)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        outputs, targets = y_pred.shape[-1], tuple(y_true.shape[1:]) or (1,)
        if targets not in ((outputs,), (None,)):
            raise ValueError(
                f"expected targets of {outputs} numbers, one per output; got targets of shape "
                f"{tuple(y_true.shape)}"
            )
        return super().call(y_true, y_pred)


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

    Raises:
        ValueError: for more than 255 classes, unless `ignore` is another number.

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
        if self.ignore == IGNORE:
            check_class_count(classes)
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
