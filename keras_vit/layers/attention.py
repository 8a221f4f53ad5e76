"""Multi-head self-attention: who looks at whom, and what they take from there."""

import math

import keras
from keras import ops

from keras_vit.layers.dense import CompositeLayer, EinsumDense
from keras_vit.layers.order import behind

# Pairs of a query and a key whose scores are computed together, for each image and head: all of an image of
# 512 pixels in patches of 16, or some 280 queries of 1,024. Fewer take less memory, but more operations.
PAIRS = 1_200_000


def attention_scores(query, key):
    """How much each query attends to each key: softmax(query · keyᵀ / √head size).

    Args:
        query: (batch, queries, heads, head size).
        key: (batch, keys, heads, head size).

    Returns:
        (batch, heads, queries, keys), at least float32; every row sums to 1.

    Example:
        >>> attention_scores(np.zeros((1, 2, 1, 8)), np.zeros((1, 4, 1, 8)))[0, 0, 0].numpy().tolist()
        [0.25, 0.25, 0.25, 0.25]

    Source: Vaswani et al. 2017, equation 1; Dosovitskiy et al. 2021, equation 6.
    """
    query = ops.convert_to_tensor(query)
    logits = ops.einsum("bqhd,bkhd->bhqk", query * query.shape[-1] ** -0.5, key)
    return ops.softmax(ops.cast(logits, keras.backend.result_type(logits.dtype, "float32")))


def attend(scores, value):
    """What the queries take: the values weighted by the scores.

    Args:
        scores: (batch, heads, queries, keys).
        value: (batch, keys, heads, head size).

    Returns:
        (batch, queries, heads, head size), in the type of the values.

    Example:
        >>> attend(np.full((1, 1, 1, 2), 0.5), np.array([2.0, 4.0]).reshape(1, 2, 1, 1)).numpy().item()
        3.0

    Source: Vaswani et al. 2017, equation 1; Dosovitskiy et al. 2021, equation 7.
    """
    value = ops.convert_to_tensor(value)
    return ops.einsum("bhqk,bkhd->bqhd", ops.cast(scores, value.dtype), value)


def query_stretches(queries, keys, pairs=None):
    """Slices of the queries, as few as keep to a number of pairs: memory grows with the tokens.

    Args:
        queries, keys: How many there are; None where only the graph knows, which gives one slice of all.
        pairs: The most pairs of a query and a key in a slice, if it has more than one query; None: `PAIRS`.

    Example:
        >>> query_stretches(4096, 4096)[:2], query_stretches(197, 197)
        ([slice(0, 273, None), slice(273, 546, None)], [slice(0, 197, None)])

    Source: Rabe and Staats 2021, "Self-attention does not need O(n²) memory", section 2 (arXiv 2112.05682).
    """
    if None in (queries, keys):
        return [slice(None)]
    most = max((PAIRS if pairs is None else pairs) // max(keys, 1), 1)
    count = max(-(-queries // most), 1)
    return [slice(number * queries // count, (number + 1) * queries // count) for number in range(count)]


@keras.saving.register_keras_serializable("keras_vit")
class MultiHeadSelfAttention(CompositeLayer):
    """Every token gathers from every token, in several heads at once.

    The kernels have the shapes of the official checkpoints, (hidden, heads, head size) and
    (heads, head size, hidden), so their arrays copy without a transpose.

    Args:
        num_heads: Number of heads; it must divide the channels.
        qkv_bias: Whether query, key and value have biases (the output always has one).
        dropout_rate: Dropout on the scores, in [0, 1); 0 in every published ViT.

    Call arguments:
        tokens: (batch, tokens, channels), to be looked at.
        query: Optional (batch, queries, channels), who looks; the tokens themselves by default.
        training: Whether dropout is active.

    Output shape: (batch, queries, channels).

    Raises:
        ValueError: if the heads do not divide the channels.

    Example:
        >>> layer = MultiHeadSelfAttention(num_heads=2)
        >>> layer(np.zeros((1, 5, 8))).shape, layer.scores(np.zeros((1, 5, 8))).shape
        (TensorShape([1, 5, 8]), TensorShape([1, 2, 5, 5]))

    Source: Dosovitskiy et al. 2021, appendix A; flax's `MultiHeadDotProductAttention`.
    """

    def __init__(self, num_heads, qkv_bias=True, dropout_rate=0.0, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.qkv_bias = qkv_bias
        self.dropout_rate = dropout_rate

    def build(self, tokens_shape, query_shape=None):
        channels = tokens_shape[-1]
        check_heads(channels, self.num_heads)
        heads = (self.num_heads, channels // self.num_heads)
        # Glorot limits of the flattened kernels, as in flax, not of their three-dimensional shape.
        limit = (3 / channels) ** 0.5

        def projection(name, equation, output_shape, bias_axes):
            return Projection(
                equation,
                output_shape=output_shape,
                bias_axes=bias_axes,
                kernel_initializer=keras.initializers.RandomUniform(-limit, limit),
                dtype=self.dtype_policy,
                name=name,
            )

        for name in ("query", "key", "value"):
            bias_axes = "hd" if self.qkv_bias else None
            layer = projection(name, "btc,chd->bthd", (None, *heads), bias_axes)
            layer.build((None, None, channels))
            setattr(self, name, layer)
        self.out = projection("out", "bthd,hdc->btc", (None, channels), "c")
        self.out.build((None, None, *heads))
        self.dropout = keras.layers.Dropout(self.dropout_rate, dtype=self.dtype_policy)

    def call(self, tokens, query=None, training=None):
        query, key = self.query(tokens if query is None else query), self.key(tokens)
        value = self.value(tokens)

        taken = []
        for part in query_stretches(query.shape[1], key.shape[1]):
            with behind(taken[-2:-1]):  # memory holds the scores of two
                scores = self.dropout(attention_scores(query[:, part], key), training=training)
                taken.append(attend(scores, value))
        return self.out(ops.concatenate(taken, axis=1))

    def scores(self, tokens, query=None):
        """Who looks at whom: (batch, heads, queries, tokens), rows summing to 1."""
        return attention_scores(self.query(tokens if query is None else query), self.key(tokens))

    def compute_output_shape(self, tokens_shape, query_shape=None):
        return tokens_shape if query_shape is None else query_shape

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "qkv_bias": self.qkv_bias,
            "dropout_rate": self.dropout_rate,
        }


@keras.saving.register_keras_serializable("keras_vit")
class Projection(EinsumDense):
    """Keras's layer for kernels of several axes, computed as one product of matrices.

    All tokens are rows and the kernel's axes are laid together. TensorFlow would multiply the tokens of
    each image by themselves, and add up what each says of the kernel's gradient.

    Args:
        equation, output_shape, …: As for `keras.layers.EinsumDense`, the equation one of
            "btc,chd->bthd" and "bthd,hdc->btc".

    Input shape: (batch, tokens, channels) or (batch, tokens, heads, head size).
    Output shape: the other one.

    Raises:
        ValueError: for another equation.

    Example:
        >>> Projection("btc,chd->bthd", (None, 2, 4), bias_axes="hd")(np.zeros((1, 5, 8))).shape
        TensorShape([1, 5, 2, 4])

    Source: Vaswani et al. 2017, section 3.2.2.
    """

    def __init__(self, equation, *args, **kwargs):
        if equation not in ("btc,chd->bthd", "bthd,hdc->btc"):
            raise ValueError(f"equation must be 'btc,chd->bthd' or 'bthd,hdc->btc'; got {equation!r}")
        super().__init__(equation, *args, **kwargs)

    def call(self, inputs, training=None):
        batch, tokens, *contracted = ops.shape(inputs)
        kernel = self.kernel
        kept = kernel.shape[len(contracted) :]
        rows = ops.reshape(inputs, (-1, math.prod(contracted)))
        x = ops.matmul(rows, ops.reshape(kernel, (math.prod(contracted), -1)))
        if self.bias is not None:
            x = ops.add(x, ops.reshape(self.bias, (-1,)))
        return self.activation(ops.reshape(x, (batch, tokens, *kept)))


def check_heads(hidden_size, num_heads):
    """Raise ValueError unless the heads divide the hidden size."""
    if not isinstance(num_heads, int) or num_heads < 1 or hidden_size % num_heads:
        raise ValueError(
            f"hidden_size {hidden_size} is not divisible by num_heads {num_heads!r}; "
            "every head needs the same whole number of channels"
        )
