"""Patch embedding at several patch sizes, by one kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.interpolation import interpolation_weights
from keras_vit.layers.hints import PARTS
from keras_vit.layers.patch_embedding import PatchEmbedding
from keras_vit.types import Shape, Tensor


def patch_resize_weights(old: int, new: int) -> np.ndarray:
    """The weights by which FlexiViT resizes an axis of a patch kernel (PI-resize).

    With the bilinear resize of a patch to the new size as the matrix B, they are pinv(Bᵀ): the kernel that
    gives the least squared error to the embedding of the patch by the old one.

    Args:
        old, new: The stored and the new side of a patch in pixels.

    Returns:
        float64 (new, old).

    Example:
        >>> patch_resize_weights(2, 2).round(6).tolist()
        [[1.0, 0.0], [0.0, 1.0]]

    Source: Beyer et al. 2023 (FlexiViT, arXiv 2212.08013), section 3.4;
    `big_vision/models/proj/flexi/vit.py`.
    """
    resize = interpolation_weights(np.arange(new), new, old, "bilinear_half_pixel")  # (new, old)
    return np.linalg.pinv(resize.T)


class FlexiblePatchEmbedding(keras.layers.Layer):
    """The embedding of patches of several sizes, by the kernel of a `PatchEmbedding` that is resized to each.

    The gradient of each size trains the stored kernel.

    Args:
        embedding: A built `PatchEmbedding`, whose square kernel has the stored size.
        patch_sizes: The sides in pixels that patches may have.

    Input shape: (batch, rows, columns, side · side · channels), as from `extract_patches`; the side may be
    known in the graph alone.
    Output shape: (batch, rows, columns, hidden_size).

    Raises:
        ValueError: for patches of another known size.

    Example:
        >>> embedding = keras_vit.layers.PatchEmbedding(hidden_size=6, patch_size=8)
        >>> embedding.build((None, 32, 32, 3))
        >>> flexible = FlexiblePatchEmbedding(embedding, (4, 8, 16))
        >>> [flexible(np.zeros((1, 32 // p, 32 // p, 3 * p * p))).shape[1] for p in (4, 8, 16)]
        [8, 4, 2]

    Source: Beyer et al. 2023 (FlexiViT, arXiv 2212.08013), section 3.4;
    `big_vision/models/proj/flexi/vit.py`.
    """

    sharding = PARTS

    def __init__(self, embedding: PatchEmbedding, patch_sizes: Sequence[int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.embedding, self.patch_sizes = embedding, tuple(patch_sizes)
        old, _ = embedding.patch_size
        self._resizes = [patch_resize_weights(old, new).astype("float32") for new in self.patch_sizes]

    def build(self, input_shape: Shape) -> None:
        """Nothing: the embedding has the weights."""

    def call(self, patches: Tensor) -> Tensor:
        kernel = ops.cast(self.embedding.kernel, "float32")
        channels, hidden_size = kernel.shape[2:]
        known = patches.shape[-1]
        side = self._side(ops.shape(patches)[-1] if known is None else known, channels)
        resize = self._resize(side)  # (side, stored side)
        kernel = ops.einsum("ij,jlcd->ilcd", resize, kernel)
        kernel = ops.einsum("kl,ilcd->ikcd", resize, kernel)
        kernel = ops.cast(ops.reshape(kernel, (side * side * channels, hidden_size)), self.compute_dtype)
        if known is None:  # A matmul of matrices takes a size that only the graph knows.
            batch, rows, columns, pixels = ops.shape(patches)
            x = ops.matmul(ops.reshape(patches, (batch * rows * columns, pixels)), kernel)
            x = ops.reshape(x, (batch, rows, columns, hidden_size))
        else:
            x = ops.matmul(patches, kernel)
        return x + self.embedding.bias if self.embedding.use_bias else x

    def _side(self, pixels: int | Tensor, channels: int) -> int | Tensor:
        if not isinstance(pixels, int):
            return ops.cast(ops.round(ops.sqrt(ops.cast(pixels // channels, "float32"))), "int32")
        side = math.isqrt(pixels // channels)
        if side not in self.patch_sizes or side * side * channels != pixels:
            sizes = ", ".join(map(str, self.patch_sizes))
            raise ValueError(
                f"expected patches with a side of {sizes} pixels and {channels} channels; got {pixels} values"
            )
        return side

    def _resize(self, side: int | Tensor) -> Tensor:
        """The weights of an axis for patches of a side."""
        if isinstance(side, int):
            return ops.convert_to_tensor(self._resizes[self.patch_sizes.index(side)])
        largest = max(self.patch_sizes)
        padded = [np.pad(weights, ((0, largest - len(weights)), (0, 0))) for weights in self._resizes]
        index = ops.argmax(ops.equal(ops.convert_to_tensor(self.patch_sizes, "int32"), side))
        return ops.take(ops.convert_to_tensor(np.stack(padded)), index, axis=0)[:side]

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:-1], self.embedding.hidden_size)
