"""Norms over the channels: layer norm in few passes over memory, and RMS norm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from keras_vit.layers.hints import WHOLE
from keras_vit.layers.xla_form import XLA_FORM, moments
from keras_vit.rules import one_of
from keras_vit.types import Shape, Tensor

_Base: Any = keras.Layer if TYPE_CHECKING else object


class _Norm(_Base):
    sharding = WHOLE

    def __init__(
        self,
        epsilon: float = 1e-6,
        name: str | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__(epsilon=epsilon, name=name, dtype=dtype, trainable=trainable)

    def get_config(self) -> dict[str, Any]:
        return {**keras.layers.Layer.get_config(self), "epsilon": self.epsilon}


@keras.saving.register_keras_serializable("keras_vit")
class LayerNormalization(_Norm, keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` over the channels, with fewer passes over memory.

    The input is centered once, and the variance is that of the centered values; on JAX mean and variance of
    an input of 16 bits are computed in one pass. Both are computed in float32 at least.

    Args:
        epsilon: Added to the variance.
        name, dtype, trainable: As for every Keras layer. Keras's other arguments are not supported.

    Input and output shape: (batch, …, channels).

    Example:
        >>> LayerNormalization()(np.array([[1.0, 3.0]])).numpy().round(3).tolist()
        [[-1.0, 1.0]]

    Source: Ba et al. 2016; `flax.linen.LayerNorm`, as used in `vit_jax`.
    """

    def call(self, inputs: Tensor) -> Tensor:
        x = ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
        if XLA_FORM and x.dtype != inputs.dtype:
            mean, variance = moments(x)
            x = x - mean
        else:
            x = x - ops.mean(x, axis=-1, keepdims=True)
            variance = ops.mean(ops.square(x), axis=-1, keepdims=True)
        x = x * ops.rsqrt(variance + self.epsilon) * ops.cast(self.gamma, x.dtype) + ops.cast(
            self.beta, x.dtype
        )
        return ops.cast(x, self.compute_dtype)


@keras.saving.register_keras_serializable("keras_vit")
class RMSNormalization(_Norm, keras.layers.RMSNormalization):
    """`keras.layers.RMSNormalization` over the channels, whose weight has the name of a layer norm's.

    Args:
        epsilon: Added to the mean square.
        name, dtype, trainable: As for every Keras layer. Keras's other arguments are not supported.

    Input and output shape: (batch, …, channels).

    Example:
        >>> RMSNormalization()(np.array([[1.0, -1.0]])).numpy().round(3).tolist()
        [[1.0, -1.0]]

    Source: Zhang and Sennrich 2019 (arXiv 1910.07467), equation 4.
    """

    def build(self, input_shape: Shape) -> None:
        # Like a layer norm's, it is not rounded to the compute type before the product.
        self.scale = self.add_weight(
            shape=(input_shape[-1],), initializer="ones", autocast=False, name="gamma"
        )


NORMS = {"layer": LayerNormalization, "rms": RMSNormalization}


def make_norm(kind: str, epsilon: float, dtype: str | keras.DTypePolicy | None, name: str) -> keras.Layer:
    """A norm over the channels.

    Args:
        kind: "layer" or "rms".
        epsilon: Added to the variance, or to the mean square.
        dtype: The layer's dtype policy.
        name: The layer's name.

    Raises:
        ValueError: for an unknown kind.

    Example:
        >>> make_norm("rms", 1e-6, "float32", "norm")(np.array([[2.0, -2.0]])).numpy().round(3).tolist()
        [[1.0, -1.0]]
    """
    return NORMS[one_of(NORMS).check("norm", kind)](epsilon=epsilon, dtype=dtype, name=name)
