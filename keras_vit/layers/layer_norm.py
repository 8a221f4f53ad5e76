"""The layer norm of every block, in as few passes over the tokens as it takes."""

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_vit")
class LayerNormalization(keras.layers.LayerNormalization):
    """Keras's layer norm over the channels, written to read and write the tokens less often.

    Centre once, take the variance of what is centred, scale. In 16-bit policies mean and variance are
    taken in float32. The class has Keras's name, since a model's file calls its layers by their classes.

    Args:
        epsilon: Added to the variance.
        name, dtype, trainable: As for every Keras layer. What else Keras's norm can do, this one does not.

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
