"""Layer norm over the channels in few passes over memory."""

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_vit")
class LayerNormalization(keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` over the channels, with fewer passes over memory.

    The input is centered once, and the variance is that of the centered values. Mean and variance are
    computed in float32 at least. The class has Keras's name because files name layers by their classes.

    Args:
        epsilon: Added to the variance.
        name, dtype, trainable: As for every Keras layer. Keras's other arguments are not supported.

    Input and output shape: (batch, …, channels).

    Example:
        >>> LayerNormalization()(np.array([[1.0, 3.0]])).numpy().round(3).tolist()
        [[-1.0, 1.0]]

    Source: Ba et al. 2016; `flax.linen.LayerNorm`, as used in `vit_jax`.
    """

    def __init__(self, epsilon=1e-6, name=None, dtype=None, trainable=True):
        super().__init__(epsilon=epsilon, name=name, dtype=dtype, trainable=trainable)

    def call(self, inputs):
        x = ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
        x = x - ops.mean(x, axis=-1, keepdims=True)
        scale = ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + self.epsilon)
        x = x * scale * ops.cast(self.gamma, x.dtype) + ops.cast(self.beta, x.dtype)
        return ops.cast(x, self.compute_dtype)

    def get_config(self):
        return {**keras.layers.Layer.get_config(self), "epsilon": self.epsilon}
