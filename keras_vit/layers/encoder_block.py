"""One block of the encoder: attention, then the MLP, each behind a norm and around a residual."""

import keras
from keras import ops

from keras_vit.layers.attention import MultiHeadSelfAttention
from keras_vit.layers.dense import CompositeLayer
from keras_vit.layers.layer_norm import LayerNormalization
from keras_vit.layers.mlp import MlpBlock
from keras_vit.layers.random_draws import same_draws


@keras.saving.register_keras_serializable("keras_vit")
class EncoderBlock(CompositeLayer):
    """A pre-norm Transformer block.

    Args:
        num_heads: Number of attention heads; it must divide the channels.
        mlp_dim: Size of the MLP's hidden layer.
        activation: The MLP's activation (see `MlpBlock`).
        norm_epsilon: Added to the variance in both norms.
        qkv_bias: Whether query, key and value have biases.
        layer_scale: Start value of a learned factor per channel on both branches; None for none.
        dropout_rate: Dropout after the attention's output, after the activation and after the
            MLP's output, in [0, 1).
        attention_dropout_rate: Dropout on the attention scores, in [0, 1).
        stochastic_depth_rate: How often an image skips a branch in training, in [0, 1).
        remat: Whether training computes the block a second time in the backward pass, so that memory
            holds its input alone.

    Input and output shape: (batch, tokens, channels).

    Raises:
        ValueError: if the heads do not divide the channels, or for an unknown activation.

    Example:
        >>> EncoderBlock(num_heads=2, mlp_dim=32)(np.zeros((2, 5, 8))).shape
        TensorShape([2, 5, 8])

    Source: Dosovitskiy et al. 2021, section 3.1, equations 2 and 3; layer scale: Touvron et al.
    2021 (CaiT); stochastic depth: Huang et al. 2016.
    """

    def __init__(
        self,
        num_heads,
        mlp_dim,
        activation="gelu_tanh",
        norm_epsilon=1e-6,
        qkv_bias=True,
        layer_scale=None,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        stochastic_depth_rate=0.0,
        remat=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.mlp_dim = mlp_dim
        self.activation = activation
        self.norm_epsilon = norm_epsilon
        self.qkv_bias = qkv_bias
        self.layer_scale = layer_scale
        self.dropout_rate = dropout_rate
        self.attention_dropout_rate = attention_dropout_rate
        self.stochastic_depth_rate = stochastic_depth_rate
        self.remat = remat

        policy = self.dtype_policy
        self.attention_norm = LayerNormalization(norm_epsilon, dtype=policy, name="attention_norm")
        self.attention = MultiHeadSelfAttention(
            num_heads, qkv_bias, attention_dropout_rate, dtype=policy, name="attention"
        )
        self.attention_scale = _scale(layer_scale, policy, "attention_scale")
        self.mlp_norm = LayerNormalization(norm_epsilon, dtype=policy, name="mlp_norm")
        self.mlp = MlpBlock(mlp_dim, activation, dropout_rate, dtype=policy, name="mlp")
        self.mlp_scale = _scale(layer_scale, policy, "mlp_scale")
        self.dropout = keras.layers.Dropout(dropout_rate, dtype=policy)
        self.skip = StochasticDepth(stochastic_depth_rate, dtype=policy)

    def build(self, input_shape):
        parts = (self.attention_norm, self.attention, self.attention_scale, self.skip)
        for part in (*parts, self.mlp_norm, self.mlp, self.mlp_scale):
            part.build(input_shape)

    def call(self, tokens, training=None):
        if self.remat and training:
            # keras.RematScope fails in TensorFlow's graphs for layers that are told `training`.
            return keras.remat(same_draws(self, lambda x: self._residual(x, training)))(tokens)
        return self._residual(tokens, training)

    def _residual(self, tokens, training):
        x = self.attention_norm(tokens)
        x = self.dropout(self.attention(x, training=training), training=training)
        tokens = tokens + self.skip(self.attention_scale(x), training=training)

        x = self.mlp(self.mlp_norm(tokens), training=training)
        return tokens + self.skip(self.mlp_scale(x), training=training)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "mlp_dim": self.mlp_dim,
            "activation": self.activation,
            "norm_epsilon": self.norm_epsilon,
            "qkv_bias": self.qkv_bias,
            "layer_scale": self.layer_scale,
            "dropout_rate": self.dropout_rate,
            "attention_dropout_rate": self.attention_dropout_rate,
            "stochastic_depth_rate": self.stochastic_depth_rate,
            "remat": self.remat,
        }


def _scale(value, policy, name):
    if value is None:
        return keras.layers.Identity(dtype=policy, name=name)
    return LayerScale(value, dtype=policy, name=name)


@keras.saving.register_keras_serializable("keras_vit")
class LayerScale(keras.layers.Layer):
    """Multiply each channel by a learned factor.

    Args:
        value: Start value of the factors, such as 1e-5.

    Input and output shape: (batch, …, channels).

    Example:
        >>> LayerScale(0.5)(np.ones((1, 1, 2))).numpy().tolist()
        [[[0.5, 0.5]]]

    Source: Touvron et al. 2021, "Going deeper with Image Transformers" (CaiT), equation 3.
    """

    def __init__(self, value, **kwargs):
        super().__init__(**kwargs)
        self.value = value

    def build(self, input_shape):
        self.gamma = self.add_weight(
            shape=(input_shape[-1],),
            initializer=keras.initializers.Constant(self.value),
            name="gamma",
        )

    def call(self, inputs):
        return inputs * self.gamma

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "value": self.value}


@keras.saving.register_keras_serializable("keras_vit")
class StochasticDepth(keras.layers.Layer):
    """In training, replace a whole branch by zero for some images and enlarge it for the others.

    Args:
        rate: The share of images that skip the branch, in [0, 1).
        seed: Optional int that fixes the draw.

    Input and output shape: (batch, …).

    Raises:
        ValueError: for a rate outside [0, 1).

    Example:
        >>> StochasticDepth(0.5)(np.ones((1, 2))).numpy().tolist()  # not in training
        [[1.0, 1.0]]

    Source: Huang et al. 2016 (arXiv 1603.09382), with the kept branches divided by 1 - rate.
    """

    def __init__(self, rate, seed=None, **kwargs):
        super().__init__(**kwargs)
        if not 0 <= rate < 1:
            raise ValueError(f"rate must be in [0, 1); got {rate!r}")
        self.rate = rate
        self.seed = seed
        # As in keras.layers.Dropout: without a rate there is nothing random to keep.
        self.seed_generator = keras.random.SeedGenerator(seed) if rate else None

    def call(self, inputs, training=None):
        if not (training and self.rate):
            return inputs
        shape = (ops.shape(inputs)[0], *[1] * (len(inputs.shape) - 1))
        kept = keras.random.uniform(shape, seed=self.seed_generator) >= self.rate
        return inputs * ops.cast(kept, inputs.dtype) / (1 - self.rate)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}
