"""Masked patches: the learned mask token."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.layers.configurable import Configurable
from keras_vit.layers.hints import TOKEN
from keras_vit.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class MaskTokens(Configurable):
    """Put the learned mask token, or a token of the same image, at each position.

    Args:
        initializer: Initializer of the mask token.

    Call arguments (inputs):
        tokens: (batch, tokens, channels).
        sources: Integers (batch, positions): the index of the token that each position gets; -1 for the mask
            token. 0, 1, 2, … leaves all tokens in place.

    Output shape: (batch, positions, channels).

    Example:
        >>> tokens = np.array([[[1.0], [2.0], [3.0]]])
        >>> MaskTokens(initializer="zeros")(tokens, np.array([[0, -1, 0]])).numpy().ravel().tolist()
        [1.0, 0.0, 1.0]

    Source: Dosovitskiy et al. 2021, appendix B.1.2; Devlin et al. 2019 (BERT), section 3.1; He et al. 2022
    (MAE), section 3.
    """

    sharding = TOKEN
    is_head = True

    def __init__(
        self, initializer: str | keras.initializers.Initializer = "random_normal", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.initializer = keras.initializers.get(initializer)

    def build(self, tokens_shape: Shape, sources_shape: Shape | None = None) -> None:
        self.token = self.add_weight(
            shape=(1, 1, tokens_shape[-1]), initializer=self.initializer, name="token"
        )

    def call(self, tokens: Tensor, sources: Tensor) -> Tensor:
        batch, _, channels = ops.shape(tokens)
        mask = ops.broadcast_to(self.token, (batch, 1, channels))
        choices = ops.concatenate([mask, tokens], axis=1)  # source -1 comes first
        sources = ops.expand_dims(ops.cast(sources, "int32") + 1, -1)
        return ops.take_along_axis(choices, sources, axis=1)

    def compute_output_spec(self, tokens: Tensor, sources: Tensor) -> Tensor:
        return keras.KerasTensor((*sources.shape, tokens.shape[-1]), self.compute_dtype)
