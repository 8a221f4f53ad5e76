"""Losses on logits."""

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_vit")
class SoftmaxCrossEntropy(keras.losses.Loss):
    """Cross-entropy of softmax(logits), for labels as class numbers or as one row per image.

    A class number outside 0 … classes - 1 makes the loss NaN, so that a run with wrong labels shows.

    Args:
        label_smoothing: Share of each label that is spread evenly over all classes, in [0, 1).

    Example:
        >>> loss = SoftmaxCrossEntropy()
        >>> round(float(loss(np.array([1]), np.array([[0.0, 0.0]]))), 4)
        0.6931

    Source: `cross_entropy_loss` of `vit_jax/train.py`; smoothing: Szegedy et al. 2016, section 7.
    """

    def __init__(self, label_smoothing=0.0, name="softmax_cross_entropy", **kwargs):
        super().__init__(name=name, **kwargs)
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in [0, 1); got {label_smoothing!r}")
        self.label_smoothing = label_smoothing

    def call(self, y_true, y_pred):
        classes = y_pred.shape[-1]
        if len(y_true.shape) < len(y_pred.shape) or y_true.shape[-1] != classes:
            numbers = ops.reshape(ops.cast(y_true, "int32"), (-1,))
            # A number that is no class has no probability: its loss is NaN, not 0.
            known = ops.expand_dims((numbers >= 0) & (numbers < classes), 1)
            y_true = ops.where(known, ops.one_hot(numbers, classes), float("nan"))
        y_true = ops.cast(y_true, y_pred.dtype)
        y_true = y_true * (1 - self.label_smoothing) + self.label_smoothing / classes
        return -ops.sum(y_true * ops.log_softmax(y_pred), axis=-1)

    def get_config(self):
        return {**super().get_config(), "label_smoothing": self.label_smoothing}
