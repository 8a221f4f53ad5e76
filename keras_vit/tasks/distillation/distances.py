"""How far a student's outputs are from a teacher's, for each form of outputs.

Each function takes the outputs of the teacher and of the student, float32 tensors of one shape (batch, …). It
returns a distance for each image, (batch,): the mean over all axes between the first and the last one.
"""

from __future__ import annotations

from keras import ops

from keras_vit.tasks.detection.loss import corners_of, giou
from keras_vit.types import Tensor

COSINE, SMOOTH_L1 = 0.9, 0.1  # of the distance of patches


def softmax_divergence(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
    """t² · KL(softmax(teacher / t) ‖ softmax(student / t)) in nats, for logits of exclusive classes.

    Args:
        teacher, student: Logits (batch, …, classes).
        temperature: t, above 0.

    Example:
        >>> logits = np.array([[0.0, 0.0]]), np.array([[0.0, np.log(3.0)]])
        >>> softmax_divergence(*logits).numpy().round(4).tolist()
        [0.1438]

    Source: Hinton et al. 2015 (arXiv 1503.02531); `dist` of `big_vision/evaluators/proj/distill/distance.py`.
    """
    targets, logs = (ops.log_softmax(logits / temperature, axis=-1) for logits in (teacher, student))
    return temperature**2 * _mean(ops.sum(ops.exp(targets) * (targets - logs), axis=-1))


def sigmoid_divergence(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
    """t² · KL of sigmoid(logits / t) in nats, summed over classes that do not exclude each other.

    Args:
        teacher, student: Logits (batch, …, classes).
        temperature: t, above 0.

    Example:
        >>> sigmoid_divergence(np.array([[0.0]]), np.array([[np.log(3.0)]])).numpy().round(4).tolist()
        [0.1438]
    """
    teacher, student = teacher / temperature, student / temperature
    terms = (
        ops.sigmoid(sign * teacher) * (ops.log_sigmoid(sign * teacher) - ops.log_sigmoid(sign * student))
        for sign in (1, -1)
    )
    return temperature**2 * _mean(ops.sum(sum(terms), axis=-1))


def hard_cross_entropy(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
    """The cross-entropy of softmax(student) in nats, with the teacher's highest class as the label.

    Args:
        teacher, student: Logits (batch, …, classes).
        temperature: 1; a decision has no temperature.

    Example:
        >>> hard_cross_entropy(np.array([[0.0, 9.0]]), np.array([[0.0, 0.0]])).numpy().round(4).tolist()
        [0.6931]

    Source: Touvron et al. 2021 (DeiT, arXiv 2012.12877), section 4, "hard-label distillation".
    """
    best = ops.one_hot(ops.argmax(teacher, axis=-1), student.shape[-1], dtype=student.dtype)
    return _mean(-ops.sum(best * ops.log_softmax(student, axis=-1), axis=-1))


def squared_difference(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
    """The squared difference of numbers (batch, outputs), averaged over the outputs.

    Args:
        teacher, student: Numbers (batch, outputs).
        temperature: 1; numbers have no temperature.

    Example:
        >>> squared_difference(np.array([[1.0, 3.0]]), np.array([[0.0, 0.0]])).numpy().tolist()
        [5.0]
    """
    return _mean(ops.mean(ops.square(teacher - student), axis=-1))


def detection_distance(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
    """The distance of two detectors with the same grid of patches.

    It is the sum of three terms over the patches: the divergence of the class scores; and of the boxes the
    distance of the sides (L1) and 1 − generalized IoU, both weighted by the teacher's highest score of the
    patch. The sum is divided by the sum of these scores, about the number of objects, or by 1 if it is less.

    Args:
        teacher, student: (batch, patches, 4 + classes), the outputs of an `ObjectDetector`.
        temperature: Of the class scores.

    Example:
        >>> boxes = np.array([[[0.5, 0.5, 1.0, 1.0, 20.0]]]), np.array([[[0.5, 0.5, 0.5, 1.0, 20.0]]])
        >>> detection_distance(*boxes).numpy().round(4).tolist()
        [1.0]

    Source: the terms of `DetectionLoss`, with the teacher's patches in place of matched objects.
    """
    boxes, other_boxes = corners_of(teacher[..., :4]), corners_of(student[..., :4])
    scores = ops.max(ops.sigmoid(teacher[..., 4:]), axis=-1)  # (b, n)
    far = ops.sum(ops.abs(boxes - other_boxes), axis=-1) + 1 - giou(other_boxes, boxes)
    patches = teacher.shape[1]
    total = sigmoid_divergence(teacher[..., 4:], student[..., 4:], temperature) * patches
    total += ops.sum(scores * far, axis=1)
    return total / ops.maximum(ops.sum(scores, axis=1), 1.0)


def feature_distance(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
    """The distance of features: a vector of the image and those of its patches.

    It is 1 − cosine of the image's vectors, plus the mean over the patches of 0.9 · (1 − cosine) + 0.1 ·
    smooth L1 (half the square of a difference below 1, the difference − ½ above, averaged over channels).

    Args:
        teacher, student: (batch, 1 + patches, channels), the image's vector first.
        temperature: 1; features have no temperature.

    Example:
        >>> features = np.array([[[1.0, 0.0], [1.0, 0.0]]]), np.array([[[0.0, 1.0], [1.0, 0.0]]])
        >>> feature_distance(*features).numpy().round(4).tolist()
        [1.0]

    Source: Ranzinger et al. 2024 (AM-RADIO, arXiv 2312.06709), the losses of summary and spatial features.
    """
    apart = 1 - cosine(teacher, student)  # (b, 1 + n)
    difference = ops.abs(teacher - student)
    smooth = ops.where(difference < 1, ops.square(difference) / 2, difference - 0.5)
    patches = COSINE * apart[:, 1:] + SMOOTH_L1 * ops.mean(smooth[:, 1:], axis=-1)
    return apart[:, 0] + ops.mean(patches, axis=1)


def cosine(x: Tensor, y: Tensor) -> Tensor:
    """The cosine of the angle between vectors (…, channels); 0 if one of them is 0.

    >>> cosine(np.array([[3.0, 0.0]]), np.array([[1.0, 1.0]])).numpy().round(4).tolist()
    [0.7071]
    """
    return ops.sum(ops.normalize(x, axis=-1) * ops.normalize(y, axis=-1), axis=-1)


def agreement(teacher: Tensor, student: Tensor, k: int = 1) -> Tensor:
    """The fraction of places where the teacher's highest class is among the student's k highest ones.

    Args:
        teacher, student: Logits (batch, …, classes).
        k: The number of classes, at most all.

    Returns:
        float32 (batch,).

    Example:
        >>> agreement(np.array([[1.0, 0.0, 0.0]]), np.array([[1.0, 2.0, 0.0]]), k=2).numpy().tolist()
        [1.0]

    Source: "agree" of `dist` in `big_vision/evaluators/proj/distill/distance.py`.
    """
    chosen = ops.expand_dims(ops.cast(ops.argmax(teacher, axis=-1), "int32"), -1)
    best = ops.cast(ops.top_k(student, k)[1], "int32")
    return _mean(ops.cast(ops.any(ops.equal(best, chosen), axis=-1), "float32"))


def decision_agreement(teacher: Tensor, student: Tensor) -> Tensor:
    """The fraction of classes for which both logits are above 0, or both are not.

    >>> decision_agreement(np.array([[1.0, -1.0]]), np.array([[1.0, 2.0]])).numpy().tolist()
    [0.5]
    """
    return _mean(ops.mean(ops.cast(ops.equal(teacher > 0, student > 0), "float32"), axis=-1))


def _mean(values):
    """The mean over all axes but the first one."""
    axes = tuple(range(1, len(values.shape)))
    return ops.mean(values, axis=axes) if axes else values
