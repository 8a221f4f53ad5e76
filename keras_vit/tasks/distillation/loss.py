"""The loss and the metrics of a `DistillationModel`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit.losses import MEAN
from keras_vit.tasks.distillation.distances import softmax_divergence
from keras_vit.types import Tensor


class DistillationLoss(keras.losses.Loss):
    """The distance of a student from its teachers, and the loss of the labels.

    It is label_weight · (loss of the labels) + (1 − label_weight) · (distance, summed over the teachers).
    With several outputs of the student, as with DeiT's distillation token, the first one learns the labels
    and the last one the teachers.

    Args:
        distance: A function from the outputs of a teacher and of the student, (batch, …) each, to (batch,).
        students: The number of the student's outputs in `y_pred`.
        label_weight: In [0, 1).
        label_loss: A Keras loss; needed if `label_weight` is above 0.
        reduction: As of Keras's losses; by default the mean weighted by the sample weights.

    Call arguments:
        y_true: The labels, which without a `label_weight` are not read.
        y_pred: (batch, students + teachers, …), the output of a `DistillationModel`.

    Raises:
        ValueError: for a `label_weight` without a `label_loss`.

    Example:
        >>> outputs = np.array([[[0.0, np.log(3.0)], [0.0, 0.0]]])  # of the student, and of a teacher
        >>> round(float(DistillationLoss()(np.zeros(1), outputs)), 4)
        0.1438

    Source: Beyer et al. 2022 ("A good teacher is patient and consistent", arXiv 2106.05237), section 3;
    Touvron et al. 2021 (DeiT, arXiv 2012.12877), section 4; `big_vision/trainers/proj/distill/distill.py`.
    """

    def __init__(
        self,
        distance: Callable[[Tensor, Tensor], Tensor] = softmax_divergence,
        students: int = 1,
        label_weight: float = 0.0,
        label_loss: keras.losses.Loss | None = None,
        reduction: str = MEAN,
        name: str = "distillation_loss",
        **kwargs: Any,
    ) -> None:
        super().__init__(reduction=reduction, name=name, **kwargs)
        if label_weight and label_loss is None:
            raise ValueError(f"label_weight={label_weight!r} needs a label_loss; got None")
        self.distance, self.students = distance, students
        self.label_weight, self.label_loss = label_weight, label_loss

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        student = y_pred[:, self.students - 1]
        teachers = [y_pred[:, row] for row in range(self.students, y_pred.shape[1])]
        loss = sum(self.distance(teacher, student) for teacher in teachers)
        if self.label_weight:
            labels = self.label_loss.call(y_true, y_pred[:, 0])
            loss = self.label_weight * labels + (1 - self.label_weight) * loss
        return loss


class TeacherMetric(keras.metrics.Mean):
    """The mean over the teachers of a number for each image, such as the agreement with a teacher.

    Args:
        function: From the outputs of a teacher and of the student, (batch, …) each, to (batch,).
        students: The number of the student's outputs, whose mean is compared.

    Example:
        >>> metric = TeacherMetric(softmax_divergence, name="kl")
        >>> metric.update_state(np.zeros(1), np.array([[[0.0, np.log(3.0)], [0.0, 0.0]]]))
        >>> round(float(metric.result()), 4)
        0.1438
    """

    def __init__(
        self,
        function: Callable[[Tensor, Tensor], Tensor],
        students: int = 1,
        name: str = "distance",
        dtype: str | keras.DTypePolicy | None = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.function, self.students = function, students

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        student = student_output(y_pred, self.students)
        teachers = [y_pred[:, row] for row in range(self.students, y_pred.shape[1])]
        values = sum(self.function(teacher, student) for teacher in teachers) / len(teachers)
        super().update_state(values, sample_weight)


class OutputMetric(keras.metrics.Metric):
    """A Keras metric of one of the models in a `DistillationModel`.

    Args:
        metric: The metric.
        select: A function from the output of the `DistillationModel` to that of the model.
        name: None for that of the metric.

    Example:
        >>> metric = OutputMetric(keras_vit.metrics.Accuracy(), lambda outputs: outputs[:, 1])
        >>> metric.update_state(np.array([1]), np.array([[[1.0, 0.0], [0.0, 1.0]]]))
        >>> float(metric.result())
        1.0
    """

    def __init__(
        self, metric: keras.metrics.Metric, select: Callable[[Tensor], Tensor], name: str | None = None
    ) -> None:
        super().__init__(name=name or metric.name, dtype=metric.dtype)
        self.metric, self.select = metric, select

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        self.metric.update_state(y_true, self.select(y_pred), sample_weight)

    def result(self) -> Tensor:
        return self.metric.result()

    def reset_state(self) -> None:
        self.metric.reset_state()


def student_output(outputs, students=1):
    """The student's output in that of a `DistillationModel`: the mean over its heads.

    >>> student_output(np.array([[[1.0], [3.0], [9.0]]]), students=2).numpy().tolist()
    [[2.0]]
    """
    return outputs[:, 0] if students == 1 else ops.mean(outputs[:, :students], axis=1)
