"""Epsilons, which ordinary inputs hide: each is checked where it dominates, and then made wrong.

A check compares a layer with NumPy. It must pass for the layer as it is and fail for every mutation.
"""

import keras
import numpy as np
import pytest
from reference import vit_numpy
from reference.comparing import assert_close, numpy, randomize

from keras_vit import VisionTransformer
from keras_vit.layers import StdConv2D

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
BLOCK = {"encoder_block_0/attention_norm", "encoder_block_0/mlp_norm"}
STEM = {"gn_root", *(f"block1_unit1_gn{i}" for i in (1, 2, 3, "_proj"))}
EXPECTED = {  # the paths of every norm of these models
    "hybrid": {*STEM, *BLOCK, "encoder_norm"},
    "timm_hybrid": {*STEM, *BLOCK, "encoder_norm"},
    "map": {"pre_norm", *BLOCK, "encoder_norm", "attention_pooling/mlp_norm"},
    "pooled": {*BLOCK, "pooled_norm"},
}
FORMS = {"hybrid": "vit_jax", "timm_hybrid": "timm"}


@pytest.fixture(scope="module")
def models():
    return {name: randomize(VisionTransformer(**sizes)) for name, sizes in MODELS.items()}


def layers(model, kind):
    return {layer.path: layer for layer in model._flatten_layers() if isinstance(layer, kind)}


def check_norm(layer, form):
    """At inputs of 1e-3 the variance is as small as the epsilon of 1e-6 (1e-5 in timm's stem)."""
    channels = layer.gamma.shape[0]
    grouped = isinstance(layer, keras.layers.GroupNormalization)
    x = 1e-3 * np.random.default_rng(0).standard_normal((2, *[3] * (1 + grouped), channels))
    w = {"n/gamma": numpy(layer.gamma), "n/beta": numpy(layer.beta)}
    if grouped:
        expected = vit_numpy.group_norm(w, "n", x, epsilon=vit_numpy.RESNET_EPSILONS[form][2])
    else:
        expected = vit_numpy.layer_norm(w, "n", x, {"norm_epsilon": 1e-6})
    assert_close(layer(x.astype("float32")), expected, 1e-5)


def check_std_conv(layer, form):
    """With kernels about as small as what is added to their standard deviation or variance."""
    images = np.random.default_rng(0).standard_normal((2, 12, 12, layer.kernel.shape[2]))
    kernel = numpy(randomize(layer, 1e-4).kernel)
    epsilons = vit_numpy.RESNET_EPSILONS[form]
    expected = vit_numpy.std_conv(images, kernel, layer.strides[0], layer.padding, epsilons)
    assert_close(layer(images.astype("float32")), expected, 1e-5)


@pytest.mark.parametrize("model", [*MODELS])
def test_a_wrong_epsilon_in_any_norm_is_detected(models, model, monkeypatch):
    form = FORMS.get(model, "vit_jax")
    norms = layers(models[model], NORMS)
    assert {*norms} == EXPECTED[model]
    for layer in norms.values():
        check_norm(layer, form)
        for factor in FACTORS:
            with monkeypatch.context() as patch, pytest.raises(AssertionError):
                patch.setattr(layer, "epsilon", factor * layer.epsilon)
                check_norm(layer, form)


@pytest.mark.parametrize("model", [*FORMS])
def test_a_wrong_epsilon_in_any_convolution_of_a_stem_is_detected(models, model, monkeypatch):
    convolutions = layers(models[model], StdConv2D)
    assert {*convolutions} == {"conv_root", *(f"block1_unit1_conv{i}" for i in (1, 2, 3, "_proj"))}
    wrong = {"vit_jax": [(1e-6, 0), (1e-4, 0), (0, 1e-8), (1e-5, 1e-8), (0, 0)]}
    wrong["timm"] = [(0, 1e-9), (0, 1e-7), (1e-5, 0), (1e-5, 1e-8), (0, 0)]
    for layer in convolutions.values():
        check_std_conv(layer, FORMS[model])
        for epsilon, variance_epsilon in wrong[FORMS[model]]:
            with monkeypatch.context() as patch, pytest.raises(AssertionError):
                patch.setattr(layer, "epsilon", epsilon)
                patch.setattr(layer, "variance_epsilon", variance_epsilon)
                check_std_conv(layer, FORMS[model])


@pytest.mark.parametrize("wrong", [None, "mean", "sample"])
def test_the_standard_deviation_is_that_of_the_population(wrong):
    """Dividing by n - 1, or not centering, is detected."""
    kernel = np.random.default_rng(0).standard_normal((1, 1, 4, 8)).astype("float32") + 0.3
    images = np.eye(4, dtype="float32").reshape(1, 1, 4, 4)
    layer = StdConv2D(8, 1, use_bias=False)
    layer.build(images.shape)
    layer.kernel.assign(kernel)
    centered = kernel if wrong == "mean" else kernel - kernel.mean((0, 1, 2))
    expected = centered / (kernel.std((0, 1, 2), ddof=int(wrong == "sample")) + 1e-5)
    differs = np.abs(numpy(layer(images)) - expected).max() > 1e-4
    assert differs == (wrong is not None)
