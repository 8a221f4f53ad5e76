import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import vit_numpy
from reference.comparing import arrays, assert_close, numpy, randomise

from keras_vit.layers import MultiHeadSelfAttention, attend, attention_scores


def test_scores_worked_out_by_hand():
    """A head of 4 halves the products, so log(3) against 0 is shared out 3 to 1."""
    query = np.array([[2.0, 0, 0, 0], [0, 0, 0, 0]]).reshape(1, 2, 1, 4)
    key = np.array([[0.0, 5, 5, 5], [np.log(3), 7, 7, 7]]).reshape(1, 2, 1, 4)
    scores = numpy(attention_scores(query, key))
    np.testing.assert_allclose(scores, [[[[0.25, 0.75], [0.5, 0.5]]]], rtol=1e-6)


def test_values_gathered_by_hand():
    scores = np.array([[0.25, 0.75], [1, 0]]).reshape(1, 1, 2, 2)
    value = np.array([[4.0, 0], [8, -4]]).reshape(1, 2, 1, 2)
    np.testing.assert_array_equal(numpy(attend(scores, value)).squeeze(), [[7, -3], [4, 0]])


def test_heads_do_not_mix():
    value = np.array([[1.0, 10], [2, 20]]).reshape(1, 2, 2, 1)  # head 0 holds 1 and 2, head 1 10 and 20
    scores = np.array([[[1.0, 0]], [[0, 1.0]]]).reshape(1, 2, 1, 2)
    np.testing.assert_array_equal(numpy(attend(scores, value)).squeeze(), [1, 20])


@given(st.integers(1, 3), st.integers(2, 5), st.integers(1, 3), st.floats(0.01, 30))
def test_every_row_of_the_scores_sums_to_one(batch, tokens, heads, scale):
    rng = np.random.default_rng(0)
    query, key = (scale * rng.standard_normal((batch, tokens, heads, 4)) for _ in range(2))
    scores = numpy(attention_scores(query, key))
    assert scores.shape == (batch, heads, tokens, tokens)
    assert scores.min() >= 0
    np.testing.assert_allclose(scores.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scores_are_float32_at_least_and_what_is_taken_has_the_type_of_the_values(dtype):
    import keras

    query = keras.ops.ones((1, 2, 1, 4), dtype)
    scores = attention_scores(query, query)
    assert keras.backend.standardize_dtype(scores.dtype) == "float32"
    assert keras.backend.standardize_dtype(attend(scores, query).dtype) == dtype


@pytest.mark.parametrize("heads, channels", [(1, 8), (3, 12), (4, 8)])
@pytest.mark.parametrize("qkv_bias", [True, False])
def test_the_layer_is_the_published_attention(heads, channels, qkv_bias, rng):
    tokens = rng.standard_normal((2, 5, channels)).astype("float32")
    query = rng.standard_normal((2, 3, channels)).astype("float32")
    layer = MultiHeadSelfAttention(heads, qkv_bias, name="a")
    layer.build(tokens.shape)
    w = arrays(randomise(layer))
    assert len(w) == (8 if qkv_bias else 5)
    assert_close(layer(tokens), vit_numpy.attention(w, "a", tokens, tokens))
    assert_close(layer(tokens, query), vit_numpy.attention(w, "a", query, tokens))
    scores = numpy(layer.scores(tokens, query))
    assert scores.shape == (2, heads, 3, 5)
    np.testing.assert_allclose(scores.sum(-1), 1, rtol=1e-5)
    taken = attend(scores, layer.value(tokens))
    assert_close(layer.out(taken), numpy(layer(tokens, query)))


def test_the_order_of_the_tokens_does_not_matter_to_attention(rng):
    tokens = rng.standard_normal((1, 6, 8)).astype("float32")
    order = rng.permutation(6)
    layer = MultiHeadSelfAttention(2)
    assert_close(layer(tokens[:, order]), numpy(layer(tokens))[:, order], 1e-5)


def test_kernels_start_with_the_glorot_limit_of_the_flattened_matrix():
    layer = MultiHeadSelfAttention(8)
    layer.build((None, None, 96))
    limit = (6 / (96 + 96)) ** 0.5
    for part in (layer.query, layer.key, layer.value, layer.out):
        assert np.abs(numpy(part.kernel)).max() == pytest.approx(limit, rel=0.01)
        assert not numpy(part.bias).any()


def test_dropout_thins_the_scores_in_training_only(rng):
    tokens = rng.standard_normal((2, 5, 8)).astype("float32")
    layer = MultiHeadSelfAttention(2, dropout_rate=0.5)
    still, again = numpy(layer(tokens)), numpy(layer(tokens, training=False))
    np.testing.assert_array_equal(still, again)
    assert np.abs(numpy(layer(tokens, training=True)) - still).max() > 1e-3


def test_a_batch_of_no_images_stays_one():
    layer = MultiHeadSelfAttention(2)
    assert layer(np.zeros((0, 5, 8))).shape == (0, 5, 8)
    assert layer.scores(np.zeros((0, 5, 8))).shape == (0, 2, 5, 5)


@pytest.mark.parametrize("heads", [3, 0, -1, 2.0])
def test_heads_that_do_not_divide_the_channels_are_refused(heads):
    with pytest.raises(ValueError, match=f"hidden_size 8 is not divisible by num_heads {heads}"):
        MultiHeadSelfAttention(heads)(np.zeros((1, 5, 8)))
