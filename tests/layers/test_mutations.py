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
from keras_vit.models.resnet_stem import FORMS

FACTORS = (0.1, 10)
NORMS = (keras.layers.LayerNormalization, keras.layers.GroupNormalization)
HYBRID = {"image_size": 32, "patch_size": 4, "hidden_size": 12, "resnet": (1,), "resnet_width": 32}
PLAIN = {"image_size": 8, "patch_size": 4, "hidden_size": 12}
SIZES = {"num_layers": 1, "mlp_dim": 20, "num_heads": 3}
MODELS = {
    "hybrid": {**HYBRID, **SIZES},
    "timm_hybrid": {**HYBRID, **SIZES, "resnet_form": "timm"},
    "map": {**PLAIN, **SIZES, "pooling": "map", "pre_norm": True},
    "pooled": {**PLAIN, **SIZES, "pooling": "gap", "norm_after_pooling": True},
}
HYBRID_NORMS = [
    *((None, name) for name in ("gn_root", *(f"block1_unit1_gn{i}" for i in (1, 2, 3, "_proj")))),
    *(("encoder_block_0", "attention_norm"), ("encoder_block_0", "mlp_norm"), (None, "encoder_norm")),
]
EXPECTED = {  # every norm of these models, as (the layer that holds it, its name)
    "hybrid": HYBRID_NORMS,
    "timm_hybrid": HYBRID_NORMS,
    "map": [
        *((None, "pre_norm"), ("encoder_block_0", "attention_norm"), ("encoder_block_0", "mlp_norm")),
        *((None, "encoder_norm"), ("attention_pooling", "mlp_norm")),
    ],
    "pooled": [
        *(("encoder_block_0", "attention_norm"), ("encoder_block_0", "mlp_norm"), (None, "pooled_norm")),
    ],
}
CASES = [(model, *place) for model, places in EXPECTED.items() for place in places]
STEMS = {"hybrid": "vit_jax", "timm_hybrid": "timm"}
CONVS = ["conv_root", *(f"block1_unit1_conv{i}" for i in (1, 2, 3, "_proj"))]


def norms(model):
    """Every norm by (the layer that holds it, its name)."""
    own = {(None, layer.name): layer for layer in model.layers}
    held = {(h.name, part.name): part for h in model.layers for part in h._flatten_layers(include_self=False)}
    return {place: layer for place, layer in {**own, **held}.items() if isinstance(layer, NORMS)}


@pytest.fixture(scope="module")
def models():
    return {name: randomise(VisionTransformer(**sizes)) for name, sizes in MODELS.items()}


def check_norm(layer, stem="vit_jax"):
    """At inputs of 1e-3 the variance is as small as the epsilon of 1e-6 (1e-5 in timm's stem)."""
    channels = layer.gamma.shape[0]
    grouped = isinstance(layer, keras.layers.GroupNormalization)
    x = 1e-3 * np.random.default_rng(0).standard_normal((2, *[3] * (1 + grouped), channels))
    w = {"n/gamma": numpy(layer.gamma), "n/beta": numpy(layer.beta)}
    if grouped:
        expected = vit_numpy.group_norm(w, "n", x, epsilon=vit_numpy.RESNET_EPSILONS[stem][2])
    else:
        expected = vit_numpy.layer_norm(w, "n", x, {"norm_epsilon": 1e-6})
    assert_close(layer(x.astype("float32")), expected, 1e-5)


@pytest.mark.parametrize("model", [*MODELS])
def test_the_list_of_norms_is_complete(models, model):
    assert {*norms(models[model])} == {*EXPECTED[model]}


@pytest.mark.parametrize("model, holder, name", CASES)
def test_a_wrong_epsilon_in_any_norm_is_seen(models, model, holder, name, monkeypatch):
    layer, stem = norms(models[model])[holder, name], STEMS.get(model, "vit_jax")
    check_norm(layer, stem)
    for factor in FACTORS:
        with monkeypatch.context() as patch, pytest.raises(AssertionError):
            patch.setattr(layer, "epsilon", factor * layer.epsilon)
            check_norm(layer, stem)


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


def check_std_conv(layer, scale, form):
    """With kernels about as small as what is added to their deviation or variance."""
    images = np.random.default_rng(0).standard_normal((2, 12, 12, layer.kernel.shape[2]))
    kernel = numpy(randomise(layer, scale).kernel)
    epsilons = vit_numpy.RESNET_EPSILONS[form]
    expected = vit_numpy.std_conv(images, kernel, layer.strides[0], layer.padding, epsilons)
    assert_close(layer(images.astype("float32")), expected, 1e-5)


def std_conv(**epsilons):
    layer = StdConv2D(8, 3, use_bias=False, **epsilons)
    layer.build((None, 12, 12, 3))
    return layer


RIGHT = {"vit_jax": {}, "timm": {"epsilon": 0.0, "variance_epsilon": 1e-8}}
WRONG_EPSILONS = {  # (added to the deviation, added to the variance)
    "vit_jax": [(1e-6, 0), (1e-4, 0), (0, 1e-5), (0, 1e-8), (0, 1e-10), (1e-5, 1e-10), (1e-5, 1e-8), (0, 0)],
    "timm": [(0, 1e-9), (0, 1e-7), (0, 1e-5), (1e-5, 0), (1e-4, 0), (1e-5, 1e-8), (1e-8, 0), (0, 0)],
}


@pytest.mark.parametrize(
    "form, wrong", [(form, wrong) for form, pairs in WRONG_EPSILONS.items() for wrong in pairs]
)
def test_a_wrong_epsilon_in_the_standardised_convolution_is_seen(form, wrong):
    scale = {"vit_jax": 1e-5, "timm": 1e-4}[form]
    check_std_conv(std_conv(**RIGHT[form]), scale, form)
    with pytest.raises(AssertionError):
        check_std_conv(std_conv(epsilon=wrong[0], variance_epsilon=wrong[1]), scale, form)


@pytest.mark.parametrize("model", [*STEMS])
@pytest.mark.parametrize("name", CONVS)
def test_a_wrong_epsilon_in_any_convolution_of_a_stem_is_seen(models, model, name, monkeypatch):
    layer, form = models[model].get_layer(name), STEMS[model]
    (other,) = {*STEMS.values()} - {form}
    check_std_conv(layer, 1e-4, form)
    with pytest.raises(AssertionError):
        check_std_conv(layer, 1e-4, other)
    for argument in ("epsilon", "variance_epsilon"):
        for value in {FORMS[other]["conv"][argument], *(f * getattr(layer, argument) for f in FACTORS)}:
            if value != getattr(layer, argument):
                with monkeypatch.context() as patch, pytest.raises(AssertionError):
                    patch.setattr(layer, argument, value)
                    check_std_conv(layer, 1e-4, form)


@pytest.mark.parametrize("model", [*STEMS])
def test_the_list_of_convolutions_is_complete(models, model):
    assert {layer.name for layer in models[model].layers if isinstance(layer, StdConv2D)} == {*CONVS}


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
