"""The layer norm of every block, in as few passes over the tokens as it takes."""

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_vit")
class LayerNorm(keras.layers.LayerNormalization):
    """Keras's layer norm over the channels, written to read and write the tokens less often.

    Centre once, take the variance of what is centred, scale. In 16-bit policies mean and variance are
    taken in float32.

    Args:
        epsilon: Added to the variance.

    Input and output shape: (batch, …, channels).

    Example:
        >>> LayerNorm()(np.array([[1.0, 3.0]])).numpy().round(3).tolist()
        [[-1.0, 1.0]]

    Source: Ba et al. 2016; `flax.linen.LayerNorm`, as used in `vit_jax`.
    """

    def __init__(self, epsilon=1e-6, **kwargs):
        super().__init__(epsilon=epsilon, **kwargs)

    def call(self, inputs):
        x = ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
        x = x - ops.mean(x, axis=-1, keepdims=True)
        scale = ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + self.epsilon)
        x = x * scale * ops.cast(self.gamma, x.dtype) + ops.cast(self.beta, x.dtype)
        return ops.cast(x, self.compute_dtype)

    def get_config(self):
        # Those of a plain layer: whatever else Keras's norm can do, this one does not.
        return {**keras.layers.Layer.get_config(self), "epsilon": self.epsilon}
