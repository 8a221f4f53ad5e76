"""The forms for XLA compute what the layers' own forms compute; `make test` runs this on JAX."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from keras_vit.layers.xla_form import fused_attention, moments

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
    outputs, backward = jax.vjp(function, *inputs)
    return [outputs, *(x for x in backward(gradient.astype(outputs.dtype)) if x is not None)]


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
