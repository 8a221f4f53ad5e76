"""Multi-head self-attention."""

import math

import keras
from keras import ops

from keras_vit.layers.control_dependencies import after
from keras_vit.layers.dense import CompositeLayer, EinsumDense

# The most scores of an image and head that are computed together: all of a 512-pixel image in patches of 16,
# or those of about 280 queries of a 1,024-pixel image. Smaller chunks take less memory but more operations.
MAX_CHUNK_SCORES = 1_200_000


def attention_scores(query, key):
    """Attention weights: softmax(query · keyᵀ / √head size).

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
    """The attention's output before its projection: the values, weighted by the scores.

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


def query_chunks(queries, keys, max_scores=None):
    """Slices of the queries, as few as a bound on the scores of each allows: memory then grows linearly.

    Args:
        queries, keys: Their numbers; None if known only in the graph, which gives one slice of all queries.
        max_scores: The most scores of a slice that has more than one query; None: `MAX_CHUNK_SCORES`.

    Example:
        >>> query_chunks(4096, 4096)[:2], query_chunks(197, 197)
        ([slice(0, 273, None), slice(273, 546, None)], [slice(0, 197, None)])

    Source: Rabe and Staats 2021, "Self-attention does not need O(n²) memory", section 2 (arXiv 2112.05682).
    """
    if None in (queries, keys):
        return [slice(None)]
    size = max((MAX_CHUNK_SCORES if max_scores is None else max_scores) // max(keys, 1), 1)
    count = max(-(-queries // size), 1)
    return [slice(chunk * queries // count, (chunk + 1) * queries // count) for chunk in range(count)]


@keras.saving.register_keras_serializable("keras_vit")
class MultiHeadSelfAttention(CompositeLayer):
    """Multi-head attention of tokens to themselves, or of other queries to them.

    The kernels have the shapes of the official checkpoints, (hidden, heads, head size) and
    (heads, head size, hidden), so that arrays are copied without a transpose.

    Args:
        num_heads: Number of heads; it must divide the channels.
        qkv_bias: Whether query, key and value have biases (the output always has one).
        dropout_rate: Dropout on the attention weights, in [0, 1); 0 in every published ViT.

    Call arguments:
        tokens: (batch, tokens, channels), from which keys and values are computed.
        query: Optional (batch, queries, channels), from which queries are computed; by default the tokens.
        grid: Optional tensor (batch, rows, columns, …), of which only the shape is used: the grid of the
            patch tokens, which come last. For subclasses whose `project` depends on positions.
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

    uses_grid = False  # whether a block has to pass the grid

    def __init__(self, num_heads, qkv_bias=True, dropout_rate=0.0, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.qkv_bias = qkv_bias
        self.dropout_rate = dropout_rate

    def build(self, tokens_shape, query_shape=None, grid_shape=None):
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

    def project(self, tokens, query=None, grid=None):
        """Query, key and value, each (batch, queries or tokens, heads, head size)."""
        return self.query(tokens if query is None else query), self.key(tokens), self.value(tokens)

    def call(self, tokens, query=None, grid=None, training=None):
        query, key, value = self.project(tokens, query, grid)
        outputs = []
        for chunk in query_chunks(query.shape[1], key.shape[1]):
            # A chunk waits for the last but one, so that memory holds the scores of two at most.
            with after(outputs[-2:-1]):
                scores = self.dropout(self.chunk_scores(query, key, chunk), training=training)
                outputs.append(attend(scores, value))
        return self.out(ops.concatenate(outputs, axis=1))

    def scores(self, tokens, query=None, grid=None):
        """Attention weights (batch, heads, queries, tokens), whose rows sum to 1."""
        query, key, _ = self.project(tokens, query, grid)
        return self.chunk_scores(query, key, slice(None))

    def chunk_scores(self, query, key, chunk):
        """Attention weights of the projected queries in a slice."""
        return attention_scores(query[:, chunk], key)

    def compute_output_shape(self, tokens_shape, query_shape=None, grid_shape=None):
        return tokens_shape if query_shape is None else query_shape


@keras.saving.register_keras_serializable("keras_vit")
class Projection(EinsumDense):
    """`keras.layers.EinsumDense` between channels and heads, computed as one matmul.

    The tokens of all images are the rows of one matrix. TensorFlow would compute a batched matmul, with one
    matrix per image, and sum the kernel's gradient over the images.

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
            f"num_heads must be an int that divides hidden_size {hidden_size}; got {num_heads!r}"
        )
