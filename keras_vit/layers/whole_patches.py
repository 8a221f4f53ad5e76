"""Images of any size, resized to whole patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.layers.configurable import Configurable
from keras_vit.layers.segmentation_head import resize
from keras_vit.rules import pair
from keras_vit.types import Shape, Size, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class WholePatches(Configurable):
    """Resize images bilinearly to the next size that patches fill; images of such a size stay as they are.

    Args:
        patch_size: Side of a patch in pixels, or (height, width).

    Input shape: (batch, height, width, channels).
    Output shape: (batch, height, width, channels), with the sides rounded up to multiples of the patch's.

    Example:
        >>> WholePatches(16)(np.zeros((1, 33, 48, 3))).shape
        TensorShape([1, 48, 48, 3])

    Source: `ensure_multiple_of` of transformers' `DPTImageProcessor`, there with the nearest multiple.
    """

    def __init__(self, patch_size: Size, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)  # Pixels need more than 16 bits to be resized.
        self.patch_size = pair(patch_size, "patch_size")
        # On one GPU Keras would choose XLA, which compiles a model of any size for each size anew.
        self.supports_jit = keras.backend.backend() != "tensorflow"

    def call(self, images: Tensor) -> Tensor:
        size = ops.shape(images)[1:3]
        whole = self._whole(size)
        is_known = all(isinstance(side, int) for side in size)
        return images if is_known and whole == tuple(size) else resize(images, whole)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, *size, channels = input_shape
        return (batch, *self._whole(size), channels)

    def _whole(self, size: Sequence[int | Tensor | None]) -> tuple[Any, ...]:
        sides = zip(size, self.patch_size)
        return tuple(None if side is None else -(-side // patch) * patch for side, patch in sides)
