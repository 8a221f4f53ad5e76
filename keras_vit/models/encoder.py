"""The parts of the encoder, built from the schema: a new norm, attention or MLP is chosen here."""

from keras_vit.layers import EncoderBlock, LayerNormalization, MlpBlock, MultiHeadSelfAttention


def norm_layer(config, name, dtype):
    """A norm of the model.

    Args:
        config: A `ViTConfig`.
        name: The layer's name.
        dtype: The layer's dtype policy.
    """
    return LayerNormalization(config.norm_epsilon, dtype=dtype, name=name)


def encoder_block(config, index, dtype):
    """Block number `index` with its norms, attention and MLP.

    Args:
        config: A `ViTConfig` with a Transformer.
        index: From 0; stochastic depth increases with it.
        dtype: The layers' dtype policy.

    Example:
        >>> config = keras_vit.models.config.ViTConfig(32, 8, 24, num_layers=2, mlp_dim=48, num_heads=3)
        >>> encoder_block(config, 0, "float32").name
        'encoder_block_0'
    """
    c = config
    return EncoderBlock(
        attention_norm=norm_layer(c, "attention_norm", dtype),
        attention=MultiHeadSelfAttention(
            c.num_heads, c.qkv_bias, c.attention_dropout_rate, dtype=dtype, name="attention"
        ),
        mlp_norm=norm_layer(c, "mlp_norm", dtype),
        mlp=MlpBlock(c.mlp_dim, c.activation, c.dropout_rate, dtype=dtype, name="mlp"),
        layer_scale=c.layer_scale,
        dropout_rate=c.dropout_rate,
        stochastic_depth_rate=c.stochastic_depth_rate * index / max(c.num_layers - 1, 1),
        dtype=dtype,
        name=f"encoder_block_{index}",
    )
