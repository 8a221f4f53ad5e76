"""Class logits from the cosine similarity of patches and classes."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.configurable import Configurable, HoldsModel
from keras_vit.layers.hints import Sharding
from keras_vit.rules import integer
from keras_vit.types import Shape, Tensor

_SMALLEST = 1e-6  # added to the lengths of vectors
_TINY = 1e-20  # added to mean squares
_PADDING_LOGIT = -1e6


@keras.saving.register_keras_serializable("keras_vit")
class ClassQueries(Configurable):
    """Logits of classes, each of which has a vector: cosine similarity, then a shift and a scale.

    Args:
        num_classes: Number of classes.
        size: Size of a vector.

    Call arguments:
        vectors: (batch, patches, size).
        shift, scale: (batch, patches, 1). The scale is elu(scale) + 1.

    Output shape: (batch, patches, num_classes), float32.

    Raises:
        ValueError: for a number that is not a positive int.

    Example:
        >>> zeros = np.zeros((1, 4, 1), "float32")
        >>> ClassQueries(3, 8)(np.ones((1, 4, 8), "float32"), zeros, zeros).shape
        TensorShape([1, 4, 3])

    Source: Minderer et al. 2022 (OWL-ViT, arXiv 2205.06230), section 3.1; `ClassPredictor` of its code.
    """

    sharding = Sharding({"queries": -2})

    def __init__(self, num_classes: int, size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = integer(at_least=1).check("num_classes", num_classes)
        self.size = integer(at_least=1).check("size", size)

    def build(self, *shapes: Shape) -> None:
        self.queries = self.add_embeddings("queries", (self.num_classes, self.size))

    def vectors_of_classes(self) -> Tensor:
        return self.queries

    def call(self, vectors: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        vectors, queries, shift, scale = (
            ops.cast(x, "float32") for x in (vectors, self.vectors_of_classes(), shift, scale)
        )
        similarity = ops.matmul(_normalized(vectors), ops.transpose(_normalized(queries)))
        return (similarity + shift) * _positive(scale)

    def compute_output_spec(self, vectors: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        return keras.KerasTensor((*vectors.shape[:2], self.num_classes), "float32")


class WordQueries(HoldsModel, ClassQueries):
    """The same with the vectors of texts, which a text tower computes at each call.

    Args:
        ids: int32 array (num_classes, length), the token ids of each class. A class whose ids begin with 0 is
            padding, with logits of -1e6.
        text_encoder: The model from ids to vectors.
    """

    def __init__(self, ids: np.ndarray, text_encoder: keras.Model, **kwargs: Any) -> None:
        super().__init__(len(ids), text_encoder.output.shape[-1], **kwargs)
        self.ids = np.asarray(ids, "int32")
        self.text_encoder = text_encoder

    def build(self, *shapes: Shape) -> None:
        pass

    def vectors_of_classes(self) -> Tensor:
        return self.text_encoder(self.ids)

    def call(self, vectors: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        logits = super().call(vectors, shift, scale)
        return ops.where(self.ids[:, 0] > 0, logits, _PADDING_LOGIT)


# The GPUs of phones and browsers have the operations below, but no ELU, sum or square root.


def _normalized(x: Tensor) -> Tensor:
    square = ops.mean(ops.square(x), axis=-1, keepdims=True)
    root = square * ops.rsqrt(square + _TINY)  # of the mean square; 0 without an infinite gradient at 0
    return x / (math.sqrt(x.shape[-1]) * root + _SMALLEST)


def _positive(x: Tensor) -> Tensor:
    """elu(x) + 1."""
    return ops.exp(-1.0 * ops.relu(-1.0 * x)) + ops.relu(x)
