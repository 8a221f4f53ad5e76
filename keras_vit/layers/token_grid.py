"""Conversion between the grid of patches and the sequence of tokens."""

from __future__ import annotations

import keras
from keras import ops

from keras_vit.layers.configurable import Configurable
from keras_vit.layers.hints import PARTS
from keras_vit.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class GridToTokens(Configurable):
    """Flatten a grid of vectors into a sequence, row by row.

    Input shape: (batch, height, width, channels).
    Output shape: (batch, height · width, channels).

    Example:
        >>> GridToTokens()(np.zeros((2, 3, 4, 8))).shape
        TensorShape([2, 12, 8])

    Source: Dosovitskiy et al. 2021, section 3.1.
    """

    sharding = PARTS

    def call(self, grid: Tensor) -> Tensor:
        batch, height, width, channels = ops.shape(grid)
        return ops.reshape(grid, (batch, height * width, channels))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, height, width, channels = input_shape
        return (batch, height and width and height * width, channels)


@keras.saving.register_keras_serializable("keras_vit")
class TokensToGrid(Configurable):
    """Reshape tokens to the grid that they came from, without the prefix tokens before them.

    Call arguments:
        tokens: (batch, prefix + height · width, channels).
        grid: Any tensor (batch, height, width, …) of that grid; only its shape is used.

    Output shape: (batch, height, width, channels).

    Example:
        >>> TokensToGrid()(np.zeros((2, 13, 8)), np.zeros((2, 3, 4, 5))).shape
        TensorShape([2, 3, 4, 8])

    Source: dense features as `logits_2d` of `big_vision/models/vit.py`.
    """

    def call(self, tokens: Tensor, grid: Tensor) -> Tensor:
        batch, num_tokens, channels = ops.shape(tokens)
        height, width = ops.shape(grid)[1:3]
        patches = tokens[:, num_tokens - height * width :]
        return ops.reshape(patches, (batch, height, width, channels))

    def compute_output_spec(self, tokens: Tensor, grid: Tensor) -> Tensor:
        return keras.KerasTensor((tokens.shape[0], *grid.shape[1:3], tokens.shape[-1]), self.compute_dtype)
