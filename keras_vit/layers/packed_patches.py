"""Packed patches of images of any aspect ratio: the patches of an image row by row, then padding (NaFlex)."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.interpolation import INTERPOLATIONS, interpolation_weights
from keras_vit.layers.attention import masking_bias
from keras_vit.layers.configurable import Configurable
from keras_vit.layers.hints import TABLE
from keras_vit.rules import one_of, pair
from keras_vit.types import Shape, Size, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class PackedPositionEmbs(Configurable):
    """Add position embeddings to packed patches, resized to the grid of each image.

    It is one matmul of the table with the weights of all patches, so that its shapes do not depend on the
    grids.

    Args:
        grid_size: (rows, columns) of the learned table, or an int for a square.
        interpolation: Of the resizing, as in `resize_position_grid`, except "truncate".

    Call arguments:
        tokens: (batch, patches, channels).
        grids: int (batch, 2), the rows and columns of the patches of each image.

    Output shape: that of the tokens; padding gets embeddings without a meaning.

    Example:
        >>> layer = PackedPositionEmbs((4, 4))
        >>> layer(np.zeros((2, 9, 8)), np.array([[3, 3], [1, 6]])).shape
        TensorShape([2, 9, 8])

    Source: `_pos_emb_resize` of `big_vision/models/proj/image_text/naflex_vit.py`; Dehghani et al. 2023
    (NaViT, arXiv 2307.06304).
    """

    sharding = TABLE

    def __init__(self, grid_size: Size, interpolation: str = "bilinear_antialias", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        one_of(n for n, rule in INTERPOLATIONS.items() if not rule.truncate).check(
            "interpolation", interpolation
        )
        self.grid_size, self.interpolation = pair(grid_size, "grid_size"), interpolation

    def build(self, tokens_shape: Shape, grids_shape: Shape | None = None) -> None:
        rows, columns = self.grid_size
        self.table = self.add_embeddings("table", (1, rows * columns, tokens_shape[-1]))

    def call(self, tokens: Tensor, grids: Tensor) -> Tensor:
        batch, count, _ = ops.shape(tokens)
        # A batch that is filled up with zeros has images without patches.
        rows, columns = ops.split(ops.maximum(ops.cast(grids, "int32"), 1), 2, axis=1)  # (b, 1) each
        number = ops.expand_dims(ops.arange(count, dtype="int32"), 0)
        row = ops.minimum(number // columns, rows - 1)  # (b, n)
        is_square = INTERPOLATIONS[self.interpolation].square
        sides = (ops.maximum(rows, columns),) * 2 if is_square else (rows, columns)
        by_row, by_column = (  # (b, n, R), (b, n, C)
            interpolation_weights(
                ops.cast(index, "float32"), ops.cast(new, "float32"), old, self.interpolation, ops
            )
            for index, new, old in zip((row, number % columns), sides, self.grid_size)
        )
        weights = ops.expand_dims(by_row, 3) * ops.expand_dims(by_column, 2)
        weights = ops.reshape(weights, (batch, count, self.grid_size[0] * self.grid_size[1]))
        table = ops.convert_to_tensor(self.table)[0]
        return tokens + ops.matmul(ops.cast(weights, table.dtype), table)


@keras.saving.register_keras_serializable("keras_vit")
class PaddingBias(Configurable):
    """A bias of the attention's scores, by which no token attends to the padding after packed patches.

    Call arguments:
        tokens: (batch, patches, …), of which only the shape is used.
        grids: int (batch, 2), the rows and columns of the patches of each image.

    Output shape: (batch, 1, 1, patches), float32: 0, or a large negative number for padding.

    Example:
        >>> PaddingBias()(np.zeros((1, 3, 8)), np.array([[1, 2]]))[0, 0, 0].numpy().tolist()
        [0.0, 0.0, -1000000000.0]

    Source: the masks of `big_vision/models/proj/image_text/naflex_vit.py`.
    """

    def call(self, tokens: Tensor, grids: Tensor) -> Tensor:
        batch, count = ops.shape(tokens)[:2]
        patches = ops.prod(ops.cast(grids, "int32"), axis=1, keepdims=True)
        is_padding = ops.expand_dims(ops.arange(count, dtype="int32"), 0) >= patches
        return ops.reshape(masking_bias(is_padding), (batch, 1, 1, count))

    def compute_output_spec(self, tokens: Tensor, grids: Tensor) -> Any:
        batch, count = tokens.shape[:2]
        return keras.KerasTensor((batch, 1, 1, count), "float32")
