"""Position embeddings on a grid, and their resizing to another grid."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.interpolation import INTERPOLATIONS, interpolation_weights
from keras_vit.layers.configurable import Configurable
from keras_vit.layers.hints import TABLE
from keras_vit.rules import one_of, pair
from keras_vit.types import ArrayOrTensor, Shape, Size, Tensor

KINDS = ("learned", "sincos2d", "none")


@keras.saving.register_keras_serializable("keras_vit")
class AddPositionEmbs(Configurable):
    """Add position embeddings to the tokens.

    Args:
        kind: "learned" (one learned vector per position, as in the paper), "sincos2d" (fixed sines and
            cosines of row and column) or "none" (nothing is added).
        grid_size: (rows, columns) of the stored table, or an int for a square. For tokens of another grid
            the table is resized (`resize_position_grid`).
        num_prefix_tokens: Number of tokens before the patch tokens. In a learned table each has a row of its
            own, before the rows of the grid, and is not resized; the fixed kinds add nothing to them.
        endpoint: Of "sincos2d": as in `sincos_2d`.
        interpolation: Of the resizing, as in `resize_position_grid`.

    Call arguments:
        tokens: (batch, num_prefix_tokens + rows · columns, channels).
        grid: Optional tensor (batch, rows, columns, …), of which only the shape is used: the grid of the
            patch tokens, by default `grid_size`.

    Output shape: that of the tokens.

    Raises:
        ValueError: for an unknown kind; for "sincos2d" with channels that 4 does not divide; if the number
            of tokens is not that of the grid and the prefix.

    Example:
        >>> layer = AddPositionEmbs(grid_size=(2, 3), num_prefix_tokens=1)
        >>> layer(np.zeros((2, 7, 8))).shape, layer.table.shape
        (TensorShape([2, 7, 8]), TensorShape([1, 7, 8]))

    Source: Dosovitskiy et al. 2021, section 3.1 and appendix D.4; "sincos2d" from Beyer et al. 2022
    (`big_vision`).
    """

    sharding = TABLE

    def __init__(
        self,
        kind: str = "learned",
        grid_size: Size = (14, 14),
        num_prefix_tokens: int = 0,
        endpoint: bool = True,
        interpolation: str = "bilinear",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        one_of(KINDS).check("kind", kind)
        one_of(INTERPOLATIONS).check("interpolation", interpolation)
        grid_size = pair(grid_size, "grid_size")
        self.store_arguments(locals())

    def build(self, tokens_shape: Shape, grid_shape: Shape | None = None) -> None:
        if self.kind == "learned":
            rows, columns = self.grid_size
            tokens = self.num_prefix_tokens + rows * columns
            self.table = self.add_embeddings("table", (1, tokens, tokens_shape[-1]))
        elif self.kind == "sincos2d":
            _check_channels(tokens_shape[-1])

    def call(self, tokens: Tensor, grid: Tensor | None = None) -> Tensor:
        self._check(tokens.shape, None if grid is None else grid.shape)
        if self.kind == "none":
            return tokens
        rows, columns = self.grid_size if grid is None else ops.shape(grid)[1:3]
        if self.kind == "sincos2d":
            positions = ops.cast(sincos_2d(rows, columns, tokens.shape[-1], self.endpoint), tokens.dtype)
            positions = ops.expand_dims(positions, 0)
            if self.num_prefix_tokens:
                positions = ops.pad(positions, ((0, 0), (self.num_prefix_tokens, 0), (0, 0)))
            return tokens + positions
        table = ops.convert_to_tensor(self.table)
        static = isinstance(rows, int) and isinstance(columns, int)
        if static and (rows, columns) == self.grid_size:
            return tokens + table
        prefix, positions = table[:, : self.num_prefix_tokens], table[:, self.num_prefix_tokens :]
        positions = ops.reshape(positions, (*self.grid_size, -1))
        positions = resize_position_grid(positions, (rows, columns), self.interpolation)
        positions = ops.reshape(positions, (1, rows * columns, tokens.shape[-1]))
        return tokens + ops.concatenate([prefix, positions], axis=1)

    def _check(self, tokens_shape: Shape, grid_shape: Shape | None) -> None:
        rows, columns = self.grid_size if grid_shape is None else grid_shape[1:3]
        expected = rows and columns and self.num_prefix_tokens + rows * columns
        if expected and tokens_shape[1] not in (None, expected):
            raise ValueError(
                f"expected {expected} tokens, for a grid of {rows}×{columns} and {self.num_prefix_tokens} "
                f"prefix tokens; got {tokens_shape[1]}"
            )

    def compute_output_shape(self, tokens_shape: Shape, grid_shape: Shape | None = None) -> Shape:
        self._check(tokens_shape, grid_shape)
        return tokens_shape


def resize_position_grid(
    grid: ArrayOrTensor, size: tuple[Any, Any], interpolation: str = "bilinear"
) -> ArrayOrTensor:
    """Resize a grid of vectors.

    Args:
        grid: (rows, columns, channels), a tensor or a NumPy array.
        size: (rows, columns) of the result; ints, or scalar tensors inside a graph.
        interpolation: "bilinear" keeps the centers of the corners (the paper's code). The others have
            half-pixel centers: "bilinear_half_pixel" and "bicubic" are torch's `interpolate` for a size
            (transformers), "bicubic_offset" for the scale (size + 0.1) / (rows or columns) (DINO, DINOv2),
            and "bilinear_antialias" (FlexiViT, NaFlex) and "bicubic_antialias" (timm, open_clip) have
            antialiasing. "bilinear_square", "bilinear_half_pixel_square" and "bicubic_antialias_square" cut a
            rectangle from the square of its longer side (C-RADIO, NaFlexVit of timm). "truncate" takes the
            upper left part (OWL-ViT).

    Returns:
        (rows, columns, channels): an array for an array, computed in float64 and given back in
        the array's type; else a tensor, computed in float32.

    Raises:
        ValueError: for "truncate" to a larger grid.

    Example:
        >>> grid = np.array([[0.0, 2.0], [4.0, 6.0]])[..., np.newaxis]
        >>> resize_position_grid(grid, (2, 3))[..., 0].tolist()
        [[0.0, 1.0, 2.0], [4.0, 5.0, 6.0]]

    Source: `vit_jax/checkpoint.py`, `interpolate_posembed`, whose `scipy.ndimage.zoom(order=1)` sets the last
    row and column to zero for some pairs of sizes, by rounding; `interpolate_pos_encoding` of transformers;
    `vision_transformer.py` of `facebookresearch/dino` and `dinov2`; timm's `resample_abs_pos_embed` and
    `naflexvit.py`; `big_vision/models/proj/flexi/vit.py`; `scenic/projects/owl_vit/clip/layers.py`.
    """
    is_array = isinstance(grid, np.ndarray)
    rule = INTERPOLATIONS[interpolation]
    known = all(isinstance(side, int | np.integer) for side in size)
    if rule.truncate and known and (size[0] > grid.shape[0] or size[1] > grid.shape[1]):
        raise ValueError(
            f"expected a grid of at most {grid.shape[0]}×{grid.shape[1]} for {interpolation!r}; got "
            f"{size[0]}×{size[1]}; 'bilinear' resizes to any"
        )
    numpy, as_float = (np, np.float64) if known else (ops, lambda x: ops.cast(x, "float32"))
    sides = [numpy.maximum(*size)] * 2 if rule.square else size
    by_row, by_column = (
        interpolation_weights(as_float(numpy.arange(count)), as_float(side), old, interpolation, numpy)
        for count, side, old in zip(size, sides, grid.shape)
    )
    if is_array:
        return np.einsum("ij,jkd,lk->ild", by_row, grid.astype("float64"), by_column).astype(grid.dtype)
    by_row, by_column, vectors = (ops.cast(x, "float32") for x in (by_row, by_column, grid))
    return ops.cast(ops.einsum("ij,jkd,lk->ild", by_row, vectors, by_column), grid.dtype)


def sincos_2d(rows: int | Tensor, columns: int | Tensor, channels: int, endpoint: bool = True) -> Tensor:
    """Fixed position embeddings: sines and cosines of the column, then of the row.

    Args:
        rows, columns: Size of the grid; ints, or scalar tensors inside a graph.
        channels: Length of a vector; 4 must divide it, and it must be at least 8.
        endpoint: Whether the lowest of the `channels / 4` frequencies is 1/10,000 (big_vision), or would be
            that of the next channel (MAE).

    Returns:
        Tensor (rows · columns, channels), float32.

    Raises:
        ValueError: for channels that 4 does not divide, or fewer than 8.

    Example:
        >>> sincos_2d(2, 3, 8).shape
        TensorShape([6, 8])

    Source: Beyer et al. 2022 (arXiv 2205.01580); `big_vision/models/vit.py`; `util/pos_embed.py` of
    facebookresearch/mae.
    """
    _check_channels(channels)
    omega = 1 / 10_000 ** np.linspace(0, 1, channels // 4, endpoint=endpoint)
    omega = ops.convert_to_tensor(omega, "float32")
    row, column = grid_positions(rows, columns)
    waves = [column * omega, row * omega]
    return ops.concatenate([f(wave) for wave in waves for f in (ops.sin, ops.cos)], axis=1)


def _check_channels(channels: int | None) -> None:
    if channels is None or channels % 4 or channels < 8:
        raise ValueError(f"sincos2d needs channels in multiples of 4, at least 8; got {channels}")


def grid_positions(rows: int | Tensor, columns: int | Tensor) -> list[Tensor]:
    """The row and the column of each position of a grid, row by row: two float32 tensors (positions, 1).

    >>> [axis[:, 0].numpy().tolist() for axis in grid_positions(2, 2)]
    [[0.0, 0.0, 1.0, 1.0], [0.0, 1.0, 0.0, 1.0]]
    """
    axes = ops.meshgrid(ops.arange(rows), ops.arange(columns), indexing="ij")
    return [ops.cast(ops.reshape(axis, (-1, 1)), "float32") for axis in axes]
