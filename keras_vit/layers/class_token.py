"""Learned tokens before the patch tokens: class, distillation, registers."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.layers.configurable import Configurable
from keras_vit.layers.hints import TOKEN
from keras_vit.rules import integer
from keras_vit.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class ClassToken(Configurable):
    """Prepend learned tokens, the same for every image.

    One token is the class token of the paper. DeiT's distillation token and the registers of
    Darcet et al. are the same layer under another name.

    Args:
        num_tokens: Number of tokens to prepend.
        initializer: Initializer of the tokens. The class token starts at zero.

    Input shape: (batch, tokens, channels).
    Output shape: (batch, num_tokens + tokens, channels).

    Raises:
        ValueError: if `num_tokens` is not a positive int.

    Example:
        >>> ClassToken()(np.ones((2, 4, 8))).shape
        TensorShape([2, 5, 8])

    Source: Dosovitskiy et al. 2021, section 3.1, equation 1; Touvron et al. 2021 (DeiT);
    Darcet et al. 2024 (registers).
    """

    sharding = TOKEN

    def __init__(
        self, num_tokens: int = 1, initializer: str | keras.initializers.Initializer = "zeros", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.num_tokens = integer(at_least=1).check("num_tokens", num_tokens)
        self.initializer = keras.initializers.get(initializer)

    def build(self, input_shape: Shape) -> None:
        self.token = self.add_weight(
            shape=(1, self.num_tokens, input_shape[-1]), initializer=self.initializer, name="token"
        )

    def call(self, tokens: Tensor) -> Tensor:
        batch, _, channels = ops.shape(tokens)
        prefix = ops.broadcast_to(self.token, (batch, self.num_tokens, channels))
        return ops.concatenate([prefix, tokens], axis=1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, tokens, channels = input_shape
        return (batch, tokens and tokens + self.num_tokens, channels)
