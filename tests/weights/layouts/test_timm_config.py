import json
import math
import re

import pytest
from made import refusals
from made.checkpoints import base
from made.tables import by_table
from reference.small import small

from keras_vit import Preprocessing, from_pretrained
from keras_vit.weights.checkpoint import read_checkpoint
from keras_vit.weights.layouts import timm_config

VIT = {"architecture": "vit_x"}
NORM = {"mean": [0.5] * 3, "std": [0.5] * 3}


def read(folder, config, load=read_checkpoint, rows=None, **options):
    """Read a golden file with a config.json next to it, by default its arguments only."""
    table = base("timm_token").changed("pos_embed", lambda array: array[:, :rows])
    path = base("timm_token").write(folder, table, {"config.json": json.dumps(config)})
    read = load(path.rename(path.with_name("model.safetensors")), **options)
    return read.arguments if load is read_checkpoint else read


def refused(folder, config, pattern=".", **options):
    refusals.refused(read, folder, pattern, config=config, load=from_pretrained, **options)


def options_of(architecture, arguments, **config):
    return timm_config.options_of({"architecture": architecture, "model_args": arguments, **config})


def test_class_names_are_the_descriptions_of_labels_that_have_one(tmp_path):
    names = [f"n{i}" for i in range(7)]
    labels = {"label_names": names, "label_descriptions": {"n1": "tench"}}
    found = read(tmp_path, {**VIT, "pretrained_cfg": labels}, num_heads=3)["class_names"]
    assert found == ("n0", "tench", *names[2:])


@by_table(
    "labels, expected",
    [
        ({"1": "dog", "0": "cat"}, ("cat", "dog")),
        (["LABEL_0", "LABEL_1"], None),  # of transformers' TimmWrapper
        ([3, 5], ("3", "5")),
    ],
)
def test_labels_are_a_list_or_named_by_their_numbers(labels, expected):
    assert options_of("vit_x", {}, label_names=labels).get("class_names") == expected


def test_labels_with_gaps_are_refused():
    with pytest.raises(ValueError, match="config.json says label_names of 0, 2; expected the class numbers"):
        options_of("vit_x", {}, label_names={"0": "cat", "2": "dog"})


@pytest.mark.parametrize("task", ["multi_label", "regression"])
def test_the_task_of_a_classifier_is_written_as_for_transformers(task):
    [values] = timm_config.written(small(activation="gelu_erf", task=task).get_config())
    assert timm_config.options_of(values)["task"] == task


@by_table(
    "config, expected",
    [
        ({}, ("crop", 0.875, "bicubic")),  # timm's defaults
        ({"crop_pct": None, "crop_mode": None, "interpolation": ""}, ("crop", 0.875, "bicubic")),
        ({"crop_pct": 1, "interpolation": "bilinear"}, ("crop", 1, "bilinear")),
        ({"crop_pct": 0.9, "crop_mode": "center"}, ("crop", 0.9, "bicubic")),
        ({"crop_pct": 0.9, "crop_mode": "squash"}, ("squash_crop", 0.9, "bicubic")),
        ({"crop_mode": "squash"}, ("squash_crop", 0.875, "bicubic")),
        ({"crop_pct": 1.0, "crop_mode": "squash"}, ("squash", 1, "bicubic")),
    ],
)
def test_preprocessing_is_read_at_either_place(config, expected, tmp_path):
    nested = {**VIT, "pretrained_cfg": {**NORM, **config}}
    for each in (nested, {**VIT, **NORM, **config}):
        found = read(tmp_path, each, num_heads=3)["preprocessing"]
        assert (found["resize"], found["crop_fraction"], found["interpolation"]) == expected
        assert found["crop_rounding"] == ("down" if expected[0] == "squash" else "even")  # torchvision's


@by_table(
    "resize, expected",
    [("crop", ("center", 0.9)), ("squash", ("squash", 1)), ("squash_crop", ("squash", 0.9))],
)
def test_a_crop_is_written_by_timms_names(resize, expected):
    prepare = Preprocessing(16, resize, 0.9, antialias=True)
    model = small(activation="gelu_erf", preprocessing=prepare)
    [values] = timm_config.written(model.get_config())
    assert (values["pretrained_cfg"]["crop_mode"], values["pretrained_cfg"]["crop_pct"]) == expected
    differs = {} if resize == "squash" else {"keras_vit": {"crop_rounding": "down"}}
    assert {name: values[name] for name in ("keras_vit",) if name in values} == differs


@by_table(
    "name, value",
    [
        *(("crop_pct", value) for value in (1.1, -0.5, "0.9", math.nan)),
        *(("crop_mode", "border"), ("interpolation", "lanczos")),
    ],
)
def test_unsupported_preprocessing_is_refused_by_name_and_value(name, value, tmp_path):
    message = rf"config.json: {name} must be .*; got {re.escape(repr(value))}"
    refused(tmp_path, {**VIT, **NORM, name: value}, message)


@by_table(
    "config, message",
    [
        ({"input_size": [3, 64, 64]}, "does not fit the checkpoint's 1[67] positions"),
        ({"num_classes": 8}, "config.json says num_classes=8, the arrays hold 7"),
        ({"num_classes": 0}, "config.json says num_classes=None, the arrays hold 7"),
        ({"global_pool": "map"}, "config.json says pooling='map', the arrays hold 'token'"),
        ({"global_pool": "max"}, "describes a pooling that VisionTransformer does not have: 'max'"),
        ({"model_args": {"pool_include_prefix": True}}, "does not have: None with prefix tokens"),
        ({"model_args": {"act_layer": "relu"}}, "the activation must be one of 'gelu', .*; got 'relu'"),
        ({"label_names": ["a"]}, "class_names"),
    ],
    ids=str,
)
def test_a_configuration_must_agree_with_the_arrays(config, message, tmp_path):
    refused(tmp_path, {**VIT, **config}, message, num_heads=3)


def test_heads_and_the_grid_are_read(tmp_path):
    assert read(tmp_path, {**VIT, "model_args": {"num_heads": 4}})["num_heads"] == 4
    options = {"rows": 13, "num_heads": 3}
    assert read(tmp_path, {**VIT, "input_size": [3, 16, 48]}, **options)["position_grid"] == (2, 6)
    other = {"input_size": [3, 16, 16], "model_args": {"img_size": [16, 48]}}  # of a fine-tuned model
    assert read(tmp_path, {**VIT, **other}, **options)["position_grid"] == (2, 6)


@by_table(
    "architecture, arguments, option, expected",
    [
        ("vit_base_patch16_clip_quickgelu_224", {}, "activation", "quick_gelu"),
        ("vit_small_patch16_dinov3", {}, "pooling", "gap"),  # without a global_pool that of timm's Eva
        ("eva02_base_patch14_224", {}, "pooling", "gap"),
        ("eva02_base_patch16_clip_224", {}, "pooling", "token"),
        ("vit_small_patch16_rope_mixed_224", {}, "pooling", "token"),
        ("vit_small_patch16_rope_224", {}, "pooling", "token"),
        ("vit_base_patch16_rope_reg1_gap_256", {}, "pooling", "gap"),
        ("vit_small_patch16_dinov3", {"global_pool": "token"}, "pooling", "token"),
        ("vit_small_patch16_dinov3", {"rope_rescale_coords": 2.0}, "max_rotary_rescale", 2.0),
        ("vit_small_patch16_224", {"img_size": [64, 48]}, "image_size", (64, 48)),
        *(
            (architecture, {}, "position_interpolation", expected)
            for architecture, expected in {
                "vit_base_patch16_224": "bicubic_antialias",
                "flexivit_small": "bilinear_half_pixel",
                "vit_huge_patch16_radio_v3": "bilinear",
                "vit_huge_patch16_radio_v4": "bilinear_half_pixel",
                "naflexvit_base_patch16_gap": "bicubic_antialias",
                "naflexvit_base_patch16_par_gap": "bicubic_antialias_square",
                "naflexvit_base_patch16_parfac_gap": "bilinear_half_pixel_square",
                "naflexvit_base_patch16_siglip": "bilinear_antialias",
                "naflexvit_base_patch16_radio_v3": "bilinear_square",
                "naflexvit_large_patch16_radio_v3": "bilinear_half_pixel_square",
            }.items()
        ),
    ],
)
def test_an_option_is_read_by_name_and_arguments(architecture, arguments, option, expected):
    assert options_of(architecture, arguments).get(option) == expected


@by_table(
    "architecture, width, heads",
    [
        ("vit_base_patch16_clip_224", 768, None),
        ("vit_huge_patch16_radio", 1280, 16),
        ("vit_so400m_patch14_siglip_384", 1152, 16),
        ("beit3_base_patch16_224", 768, 12),
        ("beit3_giant_patch14_224", 1408, 16),
        ("aimv2_large_patch14_224", 1024, 8),
        ("eva_giant_patch14_224", 1408, 16),
        ("eva02_large_patch14_448", 1024, 16),
        ("eva02_enormous_patch14_clip_224", 1792, 16),
        ("vit_base_patch16_rope_mixed_224", 768, 12),
        ("vit_pe_core_base_patch16_224", 768, 12),
        ("vit_pe_lang_gigantic_patch14_448", 1536, 16),
        ("vit_small_plus_patch16_dinov3", 384, 6),
        ("vit_7b_patch16_dinov3", 4096, 32),
        ("vit_large_patch16_lingbot", 1024, 16),
        ("vit_giant_patch16_lingbot", 1536, 24),
        ("vit_huge_patch16_sapiens2", 1280, 16),
        ("vit_5b_patch16_sapiens2", 2432, 32),
    ],
)
def test_the_heads_of_an_architecture_are_known_by_its_name(architecture, width, heads):
    """As in the constructors of timm 1.0.31."""
    assert options_of(architecture, {}, num_features=width).get("num_heads") == heads


@by_table(
    "architecture, arguments, message",
    [
        ("eva02_tiny_patch14_224", {"rope_type": "mrope"}, "rotary positions that .* does not have: .*mrope"),
        ("vit_small_patch16_dinov3", {"rope_rotate_half": False}, "rotary positions that .* does not have"),
        ("vit_small_patch16_dinov3", {"rope_grid_offset": 0.5}, "rotary positions that .* does not have"),
        ("vit_tiny_patch16_224", {"norm_layer": "batchnorm"}, "nothing is known of norm_layer='batchnorm'"),
        *(
            ("vit_tiny_patch16_224", {name: "x"}, f"nothing is known of {name}='x'")
            for name in ("mlp_layer", "block_fn", "embed_layer", "embed_norm_layer")
        ),
        ("naflexvit_base_patch16_gap", {"patchify_channels_last": False}, "patchify_channels_last"),
        (
            "naflexvit_large_patch16_radio_v3",
            {"pos_embed_interp_mode": "nearest"},
            "no position_interpolation is",
        ),
        ("resnet50", {}, "config.json describes timm's 'resnet50', which VisionTransformer cannot express"),
    ],
)
def test_unknown_arguments_and_other_architectures_are_refused(architecture, arguments, message):
    with pytest.raises(ValueError, match=message):
        options_of(architecture, arguments)


@by_table(
    "config",
    [
        {},
        {"architecture": None},
        *({"input_size": size} for size in (224, [3, 0, 0])),
        *({"pretrained_cfg": [1]}, {"global_pool": ["token"]}, {"mean": 0.5, "std": 0.5}),
        *({"model_args": arguments} for arguments in ({"num_heads": "three"}, {"act_layer": ["gelu"]})),
        {"label_names": 3},
    ],
    ids=str,
)
def test_a_damaged_configuration_is_refused(config, tmp_path):
    given = {} if "num_heads" in str(config) else {"num_heads": 3}
    refused(tmp_path, {**VIT, **config} if config else {}, **given)
