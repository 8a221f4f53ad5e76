"""A grid at a multiple of its resolution."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.layers.configurable import Configurable
from keras_vit.layers.segmentation_head import resize
from keras_vit.rules import integer
from keras_vit.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class Enlargement(Configurable):
    """Enlarge a grid bilinearly by a factor.

    Keras's UpSampling2D does not take sizes that only the graph knows.

    Args:
        factor: The resolution of the output relative to the grid's.

    Input shape: (batch, height, width, channels).
    Output shape: (batch, factor · height, factor · width, channels).

    Raises:
        ValueError: for a factor that is no positive integer.

    Example:
        >>> Enlargement(4)(np.zeros((1, 2, 3, 8))).shape
        TensorShape([1, 8, 12, 8])

    Source: Xu et al. 2022 (ViTPose, arXiv 2204.12484), section 3.1.
    """

    def __init__(self, factor: int = 2, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.factor = integer(at_least=1).check("factor", factor)

    def call(self, grid: Tensor) -> Tensor:
        height, width = ops.shape(grid)[1:3]
        return ops.cast(resize(grid, (self.factor * height, self.factor * width)), grid.dtype)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, *sides, channels = input_shape
        return (batch, *(side and self.factor * side for side in sides), channels)
