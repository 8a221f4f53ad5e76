"""The parts of the encoder, built from the schema: a new norm, attention, MLP or rotation is chosen here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from keras_vit.layers import (
    EncoderBlock,
    MlpBlock,
    MultiHeadSelfAttention,
    RelativePositionIndex,
    RotaryPositions,
)
from keras_vit.layers.layer_norm import make_norm
from keras_vit.models.vit.geometry import grid_shape, kv_heads_of_blocks
from keras_vit.types import Tensor

if TYPE_CHECKING:
    from keras_vit.models.vit.schema import TransformerConfig, ViTConfig


def norm_layer(config: ViTConfig, name: str, dtype: str | keras.DTypePolicy) -> keras.Layer:
    """A norm of the model.

    Args:
        config: A `ViTConfig`.
        name: The layer's name.
        dtype: The layer's dtype policy.
    """
    return make_norm(config.norm, config.norm_epsilon, dtype, name)


def block_positions(
    config: TransformerConfig, grid: Tensor, dtype: str | keras.DTypePolicy
) -> list[Tensor | None]:
    """The positions that the attention of each block is given, in a list; None where it needs none.

    Args:
        config: A `ViTConfig` with a Transformer.
        grid: Symbolic tensor (batch, rows, columns, …), of which only the shape is used.
        dtype: The layers' dtype policy.
    """
    c = config
    if c.rotary is not None:
        options = dict(c.rotary)
        registers = c.num_registers if options.pop("rotate_registers") else 0
        return RotaryPositions(
            **options,
            head_size=c.hidden_size // c.num_heads,
            num_heads=c.num_heads,
            num_layers=c.num_layers,
            num_registers=registers,
            max_rescale=c.max_rotary_rescale,
            dtype=dtype,
            name="rotary_positions",
        )(grid)
    if c.relative_positions:
        return [
            RelativePositionIndex(c.class_token, dtype=dtype, name="relative_positions")(grid)
        ] * c.num_layers
    return [None] * c.num_layers


def encoder_block(
    config: TransformerConfig, index: int, dtype: str | keras.DTypePolicy, causal: bool = False
) -> EncoderBlock:
    """Block number `index` with its norms, attention and MLP.

    Args:
        config: A `ViTConfig` with a Transformer.
        index: From 0; stochastic depth increases with it.
        dtype: The layers' dtype policy.
        causal: Whether each token attends only to itself and those before it.

    Example:
        >>> config = keras_vit.models.vit.schema.ViTConfig(32, 8, 24, num_layers=2, mlp_dim=48, num_heads=3)
        >>> encoder_block(config, 0, "float32").name
        'encoder_block_0'
    """
    c = config
    rotation = None
    if c.rotary is not None:
        rotation = "half" if c.rotary["kind"] == "dinov3" else "interleaved"
    grid = grid_shape(c.image_size, c.patch_size, c.resnet) if c.relative_positions else None
    return EncoderBlock(
        attention_norm=norm_layer(c, "attention_norm", dtype),
        attention=MultiHeadSelfAttention(
            c.num_heads,
            c.qkv_bias,
            c.attention_dropout_rate,
            key_bias=c.key_bias,
            out_bias=c.linear_bias,
            num_kv_heads=kv_heads_of_blocks(c)[index],
            qk_norm=c.norm if c.qk_norm else None,
            sub_norm=c.norm if c.attention_sub_norm else None,
            norm_epsilon=c.norm_epsilon,
            rotation=rotation,
            relative_grid=grid,
            class_token=c.class_token,
            causal=causal,
            dtype=dtype,
            name="attention",
        ),
        mlp_norm=norm_layer(c, "mlp_norm", dtype),
        mlp=MlpBlock(
            c.mlp_dim,
            c.activation,
            c.dropout_rate,
            gated=c.gated_mlp,
            use_bias=c.linear_bias,
            sub_norm=c.norm if c.mlp_sub_norm else None,
            norm_epsilon=c.norm_epsilon,
            dtype=dtype,
            name="mlp",
        ),
        layer_scale=c.layer_scale,
        scale_mlp=c.scale_mlp,
        post_norm=c.post_norm,
        dropout_rate=c.dropout_rate,
        stochastic_depth_rate=c.stochastic_depth_rate * index / max(c.num_layers - 1, 1),
        dtype=dtype,
        name=f"encoder_block_{index}",
    )
