"""The MLP of an encoder block, and its activations."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.layers.dense import CompositeLayer, Dense
from keras_vit.layers.dropout import make_dropout
from keras_vit.layers.hints import COLUMNS, NORM_OF_PARTS, ROWS, WHOLE, Sharding, sharded
from keras_vit.layers.layer_norm import make_norm
from keras_vit.layers.xla_form import merged_tokens
from keras_vit.rules import one_of
from keras_vit.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_vit")
def _gelu_tanh(x: Tensor) -> Tensor:
    return keras.activations.gelu(x, approximate=True)


@keras.saving.register_keras_serializable("keras_vit")
def _gelu_erf(x: Tensor) -> Tensor:
    # LiteRT fuses this form into one GELU, and ONNX has all of its operations. Keras's own form becomes an
    # Erfc, which ONNX converters do not support.
    return 0.5 * x * (1.0 + ops.erf(x * 0.7071067811865476))


@keras.saving.register_keras_serializable("keras_vit")
def _quick_gelu(x: Tensor) -> Tensor:
    return x * ops.sigmoid(1.702 * x)


@keras.saving.register_keras_serializable("keras_vit")
def _silu(x: Tensor) -> Tensor:
    return x * ops.sigmoid(x)


ACTIVATIONS = {
    "gelu_tanh": _gelu_tanh,
    "gelu_erf": _gelu_erf,
    "quick_gelu": _quick_gelu,
    "silu": _silu,
}


@keras.saving.register_keras_serializable("keras_vit")
class MlpBlock(CompositeLayer):
    """Two dense layers with an activation between them, applied to each token.

    If gated, the hidden layer is the activation of `gate` times `up`: with "silu" this is SwiGLU.

    Args:
        mlp_dim: Size of the hidden layer.
        activation: "gelu_tanh" (the official models), "gelu_erf" (timm, Hugging Face) or
            "quick_gelu" (OpenAI's CLIP) or "silu" (the gate of SwiGLU).
        dropout_rate: Dropout after the activation and after the second layer, in [0, 1).
        gated: Whether there is a gate.
        use_bias: Whether the dense layers have biases.
        sub_norm: "layer" or "rms" for a norm of the hidden layer, or None.
        norm_epsilon: Added to the variance in this norm.

    Input and output shape: (batch, tokens, channels).

    Raises:
        ValueError: for an unknown activation or norm.

    Example:
        >>> MlpBlock(mlp_dim=32)(np.zeros((2, 5, 8))).shape
        TensorShape([2, 5, 8])

    Source: Dosovitskiy et al. 2021, section 3.1, equation 3; `MlpBlock` of `vit_jax`; the gate: Shazeer 2020
    (arXiv 2002.05202), equation 6; the norm: Wang et al. 2022 (arXiv 2210.06423), sub-LN.
    """

    sharding = WHOLE

    def __init__(
        self,
        mlp_dim: int,
        activation: str = "gelu_tanh",
        dropout_rate: float = 0.0,
        gated: bool = False,
        use_bias: bool = True,
        sub_norm: str | None = None,
        norm_epsilon: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        one_of(ACTIVATIONS).check("activation", activation)
        self.store_arguments(locals())

    def build(self, input_shape: Shape) -> None:
        def dense(units: int | None, name: str, sharding: Sharding) -> Dense:
            layer = Dense(
                units,
                use_bias=self.use_bias,
                kernel_initializer="glorot_uniform",
                bias_initializer=keras.initializers.RandomNormal(stddev=1e-6),
                dtype=self.dtype_policy,
                name=name,
            )
            return sharded(layer, sharding)

        first = ("gate", "up") if self.gated else ("dense_0",)
        for name in first:
            setattr(self, name, dense(self.mlp_dim, name, COLUMNS))
            getattr(self, name).build(input_shape)
        self.dense_1 = dense(input_shape[-1], "dense_1", ROWS)
        self.dropout = make_dropout(self.dropout_rate, self.dtype_policy)
        hidden_shape = (*input_shape[:-1], self.mlp_dim)
        if self.sub_norm is not None:
            norm = make_norm(self.sub_norm, self.norm_epsilon, self.dtype_policy, "hidden_norm")
            self.hidden_norm = sharded(norm, NORM_OF_PARTS)
            self.hidden_norm.build(hidden_shape)
        self.dense_1.build(hidden_shape)

    def call(self, tokens: Tensor, training: bool | None = None) -> Tensor:
        # Of merged tokens TensorFlow emits a 2-D MatMul, into which oneDNN fuses the bias and, at inference,
        # the GELU. It finds the GELU only if its name sorts after that of "dense_0".
        x = self.transform(merged_tokens(tokens), training)
        return self.dropout(ops.reshape(x, ops.shape(tokens)), training=training)

    def transform(self, tokens: Tensor, training: bool | None = None) -> Tensor:
        """The two layers, without the dropout after them, on (…, channels)."""
        x = self.gate(tokens) if self.gated else self.dense_0(tokens)  # (…, mlp_dim)
        with keras.name_scope("gelu"):
            x = ACTIVATIONS[self.activation](x)
        if self.gated:
            x = x * self.up(tokens)
        if self.sub_norm is not None:
            x = self.hidden_norm(x)
        return self.dense_1(self.dropout(x, training=training))
