"""Multi-head self-attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.exporting import is_exporting
from keras_vit.layers.control_dependencies import after
from keras_vit.layers.dense import CompositeLayer, EinsumDense
from keras_vit.layers.dropout import make_dropout
from keras_vit.layers.head_loop import attention_by_heads, loops_over_heads
from keras_vit.layers.hints import HEAD_ROWS, HEADS, NORM_OF_PARTS, PARTS, WHOLE, Sharding, sharded
from keras_vit.layers.layer_norm import make_norm
from keras_vit.layers.relative_position_bias import RelativePositionBias
from keras_vit.layers.rotary import rotate
from keras_vit.layers.row_slices import in_slices
from keras_vit.layers.xla_form import XLA_FORM, cudnn_computes, fused_attention
from keras_vit.rules import one_of, optional
from keras_vit.seeds import override_seeds
from keras_vit.types import Shape, Tensor

# The most scores of an image and head that are computed together: all of a 512-pixel image in patches of 16,
# or of about 280 queries of a 1,024-pixel image. Smaller chunks take less memory but more operations.
MAX_CHUNK_SCORES = 1_200_000
ROTATIONS = ("interleaved", "half")
MASKED = -1e9  # added to the score of a token that a query does not attend to


def attention_scores(query: Tensor, key: Tensor, bias: Tensor | None = None) -> Tensor:
    """Attention weights: softmax(query · keyᵀ / √head size + bias).

    Args:
        query: (batch, queries, heads, head size).
        key: (batch, keys, heads, head size).
        bias: Optional (heads, queries, keys) or (batch, heads, queries, keys); its heads may be 1.

    Returns:
        (batch, heads, queries, keys), at least float32; every row sums to 1.

    Example:
        >>> attention_scores(np.zeros((1, 2, 1, 8)), np.zeros((1, 4, 1, 8)))[0, 0, 0].numpy().tolist()
        [0.25, 0.25, 0.25, 0.25]

    Source: Vaswani et al. 2017, equation 1; Dosovitskiy et al. 2021, equation 6.
    """
    query = ops.convert_to_tensor(query)
    logits = ops.einsum("bqhd,bkhd->bhqk", query * query.shape[-1] ** -0.5, key)
    logits = ops.cast(logits, keras.backend.result_type(logits.dtype, "float32"))
    return ops.softmax(logits if bias is None else logits + ops.cast(bias, logits.dtype))


def attend(scores: Tensor, value: Tensor) -> Tensor:
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


def masking_bias(is_masked: Tensor) -> Tensor:
    """The bias of scores by which no query attends to some tokens: float32, 0 or a large negative number.

    >>> masking_bias(np.array([False, True])).numpy().tolist()
    [0.0, -1000000000.0]
    """
    return ops.where(is_masked, ops.cast(MASKED, "float32"), ops.cast(0.0, "float32"))


def causal_bias(queries: Tensor, keys: Tensor) -> Tensor:
    """The bias of scores by which queries attend to keys of their own number and of lower ones.

    Args:
        queries, keys: The numbers of the tokens, int (queries,) and (keys,).

    Returns:
        float32 (1, queries, keys): 0, or a large negative number.

    Example:
        >>> causal_bias(np.arange(2), np.arange(2)).numpy().tolist()
        [[[0.0, -1000000000.0], [0.0, 0.0]]]

    Source: Vaswani et al. 2017, section 3.2.3.
    """
    later = ops.expand_dims(keys, 0) > ops.expand_dims(queries, 1)
    return ops.expand_dims(masking_bias(later), 0)


def query_chunks(queries: int, keys: int | None, max_scores: int | None = None) -> list[slice]:
    """Slices of the queries, as few as a bound on the scores of each allows: memory then grows linearly.

    Args:
        queries, keys: Their numbers; None for the keys of one query, if known only in the graph.
        max_scores: The most scores of a slice that has more than one query; None: `MAX_CHUNK_SCORES`.

    Example:
        >>> query_chunks(4096, 4096)[:2], query_chunks(197, 197)
        ([slice(0, 273, None), slice(273, 546, None)], [slice(0, 197, None)])

    Source: Rabe and Staats 2021, "Self-attention does not need O(n²) memory", section 2 (arXiv 2112.05682).
    """
    size = max((MAX_CHUNK_SCORES if max_scores is None else max_scores) // max(keys or 1, 1), 1)
    count = max(-(-queries // size), 1)
    return [slice(chunk * queries // count, (chunk + 1) * queries // count) for chunk in range(count)]


@keras.saving.register_keras_serializable("keras_vit")
class MultiHeadSelfAttention(CompositeLayer):
    """Multi-head attention of tokens to themselves, or of other queries to them.

    The kernels have the shapes of the official checkpoints, (hidden, heads, head size) and
    (heads, head size, hidden), so that arrays are copied without a transpose.

    Args:
        num_heads: Number of heads; it must divide the channels.
        qkv_bias: Whether query, key and value have biases.
        dropout_rate: Dropout on the attention weights, in [0, 1); 0 in every published ViT.
        key_bias: Whether the key has one if query and value have.
        out_bias: Whether the output has a bias.
        num_kv_heads: Number of heads of key and value, each for a group of query heads (grouped-query
            attention); None for `num_heads`.
        qk_norm: "layer" or "rms" for a norm of each head's query and key; None for none.
        sub_norm: "layer" or "rms" for a norm of the heads' outputs before the last projection, or None.
        norm_epsilon: Added to the variance in these norms.
        rotation: "interleaved" or "half" if query and key are rotated by the positions (see `rotate`).
        relative_grid: (rows, columns) of the patches if there is a relative position bias, or None.
        class_token: Whether that bias has rows for a class token.
        causal: Whether each token attends only to itself and those before it.

    Call arguments:
        tokens: (batch, tokens, channels), from which keys and values are computed.
        query: Optional (batch, queries, channels), from which queries are computed, and not rotated; by
            default the tokens. A relative position bias takes them for the first tokens.
        positions: What `RotaryPositions` or `RelativePositionIndex` returns, for a layer that uses them.
        training: Whether dropout is active.
        bias: Optional (batch, heads or 1, queries or 1, tokens), added to the scores before the softmax: 0,
            or a large negative number for a token that a query must not attend to.

    Output shape: (batch, queries, channels).

    Raises:
        ValueError: if `num_heads` does not divide the channels, or `num_kv_heads` does not divide
            `num_heads`; for an unknown norm or rotation; for a call without positions if there is a
            `relative_grid`.

    Example:
        >>> layer = MultiHeadSelfAttention(num_heads=2)
        >>> layer(np.zeros((1, 5, 8))).shape, layer.scores(np.zeros((1, 5, 8))).shape
        (TensorShape([1, 5, 8]), TensorShape([1, 2, 5, 5]))

    Source: Dosovitskiy et al. 2021, appendix A; flax's `MultiHeadDotProductAttention`.
    """

    sharding = WHOLE

    def __init__(
        self,
        num_heads: int,
        qkv_bias: bool = True,
        dropout_rate: float = 0.0,
        key_bias: bool = True,
        out_bias: bool = True,
        num_kv_heads: int | None = None,
        qk_norm: str | None = None,
        sub_norm: str | None = None,
        norm_epsilon: float = 1e-6,
        rotation: str | None = None,
        relative_grid: tuple[int, int] | None = None,
        class_token: bool = True,
        causal: bool = False,
        **kwargs: Any,
    ) -> None:
        # Positions stay in float32 under mixed precision; the projections cast the tokens.
        super().__init__(autocast=False, **kwargs)
        optional(one_of(ROTATIONS)).check("rotation", rotation)
        self.store_arguments(locals())

    def build(self, tokens_shape: Shape, **shapes: Shape | None) -> None:
        channels: Any = tokens_shape[-1]
        check_heads(channels, self.num_heads, self.num_kv_heads)
        heads = (self.num_heads, channels // self.num_heads)
        kv_heads = (self.num_kv_heads or self.num_heads, heads[1])

        def projection(
            name: str, inputs: Sequence[int], outputs: Sequence[int], has_bias: bool
        ) -> Projection:
            to_heads = len(inputs) == 1
            # Glorot limits of the flattened kernels, as in flax, not of their three-dimensional shape.
            limit = (6 / (math.prod(inputs) + math.prod(outputs))) ** 0.5
            layer = Projection(
                "btc,chd->bthd" if to_heads else "bthd,hdc->btc",
                output_shape=(None, *outputs),
                bias_axes=("hd" if to_heads else "c") if has_bias else None,
                kernel_initializer=keras.initializers.RandomUniform(-limit, limit),
                dtype=self.dtype_policy,
                name=name,
            )
            sharded(layer, HEADS if to_heads else HEAD_ROWS).build((None, None, *inputs))
            return layer

        def norm(kind: str | None, name: str, shape: tuple[int, ...], sharding: Sharding = PARTS) -> Any:
            if kind is None:
                return None
            layer = make_norm(kind, self.norm_epsilon, self.dtype_policy, name)
            sharded(layer, sharding).build((None, None, *shape))
            return layer

        self.query = projection("query", (channels,), heads, self.qkv_bias)
        self.key = projection("key", (channels,), kv_heads, self.qkv_bias and self.key_bias)
        self.value = projection("value", (channels,), kv_heads, self.qkv_bias)
        self.query_norm = norm(self.qk_norm, "query_norm", heads)
        self.key_norm = norm(self.qk_norm, "key_norm", heads)
        self.output_norm = norm(self.sub_norm, "output_norm", (channels,), NORM_OF_PARTS)
        self.out = projection("out", heads, (channels,), self.out_bias)
        self.dropout: Any = make_dropout(self.dropout_rate, self.dtype_policy)
        self.position_bias = None
        if self.relative_grid is not None:
            self.position_bias = RelativePositionBias(
                self.num_heads,
                self.relative_grid,
                self.class_token,
                dtype=self.dtype_policy,
                name="position_bias",
            )
            self.position_bias.build()

    def project(
        self, tokens: Tensor, query: Tensor | None = None, positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, each (batch, queries or tokens, heads, head size)."""
        is_self_attention = query is None
        query, key = self.query(tokens if is_self_attention else query), self.key(tokens)
        value = self.value(tokens)
        if self.qk_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if self.rotation is not None:
            interleaved = self.rotation == "interleaved"
            key = rotate(key, positions, interleaved)
            query = rotate(query, positions, interleaved) if is_self_attention else query
        if key.shape[2] != query.shape[2]:
            groups = query.shape[2] // key.shape[2]
            key, value = _repeat_heads(key, groups), _repeat_heads(value, groups)
        return query, key, value

    def call(
        self,
        tokens: Tensor,
        query: Tensor | None = None,
        positions: Tensor | None = None,
        training: bool | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        query, key, value = self.project(tokens, query, positions)
        drops = bool(training and self.dropout_rate)
        queries, keys = query.shape[1], key.shape[1]
        is_known = queries == 1 or None not in (queries, keys)
        chunks = query_chunks(queries, keys) if is_known else []
        if not drops and cudnn_computes(query, key, value):
            chunks = [slice(0, queries)]  # Its kernel stores no scores.
        if len(chunks) == 1 or (is_known and (XLA_FORM or is_exporting())):
            return self.projected(self._unrolled(query, key, value, chunks, drops, positions, bias))
        return self.projected(self._looped(query, key, value, is_known, drops, positions, bias))

    def _unrolled(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        chunks: list[slice],
        drops: bool,
        positions: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        """The heads' outputs for projected queries, in a graph without loops."""
        outputs: list[Tensor] = []
        for chunk in chunks:
            # It differs between the queries, or is one for all.
            part = bias if bias is None or bias.shape[2] == 1 else bias[:, :, chunk]
            # A chunk waits for the last but one, so that memory holds the scores of two at most.
            with after(outputs[-2:-1]):
                outputs.append(self.chunk_output(query[:, chunk], key, value, chunk, drops, positions, part))
        return ops.concatenate(outputs, axis=1)

    def _looped(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        is_known: bool,
        drops: bool,
        positions: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        """The heads' outputs for projected queries, in TensorFlow's loops, whose gradients compute again."""
        bias_of_queries = (
            self.causal or self.position_bias is not None or (bias is not None and bias.shape[2] != 1)
        )
        if bias_of_queries or drops or not loops_over_heads():
            return self._sliced(query, key, value, drops, positions, bias)
        if is_known:
            return attention_by_heads(query, key, value, bias)
        return ops.cond(
            ops.shape(query)[1] <= MAX_CHUNK_SCORES // ops.maximum(ops.shape(key)[1], 1),
            lambda: self.chunk_output(query, key, value, slice(None), drops, positions, bias),
            lambda: attention_by_heads(query, key, value, bias),
        )

    def _sliced(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        drops: bool,
        positions: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        """The heads' outputs for projected queries, of all images and heads for some queries at a time."""
        by_row, shared = [(query, 1)], [key, value]
        if bias is not None and bias.shape[2] == 1:
            shared.append(bias)
        elif bias is not None:
            batch, heads, _, keys = ops.shape(bias)
            by_row.append((ops.broadcast_to(bias, (batch, heads, ops.shape(query)[1], keys)), 2))
        seed: Any = self.dropout.seed_generator.next() if drops else None

        def output(rows: Tensor, parts: list[Tensor], shared: list[Tensor]) -> Tensor:
            query, key, value, *rest = *parts[:1], *shared[:2], *parts[1:], *shared[2:]
            bias = rest[0] if rest else None

            def next_seed(*_: Any) -> Tensor:
                """The seed of these rows, also when the gradient computes them again."""
                return seed + ops.cast(ops.stack([rows[0], 0]), seed.dtype)

            with override_seeds(self, next_seed):
                return self.chunk_output(query, key, value, rows, drops, positions, bias)

        size = ops.maximum(MAX_CHUNK_SCORES // ops.maximum(ops.shape(key)[1], 1), 1)
        return in_slices(output, by_row, shared, size)

    def projected(self, x: Tensor) -> Tensor:
        """The heads' outputs (batch, queries, heads, head size) after the last projection."""
        if self.sub_norm is not None:
            shape = ops.shape(x)
            channels = x.shape[2] * x.shape[3]  # JAX knows no -1 in an empty batch.
            x = self.output_norm(ops.reshape(x, (*shape[:2], channels)))
            x = ops.reshape(x, shape)
        return self.out(x)

    def step(
        self, token: Tensor, cache: tuple[Tensor, Tensor], index: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The output for one token of causal attention, from the keys and values of the tokens before it.

        Args:
            token: (batch, 1, channels).
            cache: (keys, values), each (batch, heads, tokens, head size), of which the first `index` are
                known. Those of a head are contiguous, because a transpose would copy them for each token.
            index: The token's number, a scalar.

        Returns:
            (output (batch, 1, channels), the cache with the token's key and value).
        """
        query, *projected = self.project(token)
        new = (ops.swapaxes(x, 1, 2) for x in projected)  # (b, h, 1, d)
        cache = tuple(ops.slice_update(x, (0, 0, index, 0), y) for x, y in zip(cache, new))
        key, value = (ops.swapaxes(x, 1, 2) for x in cache)  # (b, n, h, d)
        numbers = ops.arange(ops.shape(key)[1])
        scores = attention_scores(query, key, causal_bias(ops.reshape(index, (1,)), numbers))
        return self.projected(attend(scores, value)), cache

    def scores(self, tokens: Tensor, query: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """Attention weights (batch, heads, queries, tokens), whose rows sum to 1."""
        query, key, _ = self.project(tokens, query, positions)
        return self.chunk_scores(query, key, slice(None), positions)

    def chunk_output(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        chunk: slice | Tensor,
        drops: bool,
        positions: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        """The heads' outputs for some projected queries.

        Args:
            query: The projected queries (batch, queries, heads, head size).
            key, value: All of them.
            chunk: The slice of all queries that these are, or their numbers, int32 (queries,).
            drops: Whether dropout is active.
            positions: As for the layer.
            bias: The bias of these queries, or None.
        """
        bias = self._chunk_bias(query, key, chunk, positions, bias)
        if XLA_FORM and not drops:
            return fused_attention(query, key, value, bias)
        return attend(self.dropout(attention_scores(query, key, bias), training=drops), value)

    def chunk_scores(
        self, query: Tensor, key: Tensor, chunk: slice | Tensor, positions: Tensor | None = None
    ) -> Tensor:
        """Attention weights of some projected queries; the arguments are those of `chunk_output`."""
        return attention_scores(query, key, self._chunk_bias(query, key, chunk, positions))

    def _chunk_bias(
        self,
        query: Tensor,
        key: Tensor,
        chunk: slice | Tensor,
        positions: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor | None:
        """What is added to the scores of some queries, or None; the arguments are those of `chunk_output`."""
        is_slice = isinstance(chunk, slice)
        biases = [] if bias is None else [bias]
        if self.position_bias is not None:
            if positions is None:
                raise ValueError("relative_grid needs the positions of the tokens; got positions=None")
            rows = positions[chunk] if is_slice else ops.take(positions, chunk, axis=0)
            biases.append(self.position_bias(rows))
        if self.causal:
            numbers = ops.arange(ops.shape(query)[1]) + (chunk.start or 0) if is_slice else chunk
            biases.append(causal_bias(numbers, ops.arange(ops.shape(key)[1])))
        if not biases:
            return None
        first, *others = biases
        return sum((ops.cast(other, first.dtype) for other in others), first)

    def compute_output_shape(self, tokens_shape: Shape, query_shape: Shape | None = None) -> Shape:
        return tokens_shape if query_shape is None else query_shape


def _repeat_heads(x: Tensor, times: int) -> Tensor:
    """Repeat each head; `ops.repeat` would need a fifth axis, which runtimes for GPUs lack."""
    batch, tokens, heads, size = ops.shape(x)
    rows = ops.reshape(x, (batch, tokens * heads, 1, size))
    return ops.reshape(ops.tile(rows, (1, 1, times, 1)), (batch, tokens, heads * times, size))


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

    def __init__(self, equation: str, *args: Any, **kwargs: Any) -> None:
        if equation not in ("btc,chd->bthd", "bthd,hdc->btc"):
            raise ValueError(f"equation must be 'btc,chd->bthd' or 'bthd,hdc->btc'; got {equation!r}")
        super().__init__(equation, *args, **kwargs)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        if XLA_FORM:
            return super().call(inputs)
        batch, tokens, *contracted = ops.shape(inputs)
        kernel = self.kernel
        kept = kernel.shape[len(contracted) :]
        rows = ops.reshape(inputs, (-1, math.prod(contracted)))
        x = ops.matmul(rows, ops.reshape(kernel, (math.prod(contracted), -1)))
        if self.bias is not None:
            x = ops.add(x, ops.reshape(self.bias, (-1,)))
        return self.activation(ops.reshape(x, (batch, tokens, *kept)))


def check_heads(hidden_size: int | None, num_heads: int | None, num_kv_heads: int | None = None) -> None:
    """Raise ValueError unless `num_heads` divides `hidden_size`, and `num_kv_heads` divides `num_heads`."""
    if not isinstance(num_heads, int) or num_heads < 1 or hidden_size is None or hidden_size % num_heads:
        raise ValueError(
            f"num_heads must be an int that divides hidden_size {hidden_size}; got {num_heads!r}"
        )
    if num_kv_heads is not None and (num_kv_heads < 1 or num_heads % num_kv_heads):
        raise ValueError(f"num_kv_heads must divide num_heads {num_heads}; got {num_kv_heads}")
