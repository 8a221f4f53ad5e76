"""Images and texts that describe them: the model's own loss, and how often the most similar text is right."""

import keras
from keras import ops

from keras_vit.tasks.task import Objective

_MASKED = -1e30


@keras.saving.register_keras_serializable("keras_vit")
class PairAccuracy(keras.metrics.Mean):
    """The fraction of images whose most similar text of the batch describes their class.

    Pairs of weight 0 do not count, and no image can choose their texts. On several replicas each image is
    compared with the texts of its own replica.

    Call arguments:
        y_true: Class indices (batch,).
        y_pred: Vectors of images and texts (batch, 2, size), as of an `ImageTextModel`.
        sample_weight: (batch,), or None.

    Example:
        >>> pairs = np.stack([np.eye(3), np.eye(3)[[1, 0, 2]]], axis=1)  # two texts are exchanged
        >>> round(float(PairAccuracy()(np.array([0, 1, 2]), pairs)), 2), float(
        ...     PairAccuracy()(np.array([7, 7, 2]), pairs))
        (0.33, 1.0)
    """

    def __init__(self, name="accuracy", dtype=None):
        super().__init__(name=name, dtype=dtype)

    def update_state(self, y_true, y_pred, sample_weight=None):
        classes = ops.reshape(y_true, (-1,))
        logits = ops.matmul(y_pred[:, 0], ops.transpose(y_pred[:, 1]))
        if sample_weight is not None:
            logits = ops.where(ops.expand_dims(sample_weight, 0) != 0, logits, _MASKED)
        # There is no largest logit in an empty batch, which workers may have.
        logits = ops.pad(logits, ((0, 0), (0, 1)), constant_values=_MASKED)
        hits = ops.equal(ops.take(classes, ops.argmax(logits, axis=1), axis=0), classes)
        super().update_state(ops.cast(hits, self.dtype), sample_weight)


PAIRS = Objective(
    name="pairs",
    loss=lambda recipe: None,  # An `ImageTextModel` computes its own.
    metrics=lambda outputs: [PairAccuracy()],
    validation_metric="accuracy",
    higher_is_better=True,
)
