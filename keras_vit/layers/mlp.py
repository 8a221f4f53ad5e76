"""The MLP of an encoder block, and its activations."""

import keras
from keras import ops

from keras_vit.layers.dense import CompositeLayer, Dense
from keras_vit.rules import one_of


def _gelu_tanh(x):
    return keras.activations.gelu(x, approximate=True)


def _gelu_erf(x):
    # LiteRT fuses this form into one GELU, and ONNX has all of its operations. Keras's own form becomes an
    # Erfc, which ONNX converters do not support.
    return 0.5 * x * (1.0 + ops.erf(x * 0.7071067811865476))


def _quick_gelu(x):
    return x * ops.sigmoid(1.702 * x)


ACTIVATIONS = {"gelu_tanh": _gelu_tanh, "gelu_erf": _gelu_erf, "quick_gelu": _quick_gelu}


@keras.saving.register_keras_serializable("keras_vit")
class MlpBlock(CompositeLayer):
    """Two dense layers with an activation between them, applied to each token.

    Args:
        mlp_dim: Size of the hidden layer.
        activation: "gelu_tanh" (the official models), "gelu_erf" (timm, Hugging Face) or
            "quick_gelu" (OpenAI's CLIP).
        dropout_rate: Dropout after the activation and after the second layer, in [0, 1).

    Input and output shape: (batch, tokens, channels).

    Raises:
        ValueError: for an unknown activation.

    Example:
        >>> MlpBlock(mlp_dim=32)(np.zeros((2, 5, 8))).shape
        TensorShape([2, 5, 8])

    Source: Dosovitskiy et al. 2021, section 3.1, equation 3; `MlpBlock` of `vit_jax`.
    """

    def __init__(self, mlp_dim, activation="gelu_tanh", dropout_rate=0.0, **kwargs):
        super().__init__(**kwargs)
        self.mlp_dim = mlp_dim
        self.activation = one_of(ACTIVATIONS).check("activation", activation)
        self.dropout_rate = dropout_rate

    def build(self, input_shape):
        def dense(units, name):
            return Dense(
                units,
                kernel_initializer="glorot_uniform",
                bias_initializer=keras.initializers.RandomNormal(stddev=1e-6),
                dtype=self.dtype_policy,
                name=name,
            )

        self.dense_0 = dense(self.mlp_dim, "dense_0")
        self.dense_1 = dense(input_shape[-1], "dense_1")
        self.dropout = keras.layers.Dropout(self.dropout_rate, dtype=self.dtype_policy)
        self.dense_0.build(input_shape)
        self.dense_1.build((*input_shape[:-1], self.mlp_dim))

    def call(self, tokens, training=None):
        # Tokens are flattened so that TensorFlow emits a 2-D MatMul, into which oneDNN fuses the bias and, at
        # inference, the GELU. TensorFlow finds the GELU only if its name sorts after that of "dense_0".
        shape = ops.shape(tokens)
        x = self.dense_0(ops.reshape(tokens, (-1, shape[-1])))  # (batch · tokens, mlp_dim)
        with keras.name_scope("gelu"):
            x = ACTIVATIONS[self.activation](x)
        x = self.dense_1(self.dropout(x, training=training))  # (batch · tokens, channels)
        return self.dropout(ops.reshape(x, shape), training=training)

    def compute_output_shape(self, input_shape):
        return input_shape
