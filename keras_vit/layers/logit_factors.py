"""From embeddings of images and texts to vectors whose products are the logits of their pairs."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from keras_vit.layers.configurable import Configurable
from keras_vit.layers.hints import FREE
from keras_vit.rules import one_of
from keras_vit.types import Shape, Tensor

OBJECTIVES = {
    "sigmoid": (math.log(10.0), -10.0),
    "softmax": (math.log(1 / 0.07), None),
}  # scale and bias at first
MAX_SCALE = math.log(100.0)  # of "softmax", in training


@keras.saving.register_keras_serializable("keras_vit")
class LogitFactors(Configurable):
    """Two vectors of each pair, so that image · text is the logit of any image and any text of a batch.

    The logit of embeddings z of length 1 is exp(t) z · z' + b, the product of (exp(t) z, b) and (z', 1).

    Args:
        objective: "sigmoid" (SigLIP: t starts at ln 10, b at -10) or "softmax" (CLIP: t starts at
            ln(1 / 0.07), and training keeps it at ln 100 or less; there is no b).

    Call arguments:
        images, texts: (batch, size), of length 1.

    Output shape: (batch, 2, size + 1) with "sigmoid", (batch, 2, size) with "softmax"; the image is first.

    Raises:
        ValueError: for an unknown objective.

    Example:
        >>> pairs = LogitFactors("sigmoid")(np.eye(2), np.eye(2))
        >>> np.round(pairs[:, 0] @ pairs[:, 1].numpy().T, 4).tolist()
        [[0.0, -10.0], [-10.0, 0.0]]

    Source: Zhai et al. 2023 (SigLIP, arXiv 2303.15343), section 3.2; Radford et al. 2021 (CLIP), section 2.5.
    """

    sharding = FREE

    def __init__(self, objective: str = "sigmoid", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.objective = one_of(OBJECTIVES).check("objective", objective)

    def build(self, images_shape: Shape, texts_shape: Shape | None = None) -> None:
        def number(
            name: str, value: float, constraint: keras.constraints.Constraint | None = None
        ) -> keras.Variable:
            start = keras.initializers.Constant(value)
            return self.add_weight(shape=(), initializer=start, constraint=constraint, name=name)

        scale, bias = OBJECTIVES[self.objective]
        self.scale = number("scale", scale, _AtMost100() if bias is None else None)
        self.bias = None if bias is None else number("bias", bias)

    def call(self, images: Tensor, texts: Tensor) -> Tensor:
        images = images * ops.exp(self.scale)
        if self.bias is not None:
            ones = ops.ones_like(images[:, :1])
            images = ops.concatenate([images, ones * self.bias], axis=1)
            texts = ops.concatenate([texts, ones], axis=1)
        return ops.stack([images, texts], axis=1)

    def compute_output_shape(self, images_shape: Shape, texts_shape: Shape | None = None) -> Shape:
        return (images_shape[0], 2, images_shape[-1] + (self.objective == "sigmoid"))


class _AtMost100(keras.constraints.Constraint):
    def __call__(self, scale: Tensor) -> Tensor:
        return ops.minimum(scale, MAX_SCALE)
