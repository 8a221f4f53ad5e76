"""The first step of the Vision Transformer: image to patches, and patches to vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.layers.configurable import Configurable
from keras_vit.layers.hints import COLUMNS
from keras_vit.rules import check_divisible, pair
from keras_vit.types import Shape, Size, Tensor


def extract_patches(images: Tensor, patch_size: Size) -> Tensor:
    """Split images into non-overlapping patches.

    A matmul of the result with the flattened kernel of a `PatchEmbedding` is that layer's output: a
    convolution whose stride equals its kernel size is a linear map of each patch.

    Args:
        images: Tensor (batch, height, width, channels) of any dtype.
        patch_size: Side of a patch in pixels, or (height, width). Both must divide the image.

    Returns:
        Tensor (batch, rows, columns, patch height · patch width · channels), pixels of a patch in
        row-major order with the channels last.

    Raises:
        ValueError: if the images have another rank, or the patch does not divide them.

    Example:
        >>> extract_patches(np.zeros((2, 32, 48, 3)), 16).shape
        TensorShape([2, 2, 3, 768])

    Source: Dosovitskiy et al. 2021, section 3.1.
    """
    patch_height, patch_width = pair(patch_size, "patch_size")
    images = ops.convert_to_tensor(images)
    if len(images.shape) != 4:
        raise ValueError(
            f"expected images of shape (batch, height, width, channels); got {tuple(images.shape)}"
        )
    check_divisible(images.shape[1:3], (patch_height, patch_width))
    batch, height, width, channels = ops.shape(images)
    rows, columns = height // patch_height, width // patch_width
    x = ops.reshape(images, (batch, rows, patch_height, columns, patch_width, channels))
    x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
    return ops.reshape(x, (batch, rows, columns, patch_height * patch_width * channels))


@keras.saving.register_keras_serializable("keras_vit")
class PatchEmbedding(Configurable):
    """Split the image into patches and project each to a vector of `hidden_size` channels.

    Args:
        hidden_size: Length of a patch's vector.
        patch_size: Side of a patch in pixels, or (height, width).
        use_bias: Whether the projection has a bias. The models of the paper have one; CLIP's do not.
        crop: Whether rows and columns that fill no patch are cut off at the bottom and right, as by a
            convolution; by default the patch must divide the image.
        padding: Rows and columns of zeros above and left of the image, as of a convolution with this padding:
            the patches begin so many pixels earlier, and their number stays the same.

    Input shape: (batch, height, width, channels).
    Output shape: (batch, height // patch height, width // patch width, hidden_size).

    Raises:
        ValueError: if a known height or width is smaller than the patch, or not divisible by it without
            `crop`.

    Example:
        >>> PatchEmbedding(hidden_size=64, patch_size=16)(np.zeros((2, 32, 48, 3))).shape
        TensorShape([2, 2, 3, 64])

    Source: Dosovitskiy et al. 2021, section 3.1, equation 1; layer `embedding` of `vit_jax`.
    """

    sharding = COLUMNS

    def __init__(
        self,
        hidden_size: int,
        patch_size: Size,
        use_bias: bool = True,
        crop: bool = False,
        padding: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        patch_size = pair(patch_size, "patch_size")
        self.store_arguments(locals())

    def build(self, input_shape: Shape) -> None:
        if len(input_shape) != 4:
            raise ValueError(
                f"expected images of shape (batch, height, width, channels); got {tuple(input_shape)}"
            )
        self._check(input_shape[1:3])
        self.kernel = self.add_weight(
            shape=(*self.patch_size, input_shape[-1], self.hidden_size),
            initializer="lecun_normal",
            name="kernel",
        )
        if self.use_bias:
            self.bias = self.add_weight(shape=(self.hidden_size,), initializer="zeros", name="bias")

    def call(self, images: Tensor) -> Tensor:
        # A convolution with this kernel computes the same, but TensorFlow's oneDNN convolution returns the
        # wrong shape for an empty batch (seen in 2.19 and 2.21).
        size = images.shape[1:3]
        self._check(size)
        covered = [side and side - side % patch for side, patch in zip(size, self.patch_size)]
        if covered != list(size):
            images = images[:, : covered[0], : covered[1]]
        if p := self.padding:
            images = ops.pad(images[:, :-p, :-p], ((0, 0), (p, 0), (p, 0), (0, 0)))
        patches = extract_patches(images, self.patch_size)  # (batch, rows, columns, pixels)
        x = ops.matmul(patches, ops.reshape(self.kernel, (-1, self.hidden_size)))
        return x + self.bias if self.use_bias else x

    def _check(self, size: Sequence[int | None]) -> None:
        if not self.crop:
            check_divisible(size, self.patch_size)
        elif any(side is not None and side < patch for side, patch in zip(size, self.patch_size)):
            raise ValueError(
                f"a grid of {size[0]}×{size[1]} (the image, or the stem's output) is smaller than the patch "
                f"of {self.patch_size[0]}×{self.patch_size[1]}"
            )

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, *size, _ = input_shape
        grid = (s and s // p for s, p in zip(size, self.patch_size, strict=True))
        return (batch, *grid, self.hidden_size)
