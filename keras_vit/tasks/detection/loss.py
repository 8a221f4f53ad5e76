"""The loss of a detector: matching, then focal loss, distance and overlap of boxes."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.losses import MEAN
from keras_vit.tasks.segmentation.matching import assign
from keras_vit.types import Tensor

ALPHA, GAMMA = 0.3, 2.0  # of the focal loss


@keras.saving.register_keras_serializable("keras_vit")
class DetectionLoss(keras.losses.Loss):
    """The loss of an `ObjectDetector`: each object is matched with the patch that predicts it best.

    The loss of an image is the sum of three terms, each divided by the number of its objects: the focal loss
    of all patches and classes, where a matched patch should have the class of its object and all others none;
    the distance of the sides of matched boxes (L1); and 1 − their generalized IoU. The cost of a match is
    made of the same terms, with the distance of centers and sizes. A class out of range makes the loss NaN.

    Args:
        reduction: As of Keras's losses; by default the mean weighted by the sample weights.

    Call arguments:
        y_true: Boxes (batch, boxes, 7): rows of `box_rows.COLUMNS`, of which those of class -1 and crowds
            do not count.
        y_pred: (batch, patches, 4 + classes), the output of an `ObjectDetector`.

    Example:
        >>> boxes = np.array([[[0.0, 0.0, 0.5, 1.0, 1, 0, 0.5]]], "float32")
        >>> right = np.array([[[0.25, 0.5, 0.5, 1.0, -20, 20], [0.5, 0.5, 0.1, 0.1, -20, -20]]], "float32")
        >>> round(float(DetectionLoss()(boxes, right)), 6)
        0.0

    Source: Minderer et al. 2022 (OWL-ViT), section 3.2 and appendix; `losses.py` and
    `matching_base_models.py` of its code, with all coefficients 1 and normalization "per_example".
    """

    def __init__(self, reduction: str = MEAN, name: str = "detection_loss", **kwargs: Any) -> None:
        super().__init__(reduction=reduction, name=name, **kwargs)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        rows, y_pred = ops.cast(y_true, "float32"), ops.cast(y_pred, "float32")
        rows = _without_padding(rows)
        predicted, logits = y_pred[..., :4], y_pred[..., 4:]
        classes, patches = logits.shape[-1], ops.shape(logits)[1]
        number = ops.cast(rows[..., 4], "int32")
        counts = (number >= 0) & (rows[..., 5] == 0)
        is_wrong = ops.any(counts & (number >= classes), axis=1)
        number = ops.where(counts, number, classes)  # one_hot has no row for it
        is_class = ops.one_hot(number, classes, dtype="float32")  # (b, m, k)

        corners, true = corners_of(predicted), rows[..., :4]
        right, wrong = _focal_terms(ops.stop_gradient(logits))
        costs = ops.einsum("bnk,bmk->bmn", right - wrong, is_class)
        boxes = ops.expand_dims(ops.stop_gradient(predicted), 1)
        costs += ops.sum(ops.abs(ops.expand_dims(_centers(true), 2) - boxes), axis=3)
        costs -= giou(ops.expand_dims(true, 2), corners_of(boxes))
        # Rows that count are assigned one after the other: those that do not come last.
        order = ops.argsort(ops.where(counts, 0, 1), axis=1)
        total = ops.sum(ops.cast(counts, "int32"), axis=1)
        costs = ops.take_along_axis(costs, ops.expand_dims(order, 2), axis=1)
        patch = assign(costs, total)  # (b, m), or -1
        true = ops.take_along_axis(true, ops.expand_dims(order, 2), axis=1)
        is_class = ops.take_along_axis(is_class, ops.expand_dims(order, 2), axis=1)

        matched = ops.cast(patch >= 0, "float32")
        chosen = ops.one_hot(patch, patches, dtype="float32")  # (b, m, n), 0 without a patch
        target = ops.einsum("bmn,bmk->bnk", chosen, is_class)
        boxes = ops.take_along_axis(corners, ops.expand_dims(ops.maximum(patch, 0), 2), axis=1)
        distance = ops.sum(ops.abs(boxes - true), axis=2)
        overlap = 1 - giou(boxes, true)
        loss = ops.sum(focal_loss(logits, target), axis=(1, 2))
        loss += ops.sum(ops.where(matched > 0, distance + overlap, 0.0), axis=1)
        loss /= ops.cast(ops.maximum(total, 1), "float32")
        return ops.where(is_wrong, float("nan"), loss)


def focal_loss(logits: Tensor, target: Tensor) -> Tensor:
    """The sigmoid focal loss of each logit.

    Args:
        logits: Of any shape.
        target: 0 or 1 for each.

    Example:
        >>> round(float(focal_loss(np.zeros(1), np.ones(1))[0]), 4)
        0.052

    Source: Lin et al. 2017 (arXiv 1708.02002), with α 0.3 and γ 2 as in OWL-ViT.
    """
    right, wrong = _focal_terms(logits)
    return target * right + (1 - target) * wrong


def giou(boxes: Tensor, others: Tensor) -> Tensor:
    """The generalized IoU of boxes (…, 4), with the sides left, top, right and bottom.

    Example:
        >>> boxes = np.array([[0.0, 0.0, 1.0, 1.0]]), np.array([[1.0, 0.0, 2.0, 1.0]])
        >>> giou(*boxes).numpy().tolist()
        [0.0]

    Source: Rezatofighi et al. 2019 (arXiv 1902.09630).
    """
    common = _area(ops.maximum(boxes[..., :2], others[..., :2]), ops.minimum(boxes[..., 2:], others[..., 2:]))
    around = _area(ops.minimum(boxes[..., :2], others[..., :2]), ops.maximum(boxes[..., 2:], others[..., 2:]))
    union = _area(boxes[..., :2], boxes[..., 2:]) + _area(others[..., :2], others[..., 2:]) - common
    union, around = ops.maximum(union, 1e-9), ops.maximum(around, 1e-9)
    return common / union - (around - union) / around


def _without_padding(rows):
    """The rows up to the last one that is no padding in any image, where a graph may have such a shape."""
    if keras.backend.backend() != "tensorflow":
        return rows
    ends = ops.where(rows[..., 4] >= 0, ops.arange(1, ops.shape(rows)[1] + 1), 0)
    most = ops.max(ends, initial=0)
    return rows[:, : ops.maximum(most, 1)]


def _focal_terms(logits):
    """The focal loss of each logit for a target of 1, and of 0."""
    right = -ALPHA * ops.power(ops.sigmoid(-logits), GAMMA) * ops.log_sigmoid(logits)
    wrong = -(1 - ALPHA) * ops.power(ops.sigmoid(logits), GAMMA) * ops.log_sigmoid(-logits)
    return right, wrong


def corners_of(boxes):
    """Left, top, right and bottom from centers and sizes."""
    centers, half = boxes[..., :2], boxes[..., 2:] / 2
    return ops.concatenate([centers - half, centers + half], axis=-1)


def _centers(boxes):
    """Centers and sizes from left, top, right and bottom."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return ops.concatenate([(low + high) / 2, high - low], axis=-1)


def _area(low, high):
    return ops.prod(ops.maximum(high - low, 0.0), axis=-1)
