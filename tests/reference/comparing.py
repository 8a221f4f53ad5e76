"""Random weights for what starts at zero, weights by name, and the bound of the golden tests."""

import contextlib
from unittest import mock

import keras
import numpy as np

BOUND = 3e-6  # of the largest expected value; a correct float32 forward pass measures ≤ 2e-6


def randomize(model, scale=0.3, seed=1):
    """Give every weight a random value, so that no swapped, missing or zero one can pass."""
    rng = np.random.default_rng(seed)
    for weight in float_weights(model):
        start = 1.0 if weight.name == "gamma" else 0.0
        value = start + scale * rng.standard_normal(weight.shape)
        weight.assign(np.abs(value) if weight.name == "moving_variance" else value)
    return model


@contextlib.contextmanager
def without_initial_values():
    """Weights start at 0, for models to which `randomize` is applied: computing random ones takes longer."""
    initialize = keras.Variable._initialize_with_initializer

    def initialize_with_zeros(variable, initializer):
        initialize(variable, np.zeros if variable.dtype == "float32" else initializer)

    with mock.patch.object(keras.Variable, "_initialize_with_initializer", initialize_with_zeros):
        yield


def float_weights(model):
    return [weight for weight in model.weights if "float" in weight.dtype]


def arrays(model, inside=""):
    """The weights by path, with `inside` + "/" taken off the front."""
    start = len(inside) + 1 if inside else 0
    return {weight.path[start:]: numpy(weight) for weight in float_weights(model)}


def gradient(function, x):
    """The gradient of the sum of what a function returns for an array."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        variable = tf.Variable(x)
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(function(variable))
        return tape.gradient(total, variable).numpy()
    import jax

    return np.asarray(jax.grad(lambda x: function(x).sum())(x))


def numpy(x):
    """An array of a tensor, a Keras variable or an array."""
    return keras.ops.convert_to_numpy(x.value + 0 if isinstance(x, keras.Variable) else x)


def assert_close(actual, expected, bound=BOUND):
    actual, expected = numpy(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    error, largest = np.abs(actual - expected).max(initial=0), np.abs(expected).max(initial=0)
    assert error <= bound * largest, f"off by {error:.3g}, {error / largest:.2g} of the largest value"


def assert_same_arrays(found, expected):
    """Two dicts have the same names and equal arrays."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
