import numpy as np
import pytest
from reference import vit_numpy
from reference.comparing import arrays, assert_close, numpy, randomise

from keras_vit.layers import AttentionPooling


@pytest.mark.parametrize(
    "options",
    [{}, {"activation": "gelu_erf", "norm_epsilon": 1e-3}, {"qkv_bias": False}],
    ids=str,
)
def test_it_is_the_published_head(options, rng):
    tokens = rng.standard_normal((2, 5, 12)).astype("float32")
    layer = AttentionPooling(3, 20, **options, name="map")
    layer.build(tokens.shape)
    w = arrays(randomise(layer))
    settings = {"norm_epsilon": 1e-6, "activation": "gelu_tanh", **options}
    assert_close(layer(tokens), vit_numpy.attention_pooling(w, "map", tokens.astype("float64"), settings))


def test_the_probe_looks_at_every_token_and_its_scores_sum_to_one(rng):
    tokens = rng.standard_normal((2, 5, 12)).astype("float32")
    layer = AttentionPooling(3, 20)
    layer(tokens)
    scores = numpy(layer.scores(tokens))
    assert scores.shape == (2, 3, 1, 5)
    np.testing.assert_allclose(scores.sum(-1), 1, rtol=1e-5)


def test_the_order_of_the_tokens_does_not_matter(rng):
    tokens = rng.standard_normal((2, 5, 12)).astype("float32")
    layer = AttentionPooling(3, 20)
    assert_close(layer(tokens[:, ::-1]), numpy(layer(tokens)), 1e-5)


def test_a_batch_of_no_images_stays_one():
    assert AttentionPooling(3, 20)(np.zeros((0, 5, 12))).shape == (0, 12)


def test_heads_are_checked():
    with pytest.raises(ValueError, match="num_heads must be an int that divides hidden_size 12; got 5"):
        AttentionPooling(5, 20)(np.zeros((1, 5, 12)))
