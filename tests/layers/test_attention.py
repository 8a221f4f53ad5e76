import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import vit_numpy
from reference.comparing import arrays, assert_close, numpy, randomize
from reference.vit_numpy import PLAIN

from keras_vit.layers import (
    MultiHeadSelfAttention,
    RelativePositionIndex,
    attend,
    attention,
    attention_scores,
)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scores_are_at_least_float32_and_outputs_have_the_dtype_of_the_values(dtype):
    query = keras.ops.ones((1, 2, 1, 4), dtype)
    scores = attention_scores(query, query)
    assert keras.backend.standardize_dtype(scores.dtype) == "float32"
    assert keras.backend.standardize_dtype(attend(scores, query).dtype) == dtype


@pytest.mark.parametrize("max_scores", [1, 10, 14, 49, 10**9])  # one query, one or two, two, all
@pytest.mark.parametrize("heads, qkv_bias", [(1, True), (3, False)])
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
    MultiHeadSelfAttention(2)(np.zeros((1, 5, 8)))
    assert waits == [0, 0, 1, 1, 1]


def test_dropout_masks_differ_between_chunks_and_only_training_has_them(rng, monkeypatch):
    monkeypatch.setattr(attention, "MAX_CHUNK_SCORES", 64)
    tokens = np.repeat(rng.standard_normal((1, 1, 8)), 64, axis=1).astype("float32")
    layer = MultiHeadSelfAttention(2, dropout_rate=0.5)
    outputs = numpy(layer(tokens, training=True))  # tokens are equal, so only the masks differ
    assert len(np.unique(outputs.round(5), axis=1).reshape(-1, 8)) > 32
    np.testing.assert_array_equal(numpy(layer(tokens)), numpy(layer(tokens, training=False)))
