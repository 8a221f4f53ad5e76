"""From tokens to one vector of an image, and from this vector to logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from keras_vit.layers import AttentionPooling
from keras_vit.layers.dense import Dense
from keras_vit.layers.hints import CLASSES, as_head, sharded
from keras_vit.types import Tensor

if TYPE_CHECKING:
    from keras_vit.models.vit.schema import ViTConfig
    from keras_vit.models.vit.vision_transformer import VisionTransformer


def pooled(
    config: ViTConfig, tokens: Tensor, num_prefix: int, bias: Tensor | None, dtype: keras.DTypePolicy
) -> Tensor:
    """The vector of an image (batch, channels), or the tokens (batch, tokens, channels) without pooling.

    Args:
        config: A `ViTConfig`.
        tokens: Symbolic tensor (batch, tokens, channels), prefix tokens first.
        num_prefix: The number of prefix tokens.
        bias: Of the attention of pooling "map", or None.
        dtype: The layers' dtype policy.
    """
    c = config
    if c.pooling == "token":
        return ops.mean(tokens[:, :2], axis=1) if c.distillation else token(c, tokens, 0)
    if c.pooling == "gap":
        return ops.mean(tokens[:, num_prefix:], axis=1)
    if c.pooling == "token_gap":
        return ops.concatenate([token(c, tokens, 0), ops.mean(tokens[:, num_prefix:], axis=1)], axis=-1)
    if c.pooling == "map":
        attention = AttentionPooling(
            c.pooling_heads or c.num_heads,  # type: ignore[arg-type]  # There is a Transformer.
            c.pooling_mlp_dim or c.mlp_dim,  # type: ignore[arg-type]
            c.activation,
            c.norm_epsilon,
            c.qkv_bias,
            dtype=dtype,
            name="attention_pooling",
        )
        return attention(tokens if c.pool_prefix else tokens[:, num_prefix:], bias=bias)
    return tokens


def token(config: ViTConfig | VisionTransformer, tokens: Tensor, index: int) -> Tensor:
    """tokens[:, index]; runtimes for GPUs do not compute a slice that drops an axis."""
    return ops.reshape(tokens[:, index : index + 1], (-1, config.hidden_size))


def logits(config: ViTConfig, x: Tensor, tokens: Tensor, dtype: keras.DTypePolicy) -> Tensor:
    """The outputs of the head, or of both heads with a distillation token.

    A head starts at zero, as in the paper, and computes in float32, which losses need.

    Args:
        config: A `ViTConfig` with classes.
        x: Symbolic tensor of the representation.
        tokens: The tokens, for the second head.
        dtype: The model's dtype policy.
    """
    head = {"units": config.num_classes, "kernel_initializer": "zeros", "dtype": dtype.variable_dtype}
    if not config.distillation:
        return as_head(Dense(**head, name="head"))(x)
    x = as_head(Dense(**head, name="head"))(token(config, tokens, 0))
    y = as_head(Dense(**head, name="head_distillation"))(token(config, tokens, 1))
    # Keras's TensorFlow backend would take y in x + y for a bias if the batch is empty.
    return ops.mean(ops.stack([x, y], axis=1), axis=1)


def representation(config: ViTConfig, x: Tensor, dtype: keras.DTypePolicy) -> Tensor:
    """The input of the head, from the pooled vector."""
    if config.representation_size is not None:
        pre_logits = Dense(
            config.representation_size,
            activation=config.representation_activation,
            kernel_initializer="lecun_normal",
            dtype=dtype,
            name="pre_logits",
        )
        x = sharded(pre_logits, CLASSES)(x)
    if config.unit_representation:
        x = keras.layers.UnitNormalization(dtype=dtype.variable_dtype, name="unit_representation")(x)
    return x
