"""Convolution with standardized weights, for the ResNet stem."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.layers.convolution import Conv2D
from keras_vit.types import Tensor


@keras.saving.register_keras_serializable("keras_vit")
class StdConv2D(Conv2D):
    """A `keras.layers.Conv2D` that standardizes its kernel at each call.

    The kernel of each output channel is centered and divided by √(variance + variance_epsilon) + epsilon;
    the stored kernel is not standardized, as in the checkpoints.

    Args:
        filters, kernel_size, …: As `keras.layers.Conv2D`.
        epsilon: Added to the standard deviation (the official models).
        variance_epsilon: Added to the variance (timm: 1e-8, with an `epsilon` of 0).

    Input shape: (batch, height, width, channels).
    Output shape: (batch, new height, new width, filters).

    Example:
        >>> StdConv2D(8, 3, padding="same", use_bias=False)(np.zeros((1, 6, 6, 4))).shape
        TensorShape([1, 6, 6, 8])

    Source: Qiao et al. 2019 (arXiv 1903.10520); `StdConv` of `vit_jax/models_resnet.py`.
    """

    def __init__(
        self, *args: Any, epsilon: float = 1e-5, variance_epsilon: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.epsilon = epsilon
        self.variance_epsilon = variance_epsilon

    def standardized(self, kernel: Tensor) -> Tensor:
        """The standardized kernel, in float32 at least."""
        kernel = ops.cast(kernel, keras.backend.result_type(kernel.dtype, "float32"))
        kernel = kernel - ops.mean(kernel, axis=(0, 1, 2), keepdims=True)
        variance = ops.var(kernel, axis=(0, 1, 2), keepdims=True)
        return kernel / (ops.sqrt(variance + self.variance_epsilon) + self.epsilon)

    def convolution_op(self, inputs: Tensor, kernel: Tensor) -> Tensor:
        return super().convolution_op(inputs, ops.cast(self.standardized(kernel), inputs.dtype))

    def get_config(self) -> dict[str, Any]:
        options = {"epsilon": self.epsilon, "variance_epsilon": self.variance_epsilon}
        return {**super().get_config(), **options}
