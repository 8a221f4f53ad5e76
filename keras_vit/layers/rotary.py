"""Rotary positions: query and key are rotated by angles that depend on the patch's row and column."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.configurable import Configurable
from keras_vit.layers.hints import FREE
from keras_vit.layers.position_embedding import grid_positions
from keras_vit.rules import SIZE, boolean, number, one_of, optional, pair
from keras_vit.types import Shape, Size, Tensor

KINDS = {"axial": 10_000.0, "mixed": 10.0, "dinov3": 100.0}  # and their usual bases
ORDERS = ("yx", "xy")
REGISTER_BASE = 100.0  # of ViT-5's registers
RULES = {
    "kind": one_of(KINDS),
    "base": optional(number(above=1)),
    "reference_grid": optional(SIZE),
    "order": one_of(ORDERS),
    "offset": number(),
    "rotate_registers": boolean,
}


def rotary_options(value: str | Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `RotaryPositions` that define the positions, complete and checked.

    Args:
        value: A kind, or a dict of arguments with `kind`.

    Raises:
        ValueError: for an unknown argument, a value out of its range, or arguments that the kind does not
            have.

    Example:
        >>> rotary_options("dinov3")["base"], rotary_options({"kind": "axial", "order": "xy"})["order"]
        (100.0, 'xy')
    """
    arguments = {"kind": value} if isinstance(value, str) else dict(value)
    if unknown := sorted(arguments.keys() - RULES.keys()):
        raise ValueError(f"rotary has no argument {', '.join(unknown)}; its arguments are {', '.join(RULES)}")
    options: dict[str, Any] = {"kind": None, "base": None, "reference_grid": None, "order": "yx"}
    options |= {"offset": 0.0, "rotate_registers": False, **arguments}
    for name, rule in RULES.items():
        rule.check(f"rotary: {name}", options[name])
    options["base"] = float(options["base"] or KINDS[options["kind"]])
    options["offset"] = float(options["offset"])
    if options["reference_grid"] is not None:
        options["reference_grid"] = pair(options["reference_grid"], "reference_grid")
    if options["kind"] != "axial" and (options["reference_grid"] or options["offset"]):
        raise ValueError(f"reference_grid and offset belong to kind='axial'; got {options}")
    return options


@keras.saving.register_keras_serializable("keras_vit")
class RotaryPositions(Configurable):
    """The cosines and sines by which a block rotates the query and key of each patch.

    Computed in float32 for the grid of the image. A patch in row y and column x of H × W, in a head of
    size d, has d / 2 angles. For the first and the second coordinate, and j = 0 … d / 4 - 1, they are

    * "axial": `coordinate · base^(-4j / d)`, with the coordinates `(y + offset) · R / H` and
      `(x + offset) · C / W` for a reference grid of R × C, or `y + offset` and `x + offset` without one;
    * "dinov3": `2π · coordinate · base^(-4j / d)`, with the coordinates `2 (y + 1/2) / H - 1` and
      `2 (x + 1/2) / W - 1`;
    * "mixed": `first · f_0 + second · f_1` with learned frequencies f of each block and head.

    Args:
        kind: "axial" (EVA-02, Perception Encoder, RoPE-ViT), "mixed" (RoPE-ViT) or "dinov3".
        head_size: Size d of a head's vectors; 4 must divide it.
        num_heads, num_layers: Of the encoder; used by "mixed".
        base: Base of the frequencies; None for the kind's: 10,000, 10 (for the initial values) or 100.
        reference_grid: (rows, columns) of the grid that the model was trained on, or None.
        order: "yx" if the row is the first coordinate, or "xy".
        offset: Added to row and column before they are scaled to the reference grid.
        num_registers: Number of register tokens, directly before the patches, that are rotated like a square
            grid with a base of 100 (ViT-5).
        max_rescale: In training, all coordinates are multiplied by one random factor a step, log-uniform in
            [1 / max_rescale, max_rescale] (DINOv3); None for no factor.
        seed: Optional int that fixes the random numbers.

    Call arguments:
        grid: Tensor (batch, rows, columns, …), of which only the shape is used.
        training: Whether the coordinates are rescaled.

    Output: a list of one tensor for each block, float32 (2, tokens, heads or 1, d / 2), cosines then sines,
        for the last `tokens` tokens: the patches, and rotated registers before them.

    Raises:
        ValueError: for an unknown kind or order, a head size that 4 does not divide, or a number of rotated
            registers that is not a square.

    Example:
        >>> positions = RotaryPositions("dinov3", head_size=8, num_layers=2)(np.zeros((1, 2, 3, 8)))
        >>> len(positions), positions[0].shape
        (2, TensorShape([2, 6, 1, 4]))

    Source: Su et al. 2021 (arXiv 2104.09864); Fang et al. 2023 (EVA-02); Heo et al. 2024 (RoPE-ViT, arXiv
    2403.13298); Siméoni et al. 2025 (DINOv3, arXiv 2508.10104).
    """

    sharding = FREE

    def __init__(
        self,
        kind: str,
        head_size: int,
        num_heads: int = 1,
        num_layers: int = 1,
        base: float | None = None,
        reference_grid: Size | None = None,
        order: str = "yx",
        offset: float = 0.0,
        num_registers: int = 0,
        max_rescale: float | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)  # Angles need float32 under mixed precision.
        self.store_arguments(locals())
        if head_size % 4:
            raise ValueError(f"rotary positions need heads of a size that 4 divides; got {head_size}")
        if math.isqrt(num_registers) ** 2 != num_registers:
            raise ValueError(f"rotated registers must be a square number; got {num_registers}")
        options: dict[str, Any] = {"kind": kind, "base": base, "reference_grid": reference_grid}
        options = rotary_options({**options, "order": order, "offset": offset})
        self.base, self.offset = options["base"], options["offset"]
        self.reference_grid = options["reference_grid"]
        self.seed_generator = keras.random.SeedGenerator(seed) if max_rescale else None

    def build(self, grid_shape: Shape) -> None:
        if self.kind == "mixed":
            self.frequencies = self.add_weight(
                shape=(2, self.num_layers, self.num_heads, self.head_size // 2),
                initializer=self._initial_frequencies,
                autocast=False,
                name="frequencies",
            )

    def _initial_frequencies(self, shape: Sequence[int], dtype: str | None = None) -> Tensor:
        """Magnitudes of an axial table, and a random direction for each block and head."""
        magnitudes = ops.tile(_frequencies(self.head_size, self.base), 2)
        direction = keras.random.uniform((*shape[1:3], 1), 0, 2 * math.pi)
        turned = direction + math.pi / 2 * ops.cast(ops.arange(shape[3]) >= shape[3] // 2, "float32")
        return ops.cast(magnitudes * ops.stack([ops.cos(turned), ops.sin(turned)]), dtype)

    def call(self, grid: Tensor, training: bool | None = None) -> list[Tensor]:
        rows, columns = ops.shape(grid)[1:3]
        coordinates: Sequence[Tensor] = self._coordinates(rows, columns)
        if training and self.max_rescale:
            limit = math.log(self.max_rescale)
            factor = ops.exp(keras.random.uniform((), -limit, limit, seed=self.seed_generator))
            coordinates = [coordinate * factor for coordinate in coordinates]
        if self.kind == "mixed":
            first, second = (ops.expand_dims(coordinate, 1) for coordinate in coordinates)
            frequencies = ops.unstack(ops.cast(self.frequencies, "float32"), axis=1)  # of each block
            angles = [first * f[0] + second * f[1] for f in frequencies]
        else:
            frequencies = _frequencies(self.head_size, self.base)
            frequencies = frequencies * 2 * math.pi if self.kind == "dinov3" else frequencies
            angles = [_axial(coordinates, frequencies)]
        if self.num_registers:
            side = math.isqrt(self.num_registers)
            registers = _axial(grid_positions(side, side), _frequencies(self.head_size, REGISTER_BASE))
            shape = (self.num_registers, *angles[0].shape[1:])
            angles = [ops.concatenate([ops.broadcast_to(registers, shape), a], axis=0) for a in angles]
        tables = [ops.stack([ops.cos(a), ops.sin(a)]) for a in angles]
        return tables if self.kind == "mixed" else tables * self.num_layers

    def _coordinates(self, rows: int | Tensor, columns: int | Tensor) -> tuple[Tensor, Tensor]:
        """The first and the second coordinate of each patch, row by row."""
        y, x = grid_positions(rows, columns)
        rows, columns = ops.cast(rows, "float32"), ops.cast(columns, "float32")
        if self.kind == "dinov3":
            y, x = 2 * (y + 0.5) / rows - 1, 2 * (x + 0.5) / columns - 1
        else:
            y, x = y + self.offset, x + self.offset
            if self.reference_grid is not None:
                y, x = y / rows * self.reference_grid[0], x / columns * self.reference_grid[1]
        return (y, x) if self.order == "yx" else (x, y)

    def compute_output_spec(self, grid: Tensor, training: bool | None = None) -> Any:
        rows, columns = grid.shape[1:3]
        tokens = rows and columns and rows * columns + self.num_registers
        heads = self.num_heads if self.kind == "mixed" else 1
        shape = (2, tokens, heads, self.head_size // 2)
        return [keras.KerasTensor(shape, "float32") for _ in range(self.num_layers)]


def _frequencies(head_size: int, base: float) -> Tensor:
    exponents = ops.arange(head_size // 4, dtype="float32") * (4 / head_size)
    return 1 / ops.power(ops.cast(base, "float32"), exponents)


def _axial(coordinates: Iterable[Tensor], frequencies: Tensor) -> Tensor:
    """The angles of both coordinates: (positions, 1, 2 · frequencies)."""
    return ops.concatenate([ops.expand_dims(each * frequencies, 1) for each in coordinates], axis=-1)


def rotate(x: Tensor, positions: Tensor, interleaved: bool) -> Tensor:
    """Rotate pairs of channels of the last tokens; the tokens before these stay as they are.

    Args:
        x: Query or key (batch, tokens, heads, head size).
        positions: What `RotaryPositions` returns for the block, or with an axis of the batch before the
            tokens.
        interleaved: Whether the pairs are channels 2j and 2j + 1, or j and head size / 2 + j.

    Returns:
        Tensor like `x`; the rotation is computed in float32.

    Example:
        >>> x = np.arange(4.0).reshape(1, 1, 1, 4)
        >>> quarter = np.array([[0.0, 0.0], [1.0, 1.0]]).reshape(2, 1, 1, 2)
        >>> rotate(x, quarter, interleaved=True).numpy().ravel().tolist()
        [-1.0, 0.0, -3.0, 2.0]
        >>> rotate(x, quarter, interleaved=False).numpy().ravel().tolist()
        [-2.0, -3.0, 0.0, 1.0]

    Source: Su et al. 2021, equation 34; GPT-NeoX for the second form.
    """
    x, positions = ops.convert_to_tensor(x), ops.convert_to_tensor(positions, "float32")
    cos, sin = positions[0], positions[1]  # ([batch,] rotated tokens, heads or 1, head size / 2)
    size, prefix = x.shape[-1], ops.shape(x)[1] - ops.shape(positions)[-3]
    rotated = x[:, prefix:]
    if interleaved:
        # Shifts take as long on CPUs as a product with a permutation, which GPUs and TPUs would round.
        following, preceding = (ops.cast(ops.roll(rotated, by, axis=-1), "float32") for by in (-1, 1))
        cos, sin = (ops.repeat(table, 2, axis=-1) for table in (cos, sin))
        is_odd = ops.convert_to_tensor(np.arange(size, dtype="float32") % 2)  # PyTorch multiplies no arrays
        rotated = ops.cast(rotated, "float32") * cos
        rotated = rotated + following * (sin * (is_odd - 1)) + preceding * (sin * is_odd)
    else:
        rotated = ops.cast(rotated, "float32")
        first, second = rotated[..., : size // 2], rotated[..., size // 2 :]
        rotated = ops.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    rotated = ops.cast(rotated, x.dtype)
    if isinstance(prefix, int) and prefix == 0:  # LiteRT would take an empty slice for all tokens.
        return rotated
    return ops.concatenate([x[:, :prefix], rotated], axis=1)
