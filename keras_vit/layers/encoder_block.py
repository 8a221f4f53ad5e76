"""A block of the encoder: attention and MLP, each with a norm and a residual connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.layers.attention import MultiHeadSelfAttention
from keras_vit.layers.configurable import Configurable
from keras_vit.layers.dense import CompositeLayer
from keras_vit.layers.dropout import StochasticDepth, make_dropout, unchanged
from keras_vit.layers.hints import WHOLE
from keras_vit.layers.layer_norm import LayerNormalization
from keras_vit.layers.mlp import MlpBlock
from keras_vit.seeds import replay_seeds
from keras_vit.types import Shape, Tensor

PARTS = ("attention_norm", "attention", "mlp_norm", "mlp")  # in the order of their weights


@keras.saving.register_keras_serializable("keras_vit")
class EncoderBlock(CompositeLayer):
    """A Transformer block; its norms come before attention and MLP, after them, or after their residuals.

    `standard_block` builds one of the usual parts.

    Args:
        attention_norm, attention, mlp_norm, mlp: The layers of the block: norms, a `MultiHeadSelfAttention`
            and an `MlpBlock`.
        layer_scale: Initial value of a learned factor per channel on both branches; None for none.
        scale_mlp: Whether the MLP's branch has the factors, too.
        post_norm: Whether each norm is applied to the output of attention or MLP instead of their input.
        norm_after_residual: Whether each norm is applied to the sum of the residual connection instead
            (BERT).
        dropout_rate: Dropout after the attention's output, in [0, 1).
        stochastic_depth_rate: Probability that an image skips a branch in training, in [0, 1).
        remat: Whether training recomputes the block in the backward pass, so that memory holds only its
            input.

    Call arguments:
        tokens: (batch, tokens, channels).
        positions: As for `MultiHeadSelfAttention`.
        training: Whether dropout and stochastic depth are active.
        num_outputs: Compute and return only this many tokens, the first ones, which must not be rotated;
            None for all. A block that only the class token is read from takes half the time or less.
        bias: As for `MultiHeadSelfAttention`.

    Output shape: (batch, tokens or `num_outputs`, channels).

    Raises:
        ValueError: if the heads do not divide the channels, or for both `post_norm` and
            `norm_after_residual`.

    Example:
        >>> from keras_vit.layers import LayerNormalization, MlpBlock, MultiHeadSelfAttention
        >>> norms = LayerNormalization(1e-6), LayerNormalization(1e-6)
        >>> block = EncoderBlock(norms[0], MultiHeadSelfAttention(2), norms[1], MlpBlock(32))
        >>> block(np.zeros((2, 5, 8))).shape
        TensorShape([2, 5, 8])

    Source: Dosovitskiy et al. 2021, section 3.1, equations 2 and 3; layer scale: Touvron et al.
    2021 (CaiT); stochastic depth: Huang et al. 2016; norms after the residuals: Vaswani et al. 2017,
    section 3.1.
    """

    sharding = WHOLE

    def __init__(
        self,
        attention_norm: keras.Layer,
        attention: keras.Layer,
        mlp_norm: keras.Layer,
        mlp: keras.Layer,
        layer_scale: float | None = None,
        scale_mlp: bool = True,
        post_norm: bool = False,
        norm_after_residual: bool = False,
        dropout_rate: float = 0.0,
        stochastic_depth_rate: float = 0.0,
        remat: bool = False,
        **kwargs: Any,
    ) -> None:
        if post_norm and norm_after_residual:
            raise ValueError("expected one of post_norm and norm_after_residual; got both")
        super().__init__(autocast=False, **kwargs)  # of positions, which stay in float32
        arguments, policy = locals(), self.dtype_policy
        self.store_arguments({name: value for name, value in arguments.items() if name not in PARTS})
        # In this order they are the block's layers, and so are its weights.
        self.attention_norm, self.attention = attention_norm, attention
        self.attention_scale = _scale(layer_scale, policy, "attention_scale")
        self.mlp_norm, self.mlp = mlp_norm, mlp
        self.mlp_scale = _scale(layer_scale if scale_mlp else None, policy, "mlp_scale")
        self.dropout = make_dropout(dropout_rate, policy)
        self.skip = make_dropout(stochastic_depth_rate, policy, StochasticDepth)

    def build(self, tokens_shape: Shape, **shapes: Shape | None) -> None:
        for part in self._flatten_layers(include_self=False, recursive=False):
            part.build(tokens_shape)

    def call(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        training: bool | None = None,
        num_outputs: int | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        tokens = ops.cast(tokens, self.compute_dtype)
        options: dict[str, Any] = {"training": training, "num_outputs": num_outputs}
        if not (self.remat and training):
            return self._residual(tokens, positions=positions, bias=bias, **options)
        arrays = {"positions": positions, "bias": bias}
        names = [name for name, array in arrays.items() if array is not None]
        # keras.RematScope fails in TensorFlow's graphs for layers that are called with `training`.
        residual = replay_seeds(self, lambda x, *more: self._residual(x, **dict(zip(names, more)), **options))
        return keras.remat(residual)(tokens, *map(arrays.get, names))

    def _residual(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        training: bool | None = None,
        num_outputs: int | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        x, query = self.attention_input(tokens), None
        if num_outputs is not None:
            query, tokens = x[:, :num_outputs], tokens[:, :num_outputs]
        x = self.attention(x, query, positions=positions, training=training, bias=bias)
        return self._after_attention(tokens, x, training)

    def _after_attention(self, tokens: Tensor, x: Tensor, training: bool | None = None) -> Tensor:
        x = self.attention_norm(x) if self.post_norm else x
        x = self.dropout(x, training=training)
        tokens = tokens + self.skip(self.attention_scale(x), training=training)
        tokens = self.attention_norm(tokens) if self.norm_after_residual else tokens

        x = self.mlp(self.mlp_norm(tokens) if self._norm_first else tokens, training=training)
        x = self.mlp_norm(x) if self.post_norm else x
        tokens = tokens + self.skip(self.mlp_scale(x), training=training)
        return self.mlp_norm(tokens) if self.norm_after_residual else tokens

    def step(
        self, token: Tensor, cache: tuple[Tensor, Tensor], index: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The output for one token of causal attention, and the cache with it, as of the attention.

        Args:
            token, cache, index: As for `MultiHeadSelfAttention.step`.
        """
        token = ops.cast(token, self.compute_dtype)
        x, cache = self.attention.step(self.attention_input(token), cache, index)
        return self._after_attention(token, x), cache

    def attention_input(self, tokens: Tensor) -> Tensor:
        """What the attention computes query, key and value from."""
        return self.attention_norm(tokens) if self._norm_first else tokens

    @property
    def _norm_first(self) -> bool:
        return not (self.post_norm or self.norm_after_residual)

    def compute_output_spec(
        self, tokens: Tensor, *more: Any, num_outputs: int | None = None, **options: Any
    ) -> Any:
        batch, count, channels = tokens.shape
        return keras.KerasTensor((batch, num_outputs or count, channels), self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        return config | {name: _serialized(config[name]) for name in PARTS}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> EncoderBlock:
        load = keras.saving.deserialize_keras_object
        return cls(**{**config, **{name: load(config[name]) for name in PARTS}})


def standard_block(
    num_heads: int,
    mlp_dim: int,
    activation: str = "gelu_tanh",
    norm_epsilon: float = 1e-6,
    qkv_bias: bool = True,
    dropout_rate: float = 0.0,
    causal: bool = False,
    dtype: str | keras.DTypePolicy | None = None,
    **options: Any,
) -> EncoderBlock:
    """An `EncoderBlock` with layer norms and an MLP of two layers.

    Args:
        num_heads, qkv_bias, causal: As for `MultiHeadSelfAttention`.
        mlp_dim, activation: As for `MlpBlock`.
        norm_epsilon: As for `LayerNormalization`.
        dropout_rate: Dropout after the attention's output and in the MLP, in [0, 1).
        dtype: The dtype policy of all layers.
        **options: Other arguments of `EncoderBlock`.

    Raises:
        ValueError: for an unknown activation.

    Example:
        >>> standard_block(num_heads=2, mlp_dim=32)(np.zeros((2, 5, 8))).shape
        TensorShape([2, 5, 8])

    Source: Dosovitskiy et al. 2021, section 3.1.
    """
    return EncoderBlock(
        attention_norm=LayerNormalization(norm_epsilon, dtype=dtype, name="attention_norm"),
        attention=MultiHeadSelfAttention(num_heads, qkv_bias, causal=causal, dtype=dtype, name="attention"),
        mlp_norm=LayerNormalization(norm_epsilon, dtype=dtype, name="mlp_norm"),
        mlp=MlpBlock(mlp_dim, activation, dropout_rate, dtype=dtype, name="mlp"),
        dropout_rate=dropout_rate,
        dtype=dtype,
        **options,
    )


def number_stack(layers: Sequence[keras.Layer]) -> None:
    """Number the layers of a stack of blocks, for layer-wise decay of the learning rate.

    The layers before the first block count as one, and so does each block. Each layer and variable of them
    gets `layers_above`, the number of these to the last block; the layers after it are the top, like all
    that are in no stack, and have 0.

    Args:
        layers: The layers of a stack, and those before and after it, in the order of the data flow.

    Example:
        >>> layers = [keras.layers.Identity(), standard_block(2, 8), standard_block(2, 8)]
        >>> number_stack(layers)
        >>> [layer.layers_above for layer in layers]
        [3, 2, 1]

    Source: Bao et al. 2022 (BEiT, arXiv 2106.08254), section 3.
    """
    blocks = [index for index, layer in enumerate(layers) if isinstance(layer, EncoderBlock)]
    if not blocks:
        return
    above = dict.fromkeys(range(blocks[0]), len(blocks) + 1)
    above |= {index: len(blocks) - count for count, index in enumerate(blocks)}
    for index, count in above.items():
        for part in (*layers[index]._flatten_layers(), *layers[index].weights):
            part.layers_above = count


def _serialized(part: keras.Layer) -> dict[str, Any]:
    config = keras.saving.serialize_keras_object(part)
    config.pop("build_config", None)  # It would build the part outside the block, with other paths.
    return config


def _scale(value: float | None, policy: keras.DTypePolicy, name: str) -> Callable[..., Tensor]:
    return unchanged if value is None else LayerScale(value, dtype=policy, name=name)


@keras.saving.register_keras_serializable("keras_vit")
class LayerScale(Configurable):
    """Multiply each channel by a learned factor.

    Args:
        value: Initial value of the factors, such as 1e-5.

    Input and output shape: (batch, …, channels).

    Example:
        >>> LayerScale(0.5)(np.ones((1, 1, 2))).numpy().tolist()
        [[[0.5, 0.5]]]

    Source: Touvron et al. 2021, "Going deeper with Image Transformers" (CaiT), equation 3.
    """

    sharding = WHOLE

    def __init__(self, value: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.value = value

    def build(self, input_shape: Shape) -> None:
        self.gamma = self.add_weight(
            shape=(input_shape[-1],), initializer=keras.initializers.Constant(self.value), name="gamma"
        )

    def call(self, inputs: Tensor) -> Tensor:
        return inputs * self.gamma
