"""The recall of pairs in each batch, a metric of the training of image-text models."""

import keras
from keras import ops

from keras_vit.layers.attention import MASKED
from keras_vit.tasks.image_text.loss import gathered

SIDES = ("image", "text")
TOLERANCE = 1e-6  # of equal similarities


@keras.saving.register_keras_serializable("keras_vit")
class PairRecall(keras.metrics.Mean):
    """The fraction of images of which one of the k most similar texts of the global batch is their own.

    An image's own texts have its label. Of similarities that differ by at most 1e-6 the own one comes last,
    and vectors with NaN find nothing. Pairs of weight 0 do not count, and are not compared with.

    Args:
        of: "image", or "text" for the fraction of texts with one of their own images.
        k: A positive int.

    Call arguments:
        y_true: Labels (batch,): classes that the texts describe, or indices of images with captions.
        y_pred: Vectors of images and texts (batch, 2, size), as of an `ImageTextModel`.
        sample_weight: (batch,), or None.

    Example:
        >>> pairs = np.stack([np.eye(3), np.eye(3)[[1, 0, 2]]], axis=1)  # two texts are exchanged
        >>> round(float(PairRecall("image", 1)(np.array([0, 1, 2]), pairs)), 2), float(
        ...     PairRecall("image", 1)(np.array([7, 7, 2]), pairs))
        (0.33, 1.0)

    Source: as `keras_vit.evaluation.recall`, of a batch.
    """

    _direction = "up"  # for callbacks with mode="auto"

    def __init__(self, of, k, name=None, dtype=None):
        side = SIDES.index(of)
        super().__init__(name=name or f"{of}_to_{SIDES[1 - side]}_recall_{k}", dtype=dtype)
        self.of, self.k = of, k

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels, side = ops.reshape(y_true, (-1,)), SIDES.index(self.of)
        logits = ops.matmul(
            y_pred[:, side], ops.transpose(gathered(y_pred)[:, 1 - side])
        )  # (b, global batch)
        is_own = ops.equal(ops.expand_dims(labels, 1), gathered(labels))
        if sample_weight is not None:
            logits = ops.where(gathered(sample_weight) != 0, logits, MASKED)
        # Workers may have a part of a batch without pairs, which has no maximum of its own.
        best = ops.max(ops.where(is_own, logits, MASKED), axis=1, keepdims=True, initial=MASKED)
        # NaN is not below; with few pairs there may be fewer than k others.
        above_own = ops.sum(ops.cast(~(logits < best - TOLERANCE) & ~is_own, "int32"), axis=1)
        is_finite = ops.isfinite(ops.squeeze(best, 1))
        super().update_state(ops.cast((above_own < self.k) & is_finite, self.dtype), sample_weight)

    def get_config(self):
        return {"of": self.of, "k": self.k, **super().get_config()}
