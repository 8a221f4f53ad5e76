import numpy as np
import pytest
from reference import vit_numpy
from reference.comparing import arrays, assert_close, numpy, randomize

from keras_vit.layers import AttentionPooling


@pytest.mark.parametrize(
    "options", [{}, {"activation": "gelu_erf", "norm_epsilon": 1e-3}, {"qkv_bias": False}], ids=str
)
def test_it_computes_the_published_head(options, rng):
    tokens = rng.standard_normal((2, 5, 12)).astype("float32")
    layer = AttentionPooling(3, 20, **options, name="map")
    layer.build(tokens.shape)
    w = arrays(randomize(layer))
    settings = {"norm_epsilon": 1e-6, "activation": "gelu_tanh", **options}
    assert_close(layer(tokens), vit_numpy.attention_pooling(w, "map", tokens.astype("float64"), settings))
    scores = numpy(layer.scores(tokens))
    assert scores.shape == (2, 3, 1, 5)
    np.testing.assert_allclose(scores.sum(-1), 1, rtol=1e-5)
