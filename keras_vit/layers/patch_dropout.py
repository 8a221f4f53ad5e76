"""Patch dropout: in training, the encoder computes a random part of the patch tokens."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.layers.configurable import Configurable
from keras_vit.layers.hints import FREE
from keras_vit.rules import number
from keras_vit.types import Tensor


@keras.saving.register_keras_serializable("keras_vit")
class PatchDropout(Configurable):
    """In training, keep a random subset of the patch tokens of each image, in their order.

    Of n patch tokens max(1, int(n · (1 - rate))) are kept, the same number for each image, and all prefix
    tokens. The kept tokens are not scaled.

    Args:
        rate: The fraction of the patch tokens that is dropped, in [0, 1).
        num_prefix_tokens: Number of tokens before the patch tokens.
        seed: Optional int that fixes the random numbers.

    Call arguments:
        tokens: (batch, num_prefix_tokens + patches, channels).
        positions: Optional list of tensors (2, rows, heads, size), as from `RotaryPositions`, whose rows are
            those of the last tokens.
        training: Whether tokens are dropped.

    Output: the kept tokens (batch, num_prefix_tokens + kept patches, channels); with positions a tuple of
        them and the list of their rows, in training (2, batch, kept rows, heads, size).

    Raises:
        ValueError: for a rate outside [0, 1).

    Example:
        >>> tokens = np.arange(9.0).reshape(1, 9, 1)
        >>> PatchDropout(0.5, num_prefix_tokens=1)(tokens).shape  # not in training
        TensorShape([1, 9, 1])
        >>> kept = PatchDropout(0.5, num_prefix_tokens=1)(tokens, training=True).numpy().ravel().tolist()
        >>> len(kept), kept[0], kept == sorted(kept)
        (5, 0.0, True)

    Source: Liu et al. 2022 (PatchDropout, arXiv 2208.07220); the number that is kept: timm's
    `layers/patch_dropout.py`, for its `patch_drop_rate`.
    """

    sharding = FREE

    def __init__(
        self, rate: float, num_prefix_tokens: int = 0, seed: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(autocast=False, **kwargs)  # of positions, which stay in float32
        self.rate = number(0, below=1).check("rate", rate)
        self.num_prefix_tokens, self.seed = num_prefix_tokens, seed
        # As in keras.layers.Dropout, a rate of 0 needs no random state.
        self.seed_generator = keras.random.SeedGenerator(seed) if rate else None

    def call(
        self, tokens: Tensor, positions: list[Tensor] | None = None, training: bool | None = None
    ) -> Any:
        tokens = ops.cast(tokens, self.compute_dtype)
        if not (training and self.rate):
            return tokens if positions is None else (tokens, positions)
        prefix = self.num_prefix_tokens
        batch, count = ops.shape(tokens)[0], ops.shape(tokens)[1] - prefix
        kept = ops.argsort(keras.random.uniform((batch, count), seed=self.seed_generator), axis=1)
        kept = ops.sort(kept[:, : self._kept(count)], axis=1)  # (b, k)
        patches = ops.take_along_axis(tokens[:, prefix:], ops.expand_dims(kept, -1), axis=1)
        tokens = ops.concatenate([tokens[:, :prefix], patches], axis=1)
        if positions is None:
            return tokens
        # Usually all blocks have the same tensor.
        taken = {id(table): _rows(table, kept, count) for table in positions}
        return tokens, [taken[id(table)] for table in positions]

    def _kept(self, count: int | Tensor) -> int | Tensor:
        """The number of patch tokens that are kept of `count`, an int, or a scalar inside a graph."""
        if isinstance(count, int):
            return max(1, int(count * (1 - self.rate)))
        kept = ops.cast(ops.cast(count, "float64") * (1 - self.rate), "int32")
        return ops.maximum(kept, 1)

    def compute_output_spec(
        self, tokens: Tensor, positions: list[Tensor] | None = None, training: bool | None = None
    ) -> Any:
        tokens = keras.KerasTensor(tokens.shape, self.compute_dtype)
        if positions is None:
            return tokens
        return tokens, [keras.KerasTensor(table.shape, table.dtype) for table in positions]


def _rows(table: Tensor, kept: Tensor, count: int | Tensor) -> Tensor:
    """The rows (2, batch, rows, heads, size) of the kept patches, after those of rotated registers."""
    first = ops.shape(table)[1] - count
    registers = ops.broadcast_to(ops.arange(first, dtype=kept.dtype), (ops.shape(kept)[0], first))
    return ops.take(table, ops.concatenate([registers, kept + ops.cast(first, kept.dtype)], axis=1), axis=1)
