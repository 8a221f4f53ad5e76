import gc
import weakref

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.comparing import arrays, assert_close, numpy, randomize
from reference.small import images_for, one_block

from keras_vit.layers import StochasticDepth, attention, standard_block


def test_norms_after_the_residuals_are_of_the_sums(rng):
    tokens = rng.standard_normal((2, 5, 12)).astype("float32")
    layer = standard_block(3, 20, norm_after_residual=True)
    layer.build(tokens.shape)
    randomize(layer)
    x = layer.attention_norm(tokens + layer.attention(tokens))
    assert_close(layer(tokens), numpy(layer.mlp_norm(x + layer.mlp(x))))


AFTER = [{"post_norm": True, "layer_scale": 0.1}, {"norm_after_residual": True}]


@pytest.mark.parametrize("options", [{}, *AFTER, {"remat": True}], ids=str)
def test_the_first_outputs_alone_equal_those_of_all_tokens(options, rng):
    tokens = rng.standard_normal((2, 5, 12)).astype("float32")
    layer = standard_block(3, 20, **options)
    layer.build(tokens.shape)
    randomize(layer)
    assert_close(layer(tokens, training=True, num_outputs=2), numpy(layer(tokens))[:, :2])
    assert layer(keras.Input((5, 12)), num_outputs=2).shape == (None, 2, 12)


@pytest.mark.parametrize("rate", ["dropout_rate", "stochastic_depth_rate"])
def test_each_rate_is_active_in_training_only(rate, rng):
    tokens = rng.standard_normal((8, 5, 12)).astype("float32")
    layer = standard_block(3, 20, **{rate: 0.5})
    np.testing.assert_array_equal(numpy(layer(tokens)), numpy(layer(tokens, training=False)))
    assert np.abs(numpy(layer(tokens, training=True)) - numpy(layer(tokens))).max() > 1e-2


@given(st.floats(0.05, 0.9), st.integers(0, 9))
def test_stochastic_depth_skips_images_at_its_rate_and_keeps_the_mean(rate, seed):
    images = 2000
    output = numpy(StochasticDepth(rate, seed=seed)(np.ones((images, 3, 2), "float32"), training=True))
    kept = output[:, :1, :1] > 0
    np.testing.assert_allclose(output, np.where(kept, 1 / (1 - rate), 0) * np.ones((3, 2)), rtol=1e-5)
    assert abs(kept.mean() - (1 - rate)) < 5 * (rate * (1 - rate) / images) ** 0.5


@pytest.mark.parametrize("rate, training", [(0.5, False), (0.5, None), (0.0, True)])
def test_stochastic_depth_has_no_effect_outside_training_or_without_a_rate(rate, training, rng):
    x = rng.standard_normal((16, 3)).astype("float32")
    np.testing.assert_array_equal(numpy(StochasticDepth(rate)(x, training=training)), x)


@pytest.mark.slow
@pytest.mark.tensorflow_only("micro-batches, and seeds that are functions of the step")
@pytest.mark.parametrize("accumulation_steps", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_recomputation_in_the_backward_pass_does_not_change_training(accumulation_steps):
    """Only the last bits differ, since oneDNN fuses other operations."""
    found = []
    for remat in (False, True):
        model = one_block(dropout_rate=0.3, attention_dropout_rate=0.3)
        model.get_layer("encoder_block_0").remat = remat
        model.compile(
            keras.optimizers.SGD(0.05),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            accumulation_steps=accumulation_steps,
            seed=0,
            run_eagerly=not remat,  # Tracing takes longer.
        )
        images, labels = images_for(model, 8), np.arange(8) % 5
        found = [arrays(model), *found]
        model.fit(images, labels, batch_size=4, shuffle=False, verbose=0)
        found.append(arrays(model))
    _, before, kept, again = found
    assert (
        kept["encoder_block_0/attention/query/kernel"] != before["encoder_block_0/attention/query/kernel"]
    ).all()
    for path in kept:
        assert_close(again[path], kept[path], 1e-6)


@pytest.mark.tensorflow_only("it looks at what TensorFlow's tape keeps")
@pytest.mark.parametrize("remat", [False, True])
def test_the_tape_keeps_intermediate_results_only_without_recomputation(remat):
    import tensorflow as tf

    layer = standard_block(3, 20, remat=remat)
    layer.build((2, 5, 12))
    norm, outputs = layer.mlp_norm.call, []

    def watched(x):
        outputs.append(weakref.ref(y := norm(x)))
        return y

    layer.mlp_norm.call = watched
    with tf.GradientTape() as tape:
        tokens = layer(tf.ones((2, 5, 12)), training=True)
    gc.collect()
    assert (outputs[0]() is None) == remat
    gradients = tape.gradient(tokens, [v.value for v in layer.trainable_variables])
    assert all(gradient is not None for gradient in gradients)
    assert len(outputs) == 1 + remat


def test_a_block_is_saved_with_its_parts(tmp_path):
    tokens = keras.Input((5, 12))
    model = keras.Model(tokens, standard_block(3, 7, remat=True, name="block")(tokens))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("block").remat
    assert [weight.path for weight in loaded.weights] == [weight.path for weight in model.weights]


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("max_scores", [10, 10**9])
def test_a_token_that_the_bias_masks_has_no_effect_on_the_others(remat, max_scores, rng, monkeypatch):
    monkeypatch.setattr(attention, "MAX_CHUNK_SCORES", max_scores)
    tokens = rng.standard_normal((2, 7, 12)).astype("float32")
    layer = standard_block(3, 24, remat=remat)
    layer.build(tokens.shape)
    randomize(layer)
    masked = np.arange(7) >= 5
    bias = np.broadcast_to(np.where(masked, -1e9, 0).astype("float32"), (2, 1, 7, 7))
    found = numpy(layer(tokens, bias=bias, training=True))
    np.testing.assert_allclose(found[:, :5], numpy(layer(tokens[:, :5])), rtol=1e-5, atol=1e-6)
