import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import vit_numpy
from reference.comparing import arrays, assert_close, numpy, randomise

from keras_vit.layers import MultiHeadSelfAttention, attend, attention, attention_scores
from keras_vit.layers.attention import Projection


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


@pytest.mark.parametrize("pairs", [1, 10, 14, 49, 10**9])
def test_queries_in_stretches_take_what_they_take_together(pairs, rng, monkeypatch):
    """Whatever is held at a time: one query, one or two, two, all."""
    monkeypatch.setattr(attention, "MAX_CHUNK_SCORES", pairs)
    tokens, query = (rng.standard_normal((2, n, 12)).astype("float32") for n in (7, 3))
    layer = MultiHeadSelfAttention(3, name="a")
    layer.build(tokens.shape)
    w = arrays(randomise(layer))
    assert_close(layer(tokens), vit_numpy.attention(w, "a", tokens, tokens))
    assert_close(layer(tokens, query), vit_numpy.attention(w, "a", query, tokens))


@given(st.integers(0, 300), st.integers(1, 300), st.integers(1, 5000))
def test_the_stretches_are_all_queries_in_order_within_the_bound(queries, keys, pairs):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "MAX_CHUNK_SCORES", pairs)
        parts = attention.query_chunks(queries, keys)
    assert [i for part in parts for i in range(queries)[part]] == [*range(queries)]
    sizes = [part.stop - part.start for part in parts]
    assert parts and all(size <= 1 or size * keys <= pairs for size in sizes)
    assert max(sizes) - min(sizes) <= 1
    fewer = len(parts) - 1  # would be above the bound
    assert fewer == 0 or -(-queries // fewer) * keys > pairs


@pytest.mark.tensorflow_only("TensorFlow's graph")
def test_a_stretch_begins_when_the_last_but_one_is_done(monkeypatch):
    """Else TensorFlow would hold the scores of as many as it has threads."""
    import tensorflow as tf

    monkeypatch.setattr(attention, "MAX_CHUNK_SCORES", 5)
    layer = MultiHeadSelfAttention(2)
    layer.build((None, 5, 8))
    graph = tf.function(layer).get_concrete_function(tf.TensorSpec((None, 5, 8))).graph
    scores = [op for op in graph.get_operations() if op.type == "Softmax"]
    assert len(scores) == 5

    def before(op):
        """All operations that are done before this one."""
        found, left = set(), [op]
        while left:
            op = left.pop()
            nexts = {tensor.op for tensor in op.inputs} | {*op.control_inputs}
            left += nexts - found
            found |= nexts
        return found

    behind = [[n for n, other in enumerate(scores) if other in before(op)] for op in scores]
    assert behind == [[], [], [0], [1], [0, 2]]


def test_the_published_sizes_are_attended_to_in_one_stretch():
    assert attention.query_chunks(577, 577) == [slice(0, 577)]  # 384 pixels in patches of 16
    assert len(attention.query_chunks(4097, 4097)) > 8  # 1,024 pixels
    assert attention.query_chunks(None, None) == [slice(None)]


def test_dropout_differs_from_stretch_to_stretch(rng, monkeypatch):
    monkeypatch.setattr(attention, "MAX_CHUNK_SCORES", 64)
    tokens = np.repeat(rng.standard_normal((1, 1, 8)), 64, axis=1).astype("float32")
    layer = MultiHeadSelfAttention(2, dropout_rate=0.5)
    taken = numpy(layer(tokens, training=True))  # all tokens alike: only the mask tells them apart
    assert len(np.unique(taken.round(5), axis=1).reshape(-1, 8)) > 32


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
    with pytest.raises(ValueError, match=f"num_heads must be an int that divides hidden_size 8; got {heads}"):
        MultiHeadSelfAttention(heads)(np.zeros((1, 5, 8)))


@pytest.mark.tensorflow_only("TensorFlow's graph")
def test_all_projections_are_products_of_matrices_with_their_bias():
    import tensorflow as tf

    layer = MultiHeadSelfAttention(2)
    layer.build((None, 5, 8))
    graph = tf.function(layer).get_concrete_function(tf.TensorSpec((None, 5, 8))).graph
    products = [op for op in graph.get_operations() if op.type == "MatMul"]
    assert len(products) == 4
    assert all(op.outputs[0].consumers()[0].type == "BiasAdd" for op in products)


@pytest.mark.parametrize(
    "equation, shape, kept", [("btc,chd->bthd", (2, 5, 8), (2, 4)), ("bthd,hdc->btc", (2, 5, 2, 4), (8,))]
)
def test_a_projection_is_its_equation(equation, shape, kept, rng):
    x = rng.standard_normal(shape).astype("float32")
    layer = Projection(equation, (None, *kept), bias_axes=equation[-2:] if len(kept) == 2 else "c")
    layer.build(shape)
    randomise(layer)
    expected = np.einsum(equation, x, numpy(layer.kernel), dtype="float64") + numpy(layer.bias)
    assert_close(layer(x), expected)
    assert layer(x[:0]).shape == (0, 5, *kept)


def test_a_projection_of_other_axes_is_refused():
    with pytest.raises(ValueError, match="must be 'btc,chd->bthd' or 'bthd,hdc->btc'; got 'btc,cd->btd'"):
        Projection("btc,cd->btd", (None, 8))


def test_all_projections_of_a_model_are_quantised(rng):
    layer = MultiHeadSelfAttention(2)
    layer.build((None, 5, 32))
    randomise(layer)
    tokens = rng.standard_normal((2, 5, 32)).astype("float32")
    expected = numpy(layer(tokens))
    for part in (layer.query, layer.key, layer.value, layer.out):
        part.quantize("int8")
        assert keras.backend.standardize_dtype(part._kernel.dtype) == "int8"
    assert_close(layer(tokens), expected, 0.05)
    assert np.abs(numpy(layer(tokens)) - expected).max() > 0
