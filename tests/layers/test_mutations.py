"""Constants that ordinary inputs do not show, each checked where it dominates, and then made wrong.

`check` holds a layer to NumPy. It must pass as the layer is, and fail for every mutation of it:
otherwise it would pass for a wrong model too.
"""

import keras
import numpy as np
import pytest
from reference import vit_numpy
from reference.comparing import arrays, assert_close, numpy, randomise

from keras_vit import VisionTransformer
from keras_vit.layers import EncoderBlock, MlpBlock, StdConv2D

FACTORS = (0.1, 10)
NORMS = (keras.layers.LayerNormalization, keras.layers.GroupNormalization)
HYBRID = {"image_size": 32, "patch_size": 4, "hidden_size": 12, "resnet": (1,), "resnet_width": 32}
PLAIN = {"image_size": 8, "patch_size": 4, "hidden_size": 12}
SIZES = {"num_layers": 1, "mlp_dim": 20, "num_heads": 3}
MODELS = {
    "hybrid": {**HYBRID, **SIZES},
    "map": {**PLAIN, **SIZES, "pooling": "map", "pre_norm": True},
    "pooled": {**PLAIN, **SIZES, "pooling": "gap", "norm_after_pooling": True},
}
EXPECTED = {  # every norm of these models, as (the layer that holds it, its name)
    "hybrid": [
        *((None, name) for name in ("gn_root", *(f"block1_unit1_gn{i}" for i in (1, 2, 3, "_proj")))),
        *(("encoder_block_0", "attention_norm"), ("encoder_block_0", "mlp_norm"), (None, "encoder_norm")),
    ],
    "map": [
        *((None, "pre_norm"), ("encoder_block_0", "attention_norm"), ("encoder_block_0", "mlp_norm")),
        *((None, "encoder_norm"), ("attention_pooling", "mlp_norm")),
    ],
    "pooled": [
        *(("encoder_block_0", "attention_norm"), ("encoder_block_0", "mlp_norm"), (None, "pooled_norm")),
    ],
}
CASES = [(model, *place) for model, places in EXPECTED.items() for place in places]


def norms(model):
    """Every norm by (the layer that holds it, its name)."""
    own = {(None, layer.name): layer for layer in model.layers}
    held = {(h.name, part.name): part for h in model.layers for part in h._flatten_layers(include_self=False)}
    return {place: layer for place, layer in {**own, **held}.items() if isinstance(layer, NORMS)}


@pytest.fixture(scope="module")
def models():
    return {name: randomise(VisionTransformer(**sizes)) for name, sizes in MODELS.items()}


def check_norm(layer):
    """At inputs of 1e-3 the variance is as small as the epsilon of 1e-6."""
    channels = layer.gamma.shape[0]
    grouped = isinstance(layer, keras.layers.GroupNormalization)
    x = 1e-3 * np.random.default_rng(0).standard_normal((2, *[3] * (1 + grouped), channels))
    w = {"n/gamma": numpy(layer.gamma), "n/beta": numpy(layer.beta)}
    if grouped:
        expected = vit_numpy.group_norm(w, "n", x, epsilon=1e-6)
    else:
        expected = vit_numpy.layer_norm(w, "n", x, {"norm_epsilon": 1e-6})
    assert_close(layer(x.astype("float32")), expected, 1e-5)


@pytest.mark.parametrize("model", [*MODELS])
def test_the_list_of_norms_is_complete(models, model):
    assert {*norms(models[model])} == {*EXPECTED[model]}


@pytest.mark.parametrize("model, holder, name", CASES)
def test_a_wrong_epsilon_in_any_norm_is_seen(models, model, holder, name, monkeypatch):
    layer = norms(models[model])[holder, name]
    check_norm(layer)
    for factor in FACTORS:
        with monkeypatch.context() as patch, pytest.raises(AssertionError):
            patch.setattr(layer, "epsilon", factor * layer.epsilon)
            check_norm(layer)


def check_block(layer):
    """The same within the block, where a branch must read its own norm."""
    tokens = 1e-3 * np.random.default_rng(0).standard_normal((2, 5, 12))
    settings = {"norm_epsilon": 1e-6, "activation": "gelu_tanh"}
    assert_close(layer(tokens.astype("float32")), vit_numpy.block(arrays(layer), "b", tokens, settings), 1e-5)


@pytest.mark.parametrize("norm", ["attention_norm", "mlp_norm"])
@pytest.mark.parametrize("factor", FACTORS)
def test_a_wrong_epsilon_is_seen_through_the_whole_block(norm, factor):
    layer = EncoderBlock(3, 20, name="b")
    layer.build((None, 5, 12))
    randomise(layer)
    if norm == "mlp_norm":  # what attention adds would drown the small tokens
        for weight in layer.attention.out.weights:
            weight.assign(0 * weight)
    check_block(layer)
    getattr(layer, norm).epsilon *= factor
    with pytest.raises(AssertionError):
        check_block(layer)


def check_activation(layer):
    tokens = 2 * np.random.default_rng(0).standard_normal((2, 5, 8))
    assert_close(layer(tokens.astype("float32")), vit_numpy.mlp(arrays(layer), "mlp", tokens), 1e-5)


@pytest.mark.parametrize("wrong", ["gelu_erf", "quick_gelu"])
def test_another_gelu_is_seen(wrong):
    layer = MlpBlock(20, name="mlp")
    layer.build((None, 5, 8))
    check_activation(randomise(layer))
    layer.activation = wrong
    with pytest.raises(AssertionError):
        check_activation(layer)


def check_std_conv(layer, scale):
    """With kernels no larger than the 1e-5 added to their deviation, or somewhat larger."""
    images = np.random.default_rng(0).standard_normal((2, 6, 6, 3))
    layer.build((None, 6, 6, 3))
    kernel = numpy(randomise(layer, scale).kernel)
    expected = vit_numpy.std_conv(images, kernel, padding="valid")
    assert_close(layer(images.astype("float32")), expected, 1e-5)


class InsideTheRoot(StdConv2D):
    """The mutation: the epsilon added to the variance, as timm and BiT do."""

    def convolution_op(self, inputs, kernel):
        ops = keras.ops
        kernel = kernel - ops.mean(kernel, axis=(0, 1, 2), keepdims=True)
        kernel = kernel / ops.sqrt(ops.var(kernel, axis=(0, 1, 2), keepdims=True) + self.epsilon)
        return keras.layers.Conv2D.convolution_op(self, inputs, kernel)


@pytest.mark.parametrize("factor", FACTORS)
def test_a_wrong_epsilon_in_the_standardised_convolution_is_seen(factor, monkeypatch):
    check_std_conv(StdConv2D(8, 3, use_bias=False), 1e-5)
    monkeypatch.setattr(StdConv2D, "epsilon", factor * StdConv2D.epsilon)
    with pytest.raises(AssertionError):
        check_std_conv(StdConv2D(8, 3, use_bias=False), 1e-5)


@pytest.mark.parametrize("epsilon", [1e-5, 1e-8, 1e-10])
@pytest.mark.parametrize("scale", [1e-5, 1e-4])
def test_an_epsilon_under_the_root_is_seen(epsilon, scale):
    check_std_conv(StdConv2D(8, 3, use_bias=False), scale)
    wrong = InsideTheRoot(8, 3, use_bias=False)
    wrong.epsilon = epsilon
    with pytest.raises(AssertionError):
        check_std_conv(wrong, scale)


@pytest.mark.parametrize("wrong", [None, "mean", "sample"])
def test_the_deviation_is_of_the_population(wrong):
    """Dividing by n - 1, or not centring, is another model."""
    kernel = np.random.default_rng(0).standard_normal((1, 1, 4, 8)).astype("float32") + 0.3
    images = np.eye(4, dtype="float32").reshape(1, 1, 4, 4)
    layer = StdConv2D(8, 1, use_bias=False)
    layer.build(images.shape)
    layer.kernel.assign(kernel)
    centred = kernel if wrong == "mean" else kernel - kernel.mean((0, 1, 2))
    expected = centred / (kernel.std((0, 1, 2), ddof=int(wrong == "sample")) + 1e-5)
    seen = np.abs(numpy(layer(images)) - expected).max() > 1e-4
    assert seen == (wrong is not None)
