"""The forms for XLA compute what the layers' own forms compute; `make test` runs this on JAX."""

import types

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from made.sampling import some
from made.tables import by_table

from keras_vit.layers import MultiHeadSelfAttention, attention
from keras_vit.layers.xla_form import cudnn_computes, fused_attention, moments, traced_for

slow = pytest.mark.slow
pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="for `make test` on JAX")


def formula(query, key, value, bias=None):
    logits = jnp.einsum("bqhd,bkhd->bhqk", query / query.shape[-1] ** 0.5, key)
    weights = jax.nn.softmax(logits if bias is None else logits + bias)
    return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(value.dtype), value)


def arrays(rng, bias_shape=None, dtype="float32"):
    shapes = [(2, 5, 3, 4), (2, 7, 3, 4), (2, 7, 3, 4), bias_shape, (2, 5, 3, 4)]
    found = [shape and jnp.asarray(2 * rng.standard_normal(shape), dtype) for shape in shapes]
    return found[:-1], found[-1]


def with_gradients(function, inputs, gradient):
    @jax.jit
    def compute(inputs, gradient):
        outputs, backward = jax.vjp(function, *inputs)
        return [outputs, *(x for x in backward(gradient.astype(outputs.dtype)) if x is not None)]

    return compute(inputs, gradient)


@pytest.mark.parametrize("bias_shape", [None, pytest.param((3, 5, 7), marks=slow), (2, 1, 5, 7)])
def test_fused_attention_and_its_gradients_equal_the_formula(bias_shape, rng):
    inputs, gradient = arrays(rng, bias_shape)
    found = with_gradients(fused_attention, inputs, gradient)
    expected = with_gradients(formula, inputs, gradient)
    assert [x.shape for x in found] == [x.shape for x in expected]
    for actual, wanted in zip(found, expected):
        np.testing.assert_allclose(actual, wanted, rtol=2e-5, atol=5e-6)


@slow
def test_in_bfloat16_fused_attention_is_as_precise_as_the_formula(rng):
    inputs, gradient = arrays(rng, dtype="bfloat16")
    exact = with_gradients(formula, [x if x is None else x.astype("float32") for x in inputs], gradient)
    errors = []
    for function in (fused_attention, formula):
        found = with_gradients(function, inputs, gradient)
        errors.append([float(jnp.abs(a.astype("float32") - b).mean()) for a, b in zip(found, exact)])
    assert np.all(np.divide(*errors) < 1.2), errors


def test_scores_of_any_size_overflow_nowhere(rng):
    (query, key, value, _), gradient = arrays(rng)
    found = with_gradients(fused_attention, (1e5 * query, 1e5 * key, value, None), gradient)
    assert all(np.isfinite(x).all() for x in found)


@pytest.mark.parametrize("offset", [0.0, 8.0, -60.0])
def test_moments_of_bfloat16_are_more_precise_than_its_rounding(offset, rng):
    x = np.asarray(rng.standard_normal((4, 192)) + offset, "float32")
    rounded = np.asarray(jnp.asarray(x, "bfloat16").astype("float32"))
    mean, variance = (keras.ops.convert_to_numpy(m)[:, 0] for m in moments(rounded))
    np.testing.assert_allclose(mean, rounded.mean(1, dtype="float64"), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(variance, rounded.var(1, dtype="float64"), rtol=2.0**-9)


@pytest.fixture
def calls(monkeypatch):
    """The calls of cuDNN's attention on a GPU of capability 8.0, which XLA's form of it answers."""
    calls, form = [], jax.nn.dot_product_attention

    def called(query, key, value, bias=None, *, implementation, **lengths):
        assert implementation == "cudnn"
        calls.append({"tokens": (query.shape[1], key.shape[1]), "bias": bias, **lengths})
        return form(query, key, value, bias, implementation="xla", **lengths)

    monkeypatch.setattr(jax.nn, "dot_product_attention", called)
    token = traced_for.set(gpu("8.0"))
    yield calls
    traced_for.reset(token)


def gpu(capability):
    return types.SimpleNamespace(compute_capability=capability)


ATTENDED = [
    (18, 21, (2, 1, 18, 21)),
    (19, 19, None),  # a class token makes the number odd
    (18, 20, None),
    (17, 20, (1, 3, 17, 20)),
    (17, 17, (3, 17, 17)),  # a relative position bias
]


@pytest.mark.parametrize("queries, keys, bias_shape", some(ATTENDED, 5))
def test_cudnns_attention_and_its_gradients_equal_the_formula(queries, keys, bias_shape, calls, rng):
    shapes = [(2, queries, 3, 16), *2 * [(2, keys, 3, 16)], bias_shape, (2, queries, 3, 16)]
    *inputs, gradient = (
        shape and jnp.asarray(2 * rng.standard_normal(shape), "bfloat16") for shape in shapes
    )
    exact = with_gradients(formula, [x if x is None else x.astype("float32") for x in inputs], gradient)
    found = with_gradients(fused_attention, inputs, gradient)
    (call,) = calls
    assert all(count % 2 == 0 for count in call["tokens"])
    assert ("key_value_seq_lengths" in call) == (queries % 2 or keys % 2)
    for actual, wanted in zip(found, exact, strict=True):
        assert actual.shape == wanted.shape
        error = jnp.abs(actual.astype("float32") - wanted).max() / jnp.abs(wanted).max()
        assert error < 0.02, error  # bfloat16 rounds by 0.004


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=slow)])
def test_cudnn_masks_keys_for_all_queries(dtype, calls, rng):
    (query, key, value) = (jnp.asarray(rng.standard_normal((2, 19, 3, 16)), dtype) for _ in range(3))
    mask = attention.masking_bias(np.arange(19) >= np.array([[7], [0]]))[
        :, None, None
    ]  # all keys of one image
    found = fused_attention(query, key, value, mask)
    assert jnp.isfinite(calls[0]["bias"]).all() and calls[0]["bias"].shape == (2, 1, 20, 20)
    alone = fused_attention(query[:1], key[:1, :7], value[:1, :7])  # by the other form, of few keys
    assert len(calls) == 1
    np.testing.assert_allclose(*(np.asarray(x[0], "float32") for x in (found, alone)), atol=0.02)
    assert jnp.isfinite(found).all()


@by_table(
    "capability, dtype, size, queries, keys, expected",
    [
        ("8.0", "bfloat16", 16, 17, 17, True),
        ("12.0", "float16", 16, 17, 17, True),
        ("7.5", "float16", 16, 17, 17, False),  # a T4
        ("gfx942", "bfloat16", 16, 17, 17, False),  # AMD's
        ("8.0", "float32", 16, 17, 17, False),
        ("8.0", "bfloat16", 12, 17, 17, False),
        ("9.0", "bfloat16", 136, 200, 200, False),
        ("8.0", "bfloat16", 16, 1, 197, False),  # a class token
        ("8.0", "bfloat16", 16, 197, 16, False),
    ],
)
def test_cudnn_computes_what_its_kernels_take(capability, dtype, size, queries, keys, expected, calls):
    arrays = (jnp.zeros((1, count, 1, size), dtype) for count in (queries, keys, keys))
    traced_for.set(gpu(capability))
    assert cudnn_computes(*arrays) is expected


def test_other_devices_have_no_cudnn():
    with jax.default_device(jax.devices("cpu")[0]):
        assert cudnn_computes(*jnp.zeros((3, 1, 32, 1, 8), "bfloat16")) is False


@pytest.mark.parametrize("dropout_rate, count", [(0.0, 1), (0.5, 0)])
def test_the_layer_gives_cudnn_all_queries_at_once(dropout_rate, count, calls, rng, monkeypatch):
    monkeypatch.setattr(attention, "MAX_CHUNK_SCORES", 40)
    layer = MultiHeadSelfAttention(2, dropout_rate=dropout_rate, causal=True, dtype="mixed_bfloat16")
    tokens = rng.standard_normal((1, 19, 32))
    found = layer(tokens, training=True)
    assert [call["tokens"] for call in calls] == count * [(20, 20)]
    traced_for.set(gpu("7.5"))
    if count:
        np.testing.assert_allclose(
            *(np.asarray(x, "float32") for x in (found, layer(tokens))), rtol=0.02, atol=0.02
        )
    assert len(calls) == count
