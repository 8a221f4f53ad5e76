"""The forms of products, attention and norm that XLA compiles best, for the JAX backend.

TensorFlow's kernels have other costs: the layers contain the forms for them, and choose by `XLA_FORM`.
`benchmarks/TPU.md` has the costs of the compiled programs.
"""

import functools

import keras
from keras import ops

XLA_FORM = keras.backend.backend() == "jax"


def merged_tokens(tokens):
    """Tokens in the form in which the backend multiplies them by a kernel.

    TensorFlow computes a matmul of three axes as one per image, and oneDNN only fuses one of two axes. XLA
    has one matmul for either. For a TPU it chooses the order of the axes in memory, and copies the tensor
    wherever tokens that it stores in another order are merged.

    Args:
        tokens: (batch, tokens, channels).

    Returns:
        On JAX the tokens; on other backends (batch · tokens, channels).

    Example:
        >>> merged_tokens(np.zeros((2, 5, 8))).shape
        TensorShape([10, 8])
    """
    return tokens if XLA_FORM else ops.reshape(tokens, (-1, tokens.shape[-1]))


def moments(x):
    """Mean and variance over the last axis of a tensor that was rounded to 16 bits, in one pass over it.

    The difference of E[x²] and E[x]² in float32 has an error of 2⁻²⁴ E[x]², less than what the rounding of x
    has changed. In float32 it could exceed that, so that two passes are needed.

    Args:
        x: (…, channels), values of bfloat16 or float16 in float32.

    Returns:
        Two tensors (…, 1).

    Example:
        >>> [float(x[0]) for x in moments(np.array([1.0, 3.0], "float32"))]
        [2.0, 1.0]

    Source: `flax.linen.LayerNorm` with `use_fast_variance`.
    """
    mean = ops.mean(x, axis=-1, keepdims=True)
    variance = ops.mean(ops.square(x), axis=-1, keepdims=True) - ops.square(mean)
    return mean, ops.maximum(variance, 0)


def fused_attention(query, key, value, bias=None):
    """softmax(query · keyᵀ / √head size + bias) · value, in as few passes over the scores as XLA can fuse.

    The exponentials are multiplied by the values before they are divided by their sum, so that one fusion
    writes them and their sum. The gradient of the sum is computed from the outputs, not from the scores:
    one more fusion then writes the scores' gradient. Only the exponentials are kept for it, in the type of
    the values. Scores, exponentials and sums are computed in float32 at least, and the exponentials rounded
    to the type of the values, so that the weights of a query sum to 1.

    Args:
        query: (batch, queries, heads, head size), a JAX array.
        key, value: (batch, keys, heads, head size).
        bias: Optional (heads, queries, keys) or (batch, heads, queries, keys); its heads may be 1.

    Returns:
        (batch, queries, heads, head size), in the type of the values.

    Source: Vaswani et al. 2017, equation 1; the gradient: Dao et al. 2022, "FlashAttention" (arXiv
    2205.14135), appendix B.2.
    """
    return _attention()(query, key, value, bias)


@functools.cache
def _attention():
    import jax
    import jax.numpy as jnp

    def forward(query, key, value, bias):
        query = query * query.shape[-1] ** -0.5
        wide = jnp.promote_types(query.dtype, jnp.float32)
        logits = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=wide)
        if bias is not None:
            logits = logits + bias.astype(wide)
        largest = jnp.max(logits, axis=-1, keepdims=True)
        weights = jnp.exp(logits - largest).astype(value.dtype)
        total = jnp.sum(weights, axis=-1, dtype=wide)  # (batch, heads, queries)
        outputs = jnp.einsum("bhqk,bkhd->bqhd", weights, value, preferred_element_type=wide)
        outputs = (outputs / of_queries(total)).astype(value.dtype)
        return outputs, (query, key, value, bias, weights, total, outputs)

    def backward(kept, gradient):
        query, key, value, bias, weights, total, outputs = kept
        wide = total.dtype
        inner = jnp.sum(gradient.astype(wide) * outputs.astype(wide), axis=-1).swapaxes(1, 2)
        scores = jnp.einsum("bqhd,bkhd->bhqk", gradient, value, preferred_element_type=wide)
        logits = weights.astype(wide) * ((scores - inner[..., None]) / total[..., None])
        bias_gradient = None
        if bias is not None:
            bias_gradient = jax.vjp(lambda x: jnp.broadcast_to(x.astype(wide), logits.shape), bias)[1](
                logits
            )[0]
        logits = logits.astype(query.dtype)
        divided = (gradient.astype(wide) / of_queries(total)).astype(value.dtype)
        query_gradient = jnp.einsum("bhqk,bkhd->bqhd", logits, key) * query.shape[-1] ** -0.5
        key_gradient = jnp.einsum("bhqk,bqhd->bkhd", logits, query)
        return query_gradient, key_gradient, jnp.einsum("bhqk,bqhd->bkhd", weights, divided), bias_gradient

    def of_queries(x):
        return x.swapaxes(1, 2)[..., None]  # (batch, queries, heads, 1)

    attention = jax.custom_vjp(lambda *arrays: forward(*arrays)[0])
    attention.defvjp(forward, backward)
    return attention
