"""Attention of one head at a time, for many tokens on TensorFlow: faster on CPUs, and linear in memory.

oneDNN multiplies two matrices faster than a batch of narrow ones; `benchmarks/RESULTS.md` has measurements.
Exported graphs have no loops, because other runtimes gain nothing by them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_vit.exporting import is_exporting
from keras_vit.layers.control_dependencies import is_compiled_by_xla
from keras_vit.types import Tensor

# The most queries of a head whose scores are computed together: 4 MB for 2,048 keys, near the cache.
MAX_ROWS = 512
# Heads that are computed at a time. More of them take more memory, and two keep several cores busy.
PARALLEL_HEADS = 2


def loops_over_heads() -> bool:
    """Whether attention of many tokens is computed by `attention_by_heads`.

    GPUs and TPUs, for which XLA compiles, would wait for each head's small products. An exported graph is for
    all devices.
    """
    import tensorflow as tf

    has_gpu = bool(tf.config.list_logical_devices("GPU"))
    return not (is_exporting() or has_gpu or is_compiled_by_xla())


def attention_by_heads(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(query · keyᵀ / √head size + bias) · value, for some queries of one head at a time.

    The gradient computes the scores again, so that memory grows linearly with the tokens. Softmax and sums
    are computed in float32 at least.

    Args:
        query: (batch, queries, heads, head size).
        key, value: (batch, keys, heads, head size).
        bias: Optional (batch, heads or 1, 1, keys), the same for all queries of an image.

    Returns:
        (batch, queries, heads, head size), in the type of the values.

    Example:
        >>> x = tf.reshape(tf.constant([0.0, 2.0]), (1, 2, 1, 1))
        >>> attention_by_heads(tf.zeros((1, 1, 1, 1)), x, x).numpy().item()
        1.0

    Source: Vaswani et al. 2017, equation 1; the gradient: Dao et al. 2022, "FlashAttention" (arXiv
    2205.14135), appendix B.2.
    """
    import tensorflow as tf

    batch, queries, heads, size = ops.shape(query)
    keys = ops.shape(key)[1]
    chunks = -(-queries // MAX_ROWS)
    rows = -(-queries // chunks)

    def by_head(x: Tensor) -> Tensor:
        return tf.reshape(tf.transpose(x, (0, 2, 1, 3)), (-1, *ops.shape(x)[1::2]))

    scaled = tf.pad(query * size**-0.5, ((0, 0), (0, chunks * rows - queries), (0, 0), (0, 0)))
    wide = tf.float64 if query.dtype == tf.float64 else tf.float32
    bias = tf.zeros((1, 1, 1, 1), wide) if bias is None else tf.cast(bias, wide)
    bias = tf.reshape(tf.broadcast_to(bias, (batch, heads, 1, keys)), (-1, 1, keys))
    scaled = tf.reshape(by_head(scaled), (-1, chunks, rows, size))
    outputs = _loop()(scaled, by_head(key), by_head(value), bias)
    outputs = tf.reshape(outputs, (-1, heads, chunks * rows, size))
    return tf.transpose(outputs, (0, 2, 1, 3))[:, :queries]


def _loop() -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    import tensorflow as tf

    def each_head(
        function: Callable[[list[Tensor]], list[Tensor]], arrays: list[Tensor], outputs: list[Tensor]
    ) -> list[Tensor]:
        """`function` of each head's arrays, whose results have the shapes and types of `outputs`."""
        specs = [tf.TensorSpec(x.shape[1:], x.dtype) for x in outputs]
        return tf.map_fn(function, arrays, fn_output_signature=specs, parallel_iterations=PARALLEL_HEADS)

    def weights(query: Tensor, key: Tensor, bias: Tensor) -> Tensor:
        return tf.nn.softmax(tf.cast(tf.matmul(query, key, transpose_b=True), bias.dtype) + bias)

    @tf.custom_gradient
    def loop(
        query: Tensor, key: Tensor, value: Tensor, bias: Tensor
    ) -> tuple[Tensor, Callable[[Tensor], list[Tensor]]]:
        """query (heads of all images, chunks, rows, head size), key, value (heads, keys, head size), bias."""

        def outputs_of_head(arrays: list[Tensor]) -> list[Tensor]:
            query, key, value, bias = arrays

            def outputs_of_rows(rows: Tensor) -> Tensor:
                return tf.matmul(tf.cast(weights(rows, key, bias), value.dtype), value)

            spec = tf.TensorSpec(query.shape[1:], value.dtype)
            return [tf.map_fn(outputs_of_rows, query, fn_output_signature=spec, parallel_iterations=1)]

        (outputs,) = each_head(outputs_of_head, [query, key, value, bias], [query])

        def gradients_of_head(arrays: list[Tensor]) -> list[Tensor]:
            query, key, value, bias, outputs, upstream = arrays
            chunks = tf.shape(query)[0]

            def add(chunk: Tensor, query_gradient: tf.TensorArray, *sums: Tensor) -> tuple[Any, ...]:
                rows, gradient = query[chunk], upstream[chunk]
                scores = weights(rows, key, bias)
                inner = tf.cast(gradient, bias.dtype) * tf.cast(outputs[chunk], bias.dtype)
                inner = tf.reduce_sum(inner, -1, keepdims=True)
                products = tf.cast(tf.matmul(gradient, value, transpose_b=True), bias.dtype)
                logits = scores * (products - inner)
                narrow, scores = tf.cast(logits, key.dtype), tf.cast(scores, value.dtype)
                parts = (
                    tf.matmul(narrow, rows, transpose_a=True),
                    tf.matmul(scores, gradient, transpose_a=True),
                    tf.reduce_sum(logits, 0, keepdims=True),
                )
                totals = [total + tf.cast(part, total.dtype) for total, part in zip(sums, parts)]
                return chunk + 1, query_gradient.write(chunk, tf.matmul(narrow, key)), *totals

            state = [tf.zeros_like(x, bias.dtype) for x in (key, value, bias)]
            state = [0, tf.TensorArray(query.dtype, chunks, element_shape=query.shape[1:]), *state]
            _, query_gradient, *sums = tf.while_loop(
                lambda chunk, *_: chunk < chunks, add, state, parallel_iterations=1
            )
            sums = [tf.cast(total, x.dtype) for total, x in zip(sums, (key, value, bias))]
            return [query_gradient.stack(), *sums]

        def gradient(upstream: Tensor) -> list[Tensor]:
            arrays = [query, key, value, bias]
            return each_head(gradients_of_head, [*arrays, outputs, upstream], arrays)

        return outputs, gradient

    return loop
