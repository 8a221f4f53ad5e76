import keras
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from reference import vit_numpy
from reference.comparing import assert_close, numpy, randomize

from keras_vit.layers import LayerNormalization
from keras_vit.layers.layer_norm import NORMS


def built(shape, kind=LayerNormalization, **arguments):
    layer = kind(epsilon=1e-6, **arguments)
    layer.build(shape)
    return randomize(layer)


def expected_output(layer, x):
    w = {f"n/{weight.name}": numpy(keras.ops.cast(weight, "float32")) for weight in layer.weights}
    kind = "layer" if isinstance(layer, LayerNormalization) else "rms"
    return vit_numpy.norm(w, "n", x.astype("float64"), {"norm": kind, "norm_epsilon": 1e-6})


@pytest.mark.parametrize("norm", NORMS)
@given(
    st.integers(0, 3),
    st.integers(1, 9),
    st.sampled_from([1e-3, 1.0, 1e3]),
    st.sampled_from([0.0, 3.0, -30.0]),
)
@example(2, 8, 1e-3, 0.0)  # whose variance is the epsilon
def test_it_equals_the_formula(norm, batch, channels, scale, offset):
    x = (scale * (np.random.default_rng(0).standard_normal((batch, 4, channels)) + offset)).astype("float32")
    layer = built(x.shape, NORMS[norm])
    # In float32 the precision of the input is lower with an offset.
    assert_close(layer(x), expected_output(layer, x), 3e-6 * max(1, abs(offset)))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "bfloat16"])
def test_statistics_are_computed_in_float32_so_that_16_bits_are_rounded_once(policy, norm, rng):
    layer = built((2, 5, 64), NORMS[norm], dtype=policy)
    x = keras.ops.cast(8 + rng.standard_normal((2, 5, 64)), layer.compute_dtype)
    output = layer(x)
    assert keras.backend.standardize_dtype(output.dtype) == layer.compute_dtype
    rounding = 2.0**-8 if "bfloat16" in policy else 2.0**-11
    expected = expected_output(layer, numpy(keras.ops.cast(x, "float32")))
    assert_close(keras.ops.cast(output, "float32"), expected, 1.01 * rounding)
