"""The epsilon of every norm in every kind of model, and those that the projects of checkpoints have.

Usual inputs hide a wrong one. So each is compared as a number, and tests/layers/test_layer_norm.py has inputs
whose variance is the epsilon.
"""

import inspect
import json
import re

import pytest
from made.checkpoints import base
from made.sampling import some
from made.tables import by_table
from reference.small import DECODER, HEAD, HYBRID, PACKED, PIXELS, SMALL, TEXT

import keras_vit
from keras_vit import layers
from keras_vit.layers.segmentation_head import UpscaleBlock
from keras_vit.tasks.image_text.huggingface import TWO_TOWERS as TEXT_TYPES
from keras_vit.training.named_recipes import RECIPES
from keras_vit.variants import FAMILIES, parse_variant
from keras_vit.weights.checkpoint import read_checkpoint
from keras_vit.weights.layouts import LAYOUTS, open_clip, timm_config
from keras_vit.weights.layouts.huggingface_config import options_of
from keras_vit.weights.layouts.huggingface_type_table import TYPES

OF_IMAGES, OF_TEXTS = 3e-4, 7e-4  # of the image and the text tower, and of nothing else
BARE = {**SMALL, "num_layers": 1, "num_classes": None, "norm_epsilon": OF_IMAGES}
ALL_NORMS = {
    **{"pre_norm": True, "patch_norm": True, "qk_norm": True, "attention_sub_norm": True},
    **{"mlp_sub_norm": True, "pooling": "map"},
}
SENTENCES = {**TEXT, "norm_epsilon": OF_TEXTS}


def stem(norm, epsilon, variance_epsilon):
    """The epsilons of the stem's group norms, and of the standard deviations and variances of its kernels."""
    names = [("gn_root", "conv_root")]
    names += [(f"block1_unit1_gn{n}", f"block1_unit1_conv{n}") for n in ("1", "2", "3", "_proj")]
    return {
        **{norms: norm for norms, _ in names},
        **{kernels: (epsilon, variance_epsilon) for _, kernels in names},
    }


def vit(**options):
    return keras_vit.VisionTransformer.from_config({**BARE, **options})


def segmenter(head, **options):
    return keras_vit.ImageSegmenter(vit(), 5, head, **options)


# Models, and the epsilons that `norm_epsilon` does not set. Sources of their numbers: `vit_jax`'s
# `models_resnet.py` (group norms; 1e-5 beside the standard deviation), timm's `layers/std_conv.py` and
# `GroupNormAct`, `torch.nn.BatchNorm2d`, and `EomtLayerNorm2d` of transformers, whose default no
# configuration replaces.
KINDS = {
    "class token": (lambda: vit(num_classes=5), {}),
    "all norms": (lambda: vit(**ALL_NORMS), {}),
    "all RMS norms": (lambda: vit(**ALL_NORMS, norm="rms"), {}),
    "pooled norm": (lambda: vit(pooling="gap", norm_after_pooling=True), {}),
    "gate": (lambda: vit(gated_mlp=True, activation="silu", mlp_sub_norm=True, post_norm=True), {}),
    "hybrid": (lambda: vit(**{**HYBRID, "resnet": (1,)}), stem(1e-6, 1e-5, 0.0)),
    "timm's hybrid": (
        lambda: vit(**{**HYBRID, "resnet": (1,), "resnet_form": "timm"}),
        stem(1e-5, 0.0, 1e-8),
    ),
    "packed": (lambda: vit(**PACKED), {}),
    "iGPT": (lambda: keras_vit.ImageGPT({**BARE, **PIXELS, "norm": "rms"}), {}),
    "masked patches": (lambda: keras_vit.MaskedPatchPredictor(BARE), {}),
    "MAE": (lambda: keras_vit.MaskedAutoencoder(BARE, **DECODER), {}),
    "DINO": (lambda: keras_vit.DINO(BARE, **HEAD), {}),
    "linear head with a layer norm": (lambda: segmenter("linear", head_norm="layer"), {"head_norm": 1e-6}),
    "linear head with a batch norm": (lambda: segmenter("linear", head_norm="batch"), {"head_norm": 1e-5}),
    "upscaling head": (lambda: segmenter("up", decoder_size=8), {"upscale_0/norm": 1e-6}),
    "EoMT": (lambda: segmenter("mask", num_queries=2, query_blocks=1), {"upscale_0/norm": 1e-6}),
    "two towers": (lambda: keras_vit.ImageTextModel(BARE, SENTENCES), {}),
    "BERT": (
        lambda: keras_vit.TextTransformer(**SENTENCES, norm_after_residual=True, pooling="first"),
        {},
    ),
}


def epsilons(model):
    """The epsilons of a model's layers by their paths."""
    values = {}
    for layer in model._flatten_layers():
        if hasattr(layer, "variance_epsilon"):
            values[layer.path] = layer.epsilon, layer.variance_epsilon
        elif hasattr(layer, "epsilon"):
            values[layer.path] = layer.epsilon
    return values


@pytest.mark.parametrize("kind", some(KINDS, 4))
def test_each_norm_of_each_kind_of_model_has_its_epsilon(kind):
    make, others = KINDS[kind]
    found = epsilons(make())
    assert found == {path: OF_TEXTS if path.startswith("text/") else OF_IMAGES for path in found} | others
    assert any(path.endswith("encoder_block_0/attention_norm") for path in found)


def defaults(cls):
    """The defaults of the class's arguments that are epsilons."""
    arguments = inspect.signature(getattr(cls, "schema", cls).__init__).parameters
    return {name: argument.default for name, argument in arguments.items() if name.endswith("epsilon")}


def test_defaults_of_public_classes_are_those_of_vit_jax():
    """`flax.linen.LayerNorm`, and `models_resnet.py`; of `UpscaleBlock`, transformers' `EomtLayerNorm2d`."""
    public = [*vars(layers).values(), *vars(keras_vit).values(), UpscaleBlock]
    found = {cls: defaults(cls) for cls in filter(inspect.isclass, public)}
    assert found.pop(layers.StdConv2D) == {"epsilon": 1e-5, "variance_epsilon": 0.0}
    assert found.pop(keras_vit.ObjectDetector) == {"merge_norm_epsilon": None}  # the encoder's
    assert {epsilon for values in found.values() for epsilon in values.values()} == {1e-6}
    assert all(map(found.get, (layers.LayerNormalization, keras_vit.VisionTransformer, UpscaleBlock)))


# `layer_norm_eps` or `layer_norm_epsilon` of the configuration classes of transformers 5.23.
TRANSFORMERS = {
    **dict.fromkeys(("vit", "deit", "ijepa", "vit_mae", "beit"), 1e-12),
    **dict.fromkeys(("vit_msn", "dinov2", "dinov2_with_registers", "eomt", "eomt_dinov3"), 1e-6),
    **dict.fromkeys(("siglip_vision_model", "siglip2_vision_model"), 1e-6),
    **dict.fromkeys(("dinov3_vit", "imagegpt", "clip_vision_model"), 1e-5),
    **dict.fromkeys(("owlvit_vision_model", "owlv2_vision_model"), 1e-5),
    **{"depth_anything": 1e-6, "dpt": 1e-12, "dpt with a dinov2 backbone": 1e-6, "vitpose": 1e-12},
}
TRANSFORMERS_TEXT = {"siglip": 1e-6, "siglip2": 1e-6, "clip": 1e-5}


def test_model_types_have_the_defaults_of_transformers():
    assert {name: options_of(kind, {})["norm_epsilon"] for name, kind in TYPES.items()} == TRANSFORMERS
    assert {name: kind.defaults["layer_norm_eps"] for name, kind in TEXT_TYPES.items()} == TRANSFORMERS_TEXT


@pytest.mark.parametrize("norm, epsilon", some([("layer", 1e-6), ("layer", 1e-5), ("rms", 1e-6)], 4))
@pytest.mark.parametrize("options", [{}, {"rotary": "axial"}, {"gated_mlp": True, "activation": "silu"}])
@pytest.mark.parametrize("layer_scale", [None, 0.1])
def test_architectures_written_for_timm_have_the_epsilon(norm, epsilon, options, layer_scale):
    model = {"norm": norm, "norm_epsilon": epsilon, "layer_scale": layer_scale}
    config = vit(**{**model, "activation": "gelu_erf", **options}).get_config()
    # None in `model_args` replaces neither the layer scale of timm's builder nor a grid of the positions.
    is_free = epsilon == 1e-5 and "rotary" in options
    is_refused = layer_scale is None and bool(options) and (norm == "rms" or is_free)
    assert bool(timm_config.unsupported(config)) == is_refused
    if is_refused:
        return
    (name,) = re.findall(r"architecture.: .(\w+)", str(timm_config.written(config)))
    assert timm_config.options_of({"architecture": name})["norm_epsilon"] == epsilon
    assert layer_scale or name != "vit_base_patch16_dinov3"  # which has one


@pytest.mark.parametrize("rotary", [None, "axial"])
@pytest.mark.parametrize("norm, epsilon", [("layer", 1e-7), ("layer", 1e-4), ("rms", 1e-5)])
def test_epsilons_that_no_architecture_of_timm_has_are_refused(norm, epsilon, rotary):
    config = vit(norm=norm, norm_epsilon=epsilon, rotary=rotary, layer_scale=0.1).get_config()
    assert f"norm={norm!r} with norm_epsilon={epsilon!r}" in timm_config.unsupported(config)


# What the arrays show of files without a configuration: `vit_jax` and big_vision have flax's epsilon.
WITHOUT_CONFIGURATION = {
    **dict.fromkeys(("token", "bigvision_gap_sincos", "hybrid", "timm_token"), 1e-6),
    "hf_alone": 1e-12,
}


@by_table("name", WITHOUT_CONFIGURATION)
def test_files_without_a_configuration_have_the_epsilon_of_their_project(name, tmp_path):
    checkpoint = base(name)
    path = checkpoint.write(tmp_path / "file", metadata={})
    arguments = read_checkpoint(path, **checkpoint.stored_options).arguments
    assert arguments["norm_epsilon"] == WITHOUT_CONFIGURATION[name]


@pytest.mark.parametrize("settings, expected", [({}, 1e-5), ({"norm_kwargs": {"eps": 1e-7}}, 1e-7)])
def test_the_configuration_of_open_clip_says_the_epsilon_of_each_tower(settings, expected, tmp_path):
    tower = {"width": 64, "layers": 1, **settings}
    vision = {**tower, "image_size": 16, "patch_size": 8}
    text = {**tower, "heads": 1, "context_length": 5, "vocab_size": 11}
    config = {"model_cfg": {"embed_dim": 6, "vision_cfg": vision, "text_cfg": text}, "preprocess_cfg": {}}
    (tmp_path / open_clip.CONFIG).write_text(json.dumps(config))
    assert LAYOUTS["open_clip"].read_config(tmp_path)["norm_epsilon"] == expected
    assert open_clip.text_options(tmp_path)["norm_epsilon"] == expected


@pytest.mark.parametrize("epsilon", [1e-7, 1e-6, 1e-5])
def test_open_clip_has_towers_of_timm_with_its_epsilon_only(epsilon):
    config = vit(pooling="map", prefix_positions=False, norm_epsilon=epsilon).get_config()
    conflicts = [reason for reason in LAYOUTS["open_clip"].unsupported(config) if "norm_epsilon" in reason]
    assert bool(conflicts) == (epsilon != 1e-6)


# The authors' code, and timm 1.0.31; of the others 1e-6. ImageGPT's is that of OpenAI's `norm` (1e-5).
FAMILIES_WITH_1E_5 = re.compile("BEiT-3|AIMv2|PE-.*|DINOv3|EUPE|LingBot")


def test_families_and_recipes_have_the_epsilon_of_their_authors():
    for family, (_, sizes) in FAMILIES.items():
        for size in sizes:
            expected = 1e-5 if FAMILIES_WITH_1E_5.fullmatch(family) else 1e-6
            assert parse_variant(f"{family}-{size}").get("norm_epsilon", 1e-6) == expected
    stated = {
        name: r.model["norm_epsilon"] for name, r in RECIPES.items() if "norm_epsilon" in (r.model or {})
    }
    assert stated and stated == {
        name: 1e-5 for name, recipe in RECIPES.items() if (recipe.model or {}).get("palette")
    }
