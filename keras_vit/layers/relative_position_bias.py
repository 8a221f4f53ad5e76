"""Relative position bias: a learned number for each head and offset between two patches."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.layers.configurable import Configurable
from keras_vit.layers.hints import Sharding
from keras_vit.rules import pair
from keras_vit.types import Shape, Size, Tensor

PREFIX_PAIRS = 3  # class token to patch, patch to class token, class token to itself


@keras.saving.register_keras_serializable("keras_vit")
class RelativePositionIndex(Configurable):
    """The row of a `RelativePositionBias` table for each pair of tokens.

    Args:
        class_token: Whether a class token comes before the patches.

    Call arguments:
        grid: Tensor (batch, rows, columns, …), of which only the shape is used.

    Output shape: int32 (tokens, tokens), by query and key.

    Example:
        >>> RelativePositionIndex()(np.zeros((1, 1, 2, 8))).numpy().tolist()
        [[5, 3, 3], [4, 1, 0], [4, 2, 1]]

    Source: Bao et al. 2021 (BEiT, arXiv 2106.08254), whose index has these values.
    """

    def __init__(self, class_token: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.class_token = class_token

    def call(self, grid: Tensor) -> Tensor:
        rows, columns = ops.shape(grid)[1:3]
        by_row = ops.expand_dims(ops.arange(rows), 1) - ops.arange(rows) + rows - 1
        by_column = ops.expand_dims(ops.arange(columns), 1) - ops.arange(columns) + columns - 1
        by_row = ops.reshape(by_row, (rows, 1, rows, 1)) * (2 * columns - 1)
        index = by_row + ops.reshape(by_column, (1, columns, 1, columns))
        index = ops.cast(ops.reshape(index, (rows * columns, rows * columns)), "int32")
        if not self.class_token:
            return index
        last = ops.cast((2 * rows - 1) * (2 * columns - 1), "int32")
        single, many = (1, 1), rows * columns
        from_class = ops.concatenate(
            [ops.full(single, last + 2, "int32"), ops.full((1, many), last, "int32")], axis=1
        )
        index = ops.concatenate([ops.full((many, 1), last + 1, "int32"), index], axis=1)
        return ops.concatenate([from_class, index], axis=0)

    def compute_output_spec(self, grid: Tensor) -> Any:
        rows, columns = grid.shape[1:3]
        tokens = rows and columns and rows * columns + self.class_token
        return keras.KerasTensor((tokens, tokens), "int32")


@keras.saving.register_keras_serializable("keras_vit")
class RelativePositionBias(Configurable):
    """A learned bias of the attention logits for each head and offset between query and key.

    Args:
        num_heads: Number of attention heads.
        grid_size: (rows, columns) of the patches.
        class_token: Whether a class token comes before the patches.

    Call arguments:
        index: Rows of what `RelativePositionIndex` returns: (queries, keys).

    Output shape: (heads, queries, keys).

    Example:
        >>> index = RelativePositionIndex()(np.zeros((1, 2, 3, 8)))
        >>> RelativePositionBias(num_heads=4, grid_size=(2, 3))(index).shape
        TensorShape([4, 7, 7])

    Source: Bao et al. 2021 (BEiT, arXiv 2106.08254), after Liu et al. 2021 (Swin).
    """

    sharding = Sharding({"table": -1}, output=None)

    def __init__(self, num_heads: int, grid_size: Size, class_token: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.grid_size = pair(grid_size, "grid_size")
        self.class_token = class_token

    def build(self, index_shape: Shape | None = None) -> None:
        rows, columns = self.grid_size
        offsets = (2 * rows - 1) * (2 * columns - 1) + PREFIX_PAIRS * self.class_token
        self.table = self.add_weight(
            shape=(offsets, self.num_heads),
            initializer=keras.initializers.TruncatedNormal(stddev=0.02),
            name="table",
        )

    def call(self, index: Tensor) -> Tensor:
        bias = ops.take(ops.convert_to_tensor(self.table), index, axis=0)  # (queries, keys, heads)
        return ops.transpose(bias, (2, 0, 1))

    def compute_output_shape(self, index_shape: Shape) -> Shape:
        return (self.num_heads, *index_shape)
