import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made.sampling import some
from reference import vit_numpy
from reference.comparing import arrays, assert_close, numpy, randomize
from reference.vit_numpy import PLAIN

from keras_vit.exporting import exported_graph
from keras_vit.layers import (
    MultiHeadSelfAttention,
    RelativePositionIndex,
    attend,
    attention,
    attention_scores,
    head_loop,
)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scores_are_at_least_float32_and_outputs_have_the_dtype_of_the_values(dtype):
    query = keras.ops.ones((1, 2, 1, 4), dtype)
    scores = attention_scores(query, query)
    assert keras.backend.standardize_dtype(scores.dtype) == "float32"
    assert keras.backend.standardize_dtype(attend(scores, query).dtype) == dtype


@pytest.mark.parametrize("max_scores", some([1, 10, 14, 49, 10**9], 2))  # one query, one or two, two, all
@pytest.mark.parametrize("heads, qkv_bias", some([(1, True), (3, False)], 2))
def test_the_layer_computes_the_published_attention_in_chunks_of_any_size(
    max_scores, heads, qkv_bias, rng, monkeypatch
):
    monkeypatch.setattr(attention, "MAX_CHUNK_SCORES", max_scores)
    tokens, query = (rng.standard_normal((2, n, 12)).astype("float32") for n in (7, 3))
    layer = MultiHeadSelfAttention(heads, qkv_bias, name="a")
    layer.build(tokens.shape)
    w = arrays(randomize(layer))
    assert len(w) == (8 if qkv_bias else 5)
    assert_close(layer(tokens), vit_numpy.attention(w, "a", tokens, tokens, PLAIN))
    assert_close(layer(tokens, query), vit_numpy.attention(w, "a", query, tokens, PLAIN))
    scores = numpy(layer.scores(tokens, query))
    assert scores.shape == (2, heads, 3, 7)
    np.testing.assert_allclose(scores.sum(-1), 1, rtol=1e-5)
    assert_close(layer.out(attend(scores, layer.value(tokens))), numpy(layer(tokens, query)))
    assert layer.scores(tokens[:0]).shape == (0, heads, 7, 7)


def test_a_chunk_has_the_bias_of_its_own_queries(rng, monkeypatch):
    tokens = rng.standard_normal((2, 7, 12)).astype("float32")
    layer = MultiHeadSelfAttention(3, relative_grid=(2, 3), name="a")
    layer.build(tokens.shape)
    w, index = arrays(randomize(layer)), numpy(RelativePositionIndex()(np.zeros((1, 2, 3, 1))))
    monkeypatch.setattr(attention, "MAX_CHUNK_SCORES", 14)
    assert_close(layer(tokens, positions=index), vit_numpy.attention(w, "a", tokens, tokens, PLAIN, index))


@given(st.integers(0, 300), st.integers(1, 300), st.integers(1, 5000))
def test_chunks_cover_all_queries_in_order_within_the_bound(queries, keys, max_scores):
    chunks = attention.query_chunks(queries, keys, max_scores)
    assert [i for chunk in chunks for i in range(queries)[chunk]] == [*range(queries)]
    sizes = [chunk.stop - chunk.start for chunk in chunks]
    assert chunks and all(size <= 1 or size * keys <= max_scores for size in sizes)
    assert max(sizes) - min(sizes) <= 1
    fewer = len(chunks) - 1  # would exceed the bound
    assert fewer == 0 or -(-queries // fewer) * keys > max_scores


@pytest.mark.tensorflow_only("TensorFlow's graph")
def test_a_chunk_waits_for_the_last_but_one(monkeypatch):
    """Otherwise TensorFlow would hold the scores of as many chunks as it has threads."""
    waits = []
    after = attention.after
    monkeypatch.setattr(attention, "after", lambda tensors: waits.append(len(tensors)) or after(tensors))
    monkeypatch.setattr(attention, "MAX_CHUNK_SCORES", 5)
    with exported_graph():
        MultiHeadSelfAttention(2)(np.zeros((1, 5, 8)))
    assert waits == [0, 0, 1, 1, 1]


def test_dropout_masks_differ_between_chunks_and_only_training_has_them(rng, monkeypatch):
    monkeypatch.setattr(attention, "MAX_CHUNK_SCORES", 64)
    tokens = np.repeat(rng.standard_normal((1, 1, 8)), 64, axis=1).astype("float32")
    layer = MultiHeadSelfAttention(2, dropout_rate=0.5)
    outputs = numpy(layer(tokens, training=True))  # tokens are equal, so only the masks differ
    assert len(np.unique(outputs.round(5), axis=1).reshape(-1, 8)) > 32
    np.testing.assert_array_equal(numpy(layer(tokens)), numpy(layer(tokens, training=False)))


OPTIONS = {
    "plain": {},
    "groups of heads and norms": {"num_kv_heads": 2, "qk_norm": "rms", "sub_norm": "layer"},
    "causal": {"causal": True},
    "relative": {"relative_grid": (3, 4)},
}


def with_gradients(layer, tokens, bias, **options):
    """The output for tokens, and the gradients of a sum of it by the tokens, the bias and all weights."""
    import tensorflow as tf

    weights = [weight.value for weight in layer.trainable_weights]
    with tf.GradientTape() as tape:
        tape.watch([tokens, bias])
        output = layer(tokens, bias=bias, **options)
        factors = tf.cos(tf.cast(tf.range(tf.size(output)), output.dtype))
        total = tf.reduce_sum(output * tf.reshape(factors, tf.shape(output)))
    grads = tape.gradient(total, [tokens, bias, *weights], unconnected_gradients="zero")
    return [output, *map(tf.convert_to_tensor, grads)]


@pytest.mark.tensorflow_only("JAX knows every size when it compiles")
@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("is_known", [False, True], ids=["unknown", "known"])
@pytest.mark.parametrize("bias_shape", [(2, 1, 1, 13), (2, 4, 13, 13)], ids=["mask", "bias"])
@pytest.mark.parametrize(
    "options", some([pytest.param(value, id=name) for name, value in OPTIONS.items()], 3)
)
def test_many_tokens_have_the_outputs_and_gradients_of_one_product(
    options, bias_shape, is_known, jit_compile, rng, monkeypatch
):
    import tensorflow as tf

    tokens, bias = (rng.standard_normal(shape).astype("float32") for shape in ((2, 13, 16), bias_shape))
    layer = MultiHeadSelfAttention(4, **options)
    layer.build(tokens.shape)
    randomize(layer)
    positions = RelativePositionIndex()(np.zeros((1, 3, 4, 1))) if "relative_grid" in options else None
    expected = with_gradients(layer, tf.constant(tokens), tf.constant(bias), positions=positions)
    monkeypatch.setattr(attention, "MAX_CHUNK_SCORES", 30)  # two queries; the last slice has one
    monkeypatch.setattr(head_loop, "MAX_ROWS", 4)  # the last rows of four are filled up
    shapes = (2, 13, 16), bias_shape
    if not is_known:
        shapes = (None, None, 16), [size if size == 1 else None for size in bias_shape]
    compute = tf.function(
        lambda *inputs: with_gradients(layer, *inputs, positions=positions),
        input_signature=[*map(tf.TensorSpec, shapes)],
        autograph=False,
        jit_compile=jit_compile,
    )
    for computed, one in zip(compute(tokens, bias), expected, strict=True):
        np.testing.assert_allclose(computed, one, rtol=1e-4, atol=2e-5)


@pytest.mark.tensorflow_only("JAX knows every size when it compiles")
def test_the_gradient_of_slices_of_unknown_sizes_repeats_their_dropout(rng, monkeypatch):
    """The output is linear in the value's bias, which adds the sum of a query's scores that were kept."""
    import tensorflow as tf

    monkeypatch.setattr(attention, "MAX_CHUNK_SCORES", 64)
    layer = MultiHeadSelfAttention(2, dropout_rate=0.5)
    tokens = np.repeat(rng.standard_normal((1, 1, 8)), 32, axis=1).astype("float32")
    layer.build(tokens.shape)
    layer.out.kernel.assign(np.eye(8).reshape(2, 4, 8))
    layer.value.kernel.assign(np.zeros((8, 2, 4)))
    layer.value.bias.assign(np.ones((2, 4)))

    @tf.function(input_signature=[tf.TensorSpec((None, None, 8))], autograph=False)
    def compute(tokens):
        with tf.GradientTape() as tape:
            output = layer(tokens, training=True)
        return output, tape.gradient(output, layer.value.bias.value)

    output, gradient = compute(tokens)
    np.testing.assert_allclose(gradient, tf.reshape(tf.reduce_sum(output, axis=(0, 1)), (2, 4)), rtol=1e-5)
    assert len(np.unique(output.numpy().round(5), axis=1).reshape(-1, 8)) > 16  # a mask for each query
    assert not np.array_equal(compute(tokens)[0], output)


@pytest.mark.tensorflow_only("JAX knows every size when it compiles")
def test_no_slice_of_unknown_size_has_more_scores_than_the_bound_also_in_the_gradient(rng, monkeypatch):
    import tensorflow as tf

    sizes = []
    attention_scores = attention.attention_scores

    def recorded(query, key, bias):
        tf.numpy_function(lambda *shape: sizes.append(shape), [tf.shape(query)[1], tf.shape(key)[1]], [])
        return attention_scores(query, key, bias)

    monkeypatch.setattr(attention, "attention_scores", recorded)
    monkeypatch.setattr(attention, "MAX_CHUNK_SCORES", 30)
    layer = MultiHeadSelfAttention(2)
    signature = [tf.TensorSpec((None, None, 8)), tf.TensorSpec((None, 1, None, None))]
    tf.function(lambda *inputs: with_gradients(layer, *inputs), signature, autograph=False)(
        rng.standard_normal((1, 13, 8)).astype("float32"), np.zeros((1, 1, 13, 13), "float32")
    )
    assert sizes == [(2, 13)] * 14  # seven slices, and the same for the gradient


@pytest.mark.tensorflow_only("JAX knows every size when it compiles")
@pytest.mark.parametrize("num_queries", [None, 1], ids=["tokens", "class token"])
def test_few_tokens_of_unknown_number_are_computed_at_once(num_queries, rng, monkeypatch):
    """A loop has costs of its own."""
    import tensorflow as tf

    calls = []
    layer = MultiHeadSelfAttention(2)
    chunk_output = layer.chunk_output

    def recorded(query, *arguments, **options):
        calls.append(query.shape[1])
        return chunk_output(query, *arguments, **options)

    monkeypatch.setattr(layer, "chunk_output", recorded)
    tokens = rng.standard_normal((1, 5, 8)).astype("float32")
    layer.build(tokens.shape)
    compute = tf.function(
        lambda tokens, query: layer(tokens, query),
        input_signature=[tf.TensorSpec((None, None, 8)), tf.TensorSpec((None, num_queries, 8))],
        autograph=False,
    )
    computed = compute(tokens, tokens[:, :1])
    assert calls == [num_queries]
    np.testing.assert_allclose(computed, layer(tokens, tokens[:, :1]), atol=1e-6)
