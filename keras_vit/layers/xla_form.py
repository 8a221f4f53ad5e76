"""The forms of products, attention and norm that XLA compiles best, for the JAX backend.

TensorFlow's kernels have other costs: the layers contain the forms for them, and choose by `XLA_FORM`.
`benchmarks/TPU.md` has the costs of the compiled programs.
"""

from __future__ import annotations

import contextvars
import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from keras_vit.types import Tensor

if TYPE_CHECKING:
    import jax

XLA_FORM = keras.backend.backend() == "jax"
# The device for which a program is traced, if it is another than JAX's default.
traced_for: contextvars.ContextVar[jax.Device | None] = contextvars.ContextVar("traced_for", default=None)


def merged_tokens(tokens: Tensor) -> Tensor:
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


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
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


def fused_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(query · keyᵀ / √head size + bias) · value, in as few passes over the scores as XLA can fuse.

    The exponentials are multiplied by the values before they are divided by their sum, so that one fusion
    writes them and their sum. The gradient of the sum is computed from the outputs, not from the scores:
    one more fusion then writes the scores' gradient. Only the exponentials are kept for it, in the type of
    the values. Scores, exponentials and sums are computed in float32 at least, and the exponentials rounded
    to the type of the values, so that the weights of a query sum to 1.

    If `cudnn_computes` says so, cuDNN's kernels compute attention and its gradient without storing scores.

    Args:
        query: (batch, queries, heads, head size), a JAX array.
        key, value: (batch, keys, heads, head size).
        bias: Optional (heads, queries, keys) or (batch, heads, queries, keys); its heads may be 1.

    Returns:
        (batch, queries, heads, head size), in the type of the values.

    Source: Vaswani et al. 2017, equation 1; the gradient: Dao et al. 2022, "FlashAttention" (arXiv
    2205.14135), appendix B.2.
    """
    if cudnn_computes(query, key, value):
        return _cudnn_attention(query, key, value, bias)
    return _attention()(query, key, value, bias)


def cudnn_computes(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether cuDNN's fused attention computes this one, in memory that grows linearly with the tokens.

    Its kernels take 16-bit numbers and heads of at most 128 channels, a multiple of 8, on GPUs of compute
    capability 8.0 and above. With no more queries or keys than channels of a head, as for a class token
    alone, scores take no more memory than the keys, and another kernel would save nothing.

    Args:
        query, key, value: As for `fused_attention`.

    Example:
        >>> cudnn_computes(*np.zeros((3, 1, 197, 12, 64), "float32"))
        False

    Source: `check_is_flash_attention` of JAX; the support matrix of cuDNN's scaled dot-product attention.
    """
    size = query.shape[-1]
    dtypes = {keras.backend.standardize_dtype(x.dtype) for x in (query, key, value)}
    return (
        XLA_FORM
        and dtypes in ({"bfloat16"}, {"float16"})
        and size % 8 == 0
        and size <= 128
        and all(x.shape[1] > size for x in (query, key))
        and _is_ampere_or_later()
    )


def _is_ampere_or_later() -> bool:
    import jax

    device = traced_for.get() or jax.config.jax_default_device or jax.devices()[0]
    # NVIDIA's GPUs have "8.0", AMD's "gfx942", and other devices nothing.
    return re.match(r"[89]|\d\d", getattr(device, "compute_capability", "")) is not None


def _cudnn_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
    import jax
    import jax.numpy as jnp

    queries, keys = query.shape[1], key.shape[1]
    lengths: dict[str, Any] = {}
    if queries % 2 or keys % 2:  # The gradient's kernel takes even numbers of tokens.
        query, key, value = (
            jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, 0), (0, 0))) for x in (query, key, value)
        )
        counts = {"query_seq_lengths": queries, "key_value_seq_lengths": keys}
        lengths = {name: jnp.full(query.shape[:1], count, "int32") for name, count in counts.items()}
    if bias is not None:
        bias = bias if bias.ndim == 4 else bias[None]
        bias = jnp.broadcast_to(bias, (*bias.shape[:2], queries, keys))
        # A row of -inf, which float16 would make of masks, has no softmax.
        bias = jnp.maximum(bias, jnp.finfo(query.dtype).min / 2).astype(query.dtype)
        bias = jnp.pad(bias, ((0, 0), (0, 0), (0, queries % 2), (0, keys % 2)))
    x = jax.nn.dot_product_attention(query, key, value, bias, implementation="cudnn", **lengths)
    return x[:, :queries]


@functools.cache
def _attention() -> Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]:
    import jax
    import jax.numpy as jnp

    def forward(
        query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
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

    def backward(kept: tuple[Any, ...], gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
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

    def of_queries(x: Tensor) -> Tensor:
        return x.swapaxes(1, 2)[..., None]  # (batch, queries, heads, 1)

    attention = jax.custom_vjp(lambda *arrays: forward(*arrays)[0])
    attention.defvjp(forward, backward)
    return attention
