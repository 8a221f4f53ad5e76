"""Bilinear interpolation with the corners' centers in their places."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.configurable import Configurable
from keras_vit.types import Tensor


@keras.saving.register_keras_serializable("keras_vit")
class AlignedResize(Configurable):
    """Resize a grid bilinearly, with the corners' centers in their places.

    Call arguments:
        grid: (batch, rows, columns, channels).
        target: (batch, height, width, …), of which only the shape is used; None for twice the size.

    Output shape: (batch, height, width, channels).

    Example:
        >>> AlignedResize()(np.zeros((1, 2, 2, 8)), np.zeros((1, 16, 24, 3))).shape
        TensorShape([1, 16, 24, 8])

    Source: Ranftl et al. 2021 (DPT), appendix, the head for depth.
    """

    def call(self, grid: Tensor, target: Tensor | None = None) -> Tensor:
        height, width = ops.shape(grid)[1:3]
        return aligned_resize(grid, (2 * height, 2 * width) if target is None else ops.shape(target)[1:3])

    # A subclass has further arguments.
    def compute_output_spec(
        self, grid: Tensor, target: Tensor | None = None, *more: Any, **options: Any
    ) -> Tensor:
        sides = [side and 2 * side for side in grid.shape[1:3]] if target is None else target.shape[1:3]
        return keras.KerasTensor((grid.shape[0], *sides, grid.shape[-1]), self.compute_dtype)


def aligned_resize(x: Tensor, size: tuple[int | Tensor, int | Tensor]) -> Tensor:
    """Resize grids (batch, height, width, channels) bilinearly, with the corners' centers in their places.

    Args:
        x: A tensor of floats.
        size: (height, width).

    Returns:
        A tensor of the same dtype.

    Example:
        >>> aligned_resize(np.array([0.0, 3.0]).reshape(1, 1, 2, 1), (1, 4)).numpy().ravel().tolist()
        [0.0, 1.0, 2.0, 3.0]

    Source: `align_corners=True` of torch's `interpolate`.
    """
    if keras.backend.backend() == "tensorflow":
        # One operation on all devices and in exports, instead of products with matrices.
        import tensorflow as tf

        x = ops.convert_to_tensor(x)
        resized = tf.raw_ops.ResizeBilinear(images=x, size=size, align_corners=True)
        return ops.cast(resized, x.dtype)
    resized = ops.cast(x, "float32")
    for axis, length in zip((1, 2), size):  # without products with matrices, which GPUs and TPUs would round
        places = np.arange(length) * (x.shape[axis] - 1) / max(length - 1, 1)
        first = np.floor(places).astype("int32")
        second = np.minimum(first + 1, x.shape[axis] - 1)
        weight = np.float32(places - first).reshape([-1 if axis == i else 1 for i in range(4)])
        before, after = (ops.take(resized, index, axis=axis) for index in (first, second))
        resized = before + weight * (after - before)
    return ops.cast(resized, x.dtype)
