import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import vit_numpy
from reference.comparing import assert_close, numpy, randomise

from keras_vit.layers import LayerNormalization


def made(shape, kind=LayerNormalization, **arguments):
    layer = kind(epsilon=1e-6, **arguments)
    layer.build(shape)
    return randomise(layer)


def weights(layer):
    return {"n/gamma": numpy(layer.gamma), "n/beta": numpy(layer.beta)}


@given(
    st.integers(0, 3),
    st.integers(1, 9),
    st.sampled_from([1e-3, 1.0, 1e3]),
    st.sampled_from([0.0, 3.0, -30.0]),
)
def test_it_is_the_plain_formula(batch, channels, scale, offset):
    x = (scale * (np.random.default_rng(0).standard_normal((batch, 4, channels)) + offset)).astype("float32")
    layer = made(x.shape)
    expected = vit_numpy.layer_norm(weights(layer), "n", x.astype("float64"), {"norm_epsilon": 1e-6})
    # What float32 has lost of the numbers before the norm sees them is the offset's share of their spread.
    assert_close(layer(x), expected, 3e-6 * max(1, abs(offset)))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "bfloat16"])
def test_sixteen_bits_are_rounded_once(policy, rng):
    """The statistics are float32's: against float64 nothing but the result's own rounding is off."""
    layer = made((2, 5, 64), dtype=policy)
    x = keras.ops.cast(8 + rng.standard_normal((2, 5, 64)), layer.compute_dtype)
    found = layer(x)
    assert keras.backend.standardize_dtype(found.dtype) == layer.compute_dtype
    exact = numpy(keras.ops.cast(x, "float32")).astype("float64")
    w = {name: numpy(keras.ops.cast(array, "float32")) for name, array in weights(layer).items()}
    expected = vit_numpy.layer_norm(w, "n", exact, {"norm_epsilon": 1e-6})
    digits = 2.0**-8 if "bfloat16" in policy else 2.0**-11
    assert_close(keras.ops.cast(found, "float32"), expected, 1.01 * digits)


@pytest.mark.tensorflow_only("TensorFlow's tape")
def test_its_gradients_are_those_of_keras_norm(rng):
    import tensorflow as tf

    x = tf.constant(rng.standard_normal((2, 5, 8)).astype("float32"))
    pull = rng.standard_normal((2, 5, 8)).astype("float32")
    found = []
    for kind in (LayerNormalization, keras.layers.LayerNormalization):
        layer = made(x.shape, kind)
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(layer(x) * pull)
        found.append(tape.gradient(total, [x, layer.gamma.value, layer.beta.value]))
    for ours, keras_own in zip(*found):
        assert_close(ours, numpy(keras_own), 3e-6)


@pytest.mark.parametrize("argument", ["axis", "center", "scale", "rms_scaling", "gamma_initializer"])
def test_what_only_keras_norm_can_do_is_refused(argument):
    with pytest.raises(TypeError, match=argument):
        LayerNormalization(**{argument: 1})


def test_its_configuration_is_what_it_takes():
    config = LayerNormalization(1e-5, name="n").get_config()
    assert config["epsilon"] == 1e-5 and "rms_scaling" not in config
    assert LayerNormalization.from_config(config).epsilon == 1e-5
