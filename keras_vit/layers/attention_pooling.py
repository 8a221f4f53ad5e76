"""Pooling by attention with a learned probe (the MAP head)."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.layers.attention import MultiHeadSelfAttention
from keras_vit.layers.dense import CompositeLayer
from keras_vit.layers.hints import WHOLE
from keras_vit.layers.layer_norm import LayerNormalization
from keras_vit.layers.mlp import MlpBlock
from keras_vit.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class AttentionPooling(CompositeLayer):
    """A learned probe attends to all tokens, followed by an MLP with a residual connection.

    Args:
        num_heads: Number of attention heads; it must divide the channels.
        mlp_dim: Size of the MLP's hidden layer.
        activation: The MLP's activation (see `MlpBlock`).
        norm_epsilon: Added to the variance in the norm.
        qkv_bias: Whether query, key and value have biases.

    Call arguments:
        tokens: (batch, tokens, channels).
        bias: As for `MultiHeadSelfAttention`, of one query.

    Output shape: (batch, channels).

    Raises:
        ValueError: if the heads do not divide the channels, or for an unknown activation.

    Example:
        >>> AttentionPooling(num_heads=2, mlp_dim=32)(np.zeros((2, 5, 8))).shape
        TensorShape([2, 8])

    Source: Lee et al. 2019 (Set Transformer); Zhai et al. 2022, "Scaling Vision Transformers",
    section 3.2; `MAPHead` of `big_vision`.
    """

    sharding = WHOLE

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        activation: str = "gelu_tanh",
        norm_epsilon: float = 1e-6,
        qkv_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.store_arguments(locals())
        policy = self.dtype_policy
        self.attention = MultiHeadSelfAttention(num_heads, qkv_bias, dtype=policy, name="attention")
        self.mlp_norm = LayerNormalization(norm_epsilon, dtype=policy, name="mlp_norm")
        self.mlp = MlpBlock(mlp_dim, activation, dtype=policy, name="mlp")

    def build(self, tokens_shape: Shape, bias_shape: Shape | None = None) -> None:
        self.probe = self.add_weight(
            shape=(1, 1, tokens_shape[-1]), initializer="glorot_uniform", name="probe"
        )
        for part in (self.attention, self.mlp_norm, self.mlp):
            part.build(tokens_shape)

    def call(self, tokens: Tensor, bias: Tensor | None = None) -> Tensor:
        x = self.attention(tokens, self._query(tokens), bias=bias)  # (batch, 1, channels)
        x = x + self.mlp(self.mlp_norm(x))
        return ops.squeeze(x, axis=1)

    def scores(self, tokens: Tensor) -> Tensor:
        """Attention weights of the probe: (batch, heads, 1, tokens), rows summing to 1."""
        return self.attention.scores(tokens, self._query(tokens))

    def _query(self, tokens: Tensor) -> Tensor:
        batch, _, channels = ops.shape(tokens)
        return ops.broadcast_to(self.probe, (batch, 1, channels))

    def compute_output_shape(self, tokens_shape: Shape, bias_shape: Shape | None = None) -> Shape:
        return (tokens_shape[0], tokens_shape[-1])
