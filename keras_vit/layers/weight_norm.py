"""The last layer of DINO's head: a dense layer whose outputs are scaled cosines."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.layers.configurable import Configurable
from keras_vit.layers.hints import Sharding
from keras_vit.rules import integer
from keras_vit.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class WeightNormDense(Configurable):
    """A dense layer without bias whose kernel has columns of length 1, by weight normalization.

    While the weight `gradient_scale` is 0, the kernel gets no gradient.

    Args:
        units: Number of outputs.

    Input shape: (…, channels).
    Output shape: (…, units).

    Example:
        >>> layer = WeightNormDense(6)
        >>> layer(np.array([[1.0, 0.0]])).shape
        TensorShape([1, 6])

    Source: Salimans and Kingma 2016 (arXiv 1602.07868), equation 2 with g = 1; `DINOHead` of
    `facebookresearch/dino`.
    """

    sharding = Sharding({"kernel": -1}, output=None)

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = integer(at_least=1).check("units", units)

    def build(self, input_shape: Shape) -> None:
        uniform = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")  # as torch.nn.Linear
        self.kernel = self.add_weight(shape=(input_shape[-1], self.units), initializer=uniform, name="kernel")
        self.gradient_scale = self.add_weight(
            shape=(), initializer="ones", trainable=False, name="gradient_scale"
        )

    def call(self, inputs: Tensor) -> Tensor:
        kernel = ops.convert_to_tensor(self.kernel)
        fixed = ops.stop_gradient(kernel)
        kernel = fixed + ops.cast(self.gradient_scale, kernel.dtype) * (kernel - fixed)
        return ops.matmul(inputs, ops.normalize(kernel, axis=0))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:-1], self.units)
