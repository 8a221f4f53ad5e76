"""Losses on logits."""

import keras
from keras import ops


class _CrossEntropy(keras.losses.Loss):
    """Labels as class numbers or as one row per image, smoothed; the mean is over the samples' weights."""

    def __init__(self, label_smoothing=0.0, reduction="mean_with_sample_weight", **kwargs):
        super().__init__(reduction=reduction, **kwargs)
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in [0, 1); got {label_smoothing!r}")
        self.label_smoothing = label_smoothing

    def rows(self, y_true, y_pred):
        """The labels as one row per image, smoothed."""
        classes = y_pred.shape[-1]
        if len(y_true.shape) < len(y_pred.shape) or y_true.shape[-1] != classes:
            numbers = ops.reshape(ops.cast(y_true, "int32"), (-1,))
            # A number that is no class has no probability: its loss is NaN, not 0.
            known = ops.expand_dims((numbers >= 0) & (numbers < classes), 1)
            y_true = ops.where(known, ops.one_hot(numbers, classes), float("nan"))
        y_true = ops.cast(y_true, y_pred.dtype)
        return y_true * (1 - self.label_smoothing) + self.label_smoothing / classes

    def get_config(self):
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable("keras_vit")
class SoftmaxCrossEntropy(_CrossEntropy):
    """Cross-entropy of softmax(logits), for labels as class numbers or as one row per image.

    A class number outside 0 … classes - 1 makes the loss NaN, so that a run with wrong labels shows.

    Args:
        label_smoothing: Share of each label that is spread evenly over all classes, in [0, 1).
        reduction: As of Keras's losses; by default the mean weighted with the samples' weights.

    Example:
        >>> loss = SoftmaxCrossEntropy()
        >>> round(float(loss(np.array([1]), np.array([[0.0, 0.0]]))), 4)
        0.6931

    Source: `cross_entropy_loss` of `vit_jax/train.py`; smoothing: Szegedy et al. 2016, section 7.
    """

    def __init__(self, label_smoothing=0.0, name="softmax_cross_entropy", **kwargs):
        super().__init__(label_smoothing, name=name, **kwargs)

    def call(self, y_true, y_pred):
        return -ops.sum(self.rows(y_true, y_pred) * ops.log_softmax(y_pred), axis=-1)


@keras.saving.register_keras_serializable("keras_vit")
class SigmoidCrossEntropy(_CrossEntropy):
    """Cross-entropy of sigmoid(logits), each class on its own, summed over the classes.

    Args:
        label_smoothing: As of `SoftmaxCrossEntropy`.
        reduction: As of Keras's losses; by default the mean weighted with the samples' weights.

    Labels: class numbers, or a row per image with a number in [0, 1] for each class, of which several or
    none may be 1.

    Example:
        >>> loss = SigmoidCrossEntropy()
        >>> round(float(loss(np.array([[1.0, 1.0]]), np.array([[0.0, 0.0]]))), 4)
        1.3863

    Source: `sigmoid_xent` of `big_vision/utils.py`.
    """

    def __init__(self, label_smoothing=0.0, name="sigmoid_cross_entropy", **kwargs):
        super().__init__(label_smoothing, name=name, **kwargs)

    def call(self, y_true, y_pred):
        rows = self.rows(y_true, y_pred)
        return -ops.sum(rows * ops.log_sigmoid(y_pred) + (1 - rows) * ops.log_sigmoid(-y_pred), axis=-1)
