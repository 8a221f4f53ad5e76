"""The initial values of each layer's weights, which are those of the official code."""

import pytest
from made.tables import by_table
from reference.comparing import numpy

from keras_vit import layers

GLOROT = (6 / (128 + 512)) ** 0.5  # the limit of a uniform distribution, whose std is it / √3
CASES = {  # layer, shape of its input, weight, its standard deviation (largest value for limits)
    "attention": (layers.MultiHeadSelfAttention(8), (None, 5, 96), "query.kernel", (6 / 192) ** 0.5 / 3**0.5),
    "attention out": (
        layers.MultiHeadSelfAttention(8),
        (None, 5, 96),
        "out.kernel",
        (6 / 192) ** 0.5 / 3**0.5,
    ),
    "attention bias": (layers.MultiHeadSelfAttention(8), (None, 5, 96), "value.bias", 0),
    "mlp": (layers.MlpBlock(512), (None, 5, 128), "dense_0.kernel", GLOROT / 3**0.5),
    "mlp second": (layers.MlpBlock(512), (None, 5, 128), "dense_1.kernel", GLOROT / 3**0.5),
    "mlp bias": (layers.MlpBlock(512), (None, 5, 128), "dense_0.bias", 1e-6),
    "patches": (layers.PatchEmbedding(256, 8), (None, 16, 16, 3), "kernel", (1 / (8 * 8 * 3)) ** 0.5),
    "patches bias": (layers.PatchEmbedding(256, 8), (None, 16, 16, 3), "bias", 0),
    "positions": (layers.AddPositionEmbs("learned", 24, 1), (None, 577, 64), "table", 0.02),
    "class token": (layers.ClassToken(), (None, 5, 8), "token", 0),
    "class token of ones": (layers.ClassToken(initializer="ones"), (None, 5, 8), "token", 0),
    "mask token": (layers.MaskTokens(), (None, 5, 4000), "token", 0.05),
    "layer scale": (layers.LayerScale(0.25), (None, 5, 8), "gamma", 0),
}
MEANS = {"layer scale": 0.25, "class token of ones": 1}


@by_table("name", CASES)
def test_initial_values_have_the_published_standard_deviation(name):
    layer, shape, path, std = CASES[name]
    layer.build(*[shape] * (2 if name == "mask token" else 1))
    for part in path.split("."):
        layer = getattr(layer, part)
    weight = numpy(layer)
    assert weight.std() == pytest.approx(std, rel=0.15 if weight.size < 1000 else 0.05, abs=1e-9)
    assert abs(weight.mean() - MEANS.get(name, 0)) <= 4 * std / weight.size**0.5
