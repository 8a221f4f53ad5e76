"""timm's config.json, read and written."""

import json
import math
import re

from keras_vit.layers.rotary import rotary_options
from keras_vit.rules import number, one_of
from keras_vit.weights.layouts import hub_config
from keras_vit.weights.layouts.hub_config import CONFIG, INTERPOLATIONS
from keras_vit.weights.metadata import read_json

_POOLINGS = {"token": "token", "avg": "gap", "map": "map"}
_ARGUMENTS = {  # of timm's constructor, and ours
    "patch_size": "patch_size",
    "embed_dim": "hidden_size",
    "depth": "num_layers",
    "num_heads": "num_heads",
    "in_chans": "in_channels",
    "qkv_bias": "qkv_bias",
    "init_values": "layer_scale",
    "class_token": "class_token",
    "reg_tokens": "num_registers",
    "pre_norm": "pre_norm",
    "fc_norm": "norm_after_pooling",
}
_KNOWN = re.compile(r"(test_)?vit\d?(_|$)|deit|flexivit|eva|beit|aimv2")
# Architectures whose arrays look like those of a Vision Transformer, but which compute something else.
_FOREIGN = re.compile(r"relpos|_xp_|18x2|dwee|dlittle|dpwee|resnet")
# What the arrays do not show, by the names of architectures. timm's own names give the grid of the first
# training, to which Perception Encoder's positions are scaled.
_EVA02 = {"rotary": {"kind": "axial", "reference_grid": (16, 16)}}
_FAMILIES = (
    (r"eva02_(?!enormous)|rope_reg\d_gap", _EVA02),
    (r"patch16_rope(_ape)?_\d", {"rotary": {"kind": "axial", "base": 100, "order": "xy"}}),
    (r"rope_mixed", {"rotary": {"kind": "mixed", "order": "xy"}}),
    (r"dinov3|lingbot", {"rotary": "dinov3", "norm_epsilon": 1e-5}),
    (r"sapiens2", {"rotary": "dinov3"}),
    (
        r"_pe_",
        {"rotary": {"kind": "axial", "order": "xy", "offset": 1}, "norm_epsilon": 1e-5, "pooling_heads": 8},
    ),
    (r"aimv2|beit3", {"norm_epsilon": 1e-5}),
    (r"enormous|_rpn_", {"post_norm": True}),
)
_HEAD_SIZES = (  # of families that have sizes of their own
    (r"aimv2|_7b_", 128),
    (r"eva02_enormous", 112),
    (r"_pe_\w+gigantic", 96),
    (r"eva_giant", 88),
    (r"huge_patch16_(radio|sapiens2)", 80),
    (r"_5b_", 76),
    (r"so400m", 72),
    (r"eva|beit|rope|dinov3|lingbot|_pe_|radio|intern|dinov2|tipsv2|sapiens2", 64),
    (r"betwixt|little|wee|mediumd|so150m|_plus_|xsmall|36x1", 64),
)
_SWIGLU = re.compile(
    r"eva02_(?!enormous)|aimv2|sapiens2|plus_patch16_dinov3|_7b_|giant_patch14_(dinov2|reg)|giant_patch16_lingbot"
)
# SigLIP models with the tanh form of GELU; the others have the exact one.
_TANH = re.compile(
    r"(so400m_patch16|giantopt_patch16)_\w*siglip|base_patch32_siglip|large_patch16_siglip_(gap_)?512"
)


def read(folder):
    """The options in config.json."""
    config = read_json(folder / CONFIG)
    name = config["architecture"]
    if not _KNOWN.match(name) or _FOREIGN.search(name):
        raise ValueError(f"{CONFIG} describes timm's {name!r}, which VisionTransformer cannot express")
    details = {**config.get("pretrained_cfg", {}), **config}
    arguments = config.get("model_args") or {}
    pooling = config.get("global_pool")
    if pooling not in (None, "", *_POOLINGS) or arguments.get("pool_include_prefix"):
        raise ValueError(
            f"{CONFIG} describes a pooling that VisionTransformer does not have: {pooling!r}"
            f"{' with prefix tokens' * bool(arguments.get('pool_include_prefix'))}"
        )
    options = {**_activation(name, arguments), **_family(name)}
    if "num_heads" in arguments:
        options["num_heads"] = arguments["num_heads"]
    elif name == "vit_base_patch16_gap_224":
        options["num_heads"] = 16  # others of this size have 12
    elif "num_features" in config:
        sizes = [size for pattern, size in _HEAD_SIZES if re.search(pattern, name)]
        if sizes:
            options["num_heads"] = config["num_features"] // sizes[0]
    if "num_classes" in config:
        options["num_classes"] = config["num_classes"] or None
    if pooling:
        options["pooling"] = _POOLINGS[pooling]
    if "input_size" in details:
        options["image_size"] = tuple(details["input_size"][1:])
    if {"mean", "std"} & details.keys():
        options["preprocessing"] = _preprocessing(details)
    if names := details.get("label_names"):
        descriptions = details.get("label_descriptions") or {}
        options["class_names"] = tuple(str(descriptions.get(name, name)) for name in names)
    return options


def _family(name):
    """The options of an architecture that its arrays do not show."""
    options = {"rotary": None}
    for pattern, values in _FAMILIES:
        if re.search(pattern, name):
            options |= values
    rotary = options["rotary"]
    options["pool_prefix"] = "_pe_" in name  # of its probe; that of other models leaves the prefix out
    if "_pe_" in name:
        patch, size = map(int, re.search(r"patch(\d+)_(\d+)", name).groups())
        rotary = {**rotary, "reference_grid": size // patch, "offset": 0 if "gigantic" in name else 1}
    if rotary is not None:
        options["rotary"] = rotary_options(rotary)
    return options


def written(config):
    """The text of config.json, in a list.

    `model_args` has the whole architecture; its name only selects timm's builder.
    """
    size = list(hub_config.stored_image_size(config))
    hidden_size, classes = config["hidden_size"], config["num_classes"] or 0
    ratio = config["mlp_dim"] / hidden_size
    if int(hidden_size * ratio) != config["mlp_dim"]:  # timm's formula
        ratio = math.nextafter(ratio, math.inf)
    pooling = {ours: theirs for theirs, ours in _POOLINGS.items()}.get(config["pooling"], "")
    preprocessing = config["preprocessing"]
    values = {
        "architecture": f"vit_base_patch16_{'clip_' * config['pre_norm']}224",
        "num_classes": classes,
        "num_features": hidden_size,
        "global_pool": pooling,
        "model_args": {
            **{theirs: config[ours] for theirs, ours in _ARGUMENTS.items()},
            "img_size": size,
            "global_pool": pooling,
            "mlp_ratio": ratio,
            "no_embed_class": not config["prefix_positions"],
            "act_layer": "gelu" if config["activation"] == "gelu_erf" else config["activation"],
        },
        "pretrained_cfg": {
            "input_size": [config["in_channels"], *size],
            "fixed_input_size": True,
            "interpolation": preprocessing["interpolation"],
            "crop_pct": preprocessing["crop_fraction"],
            "crop_mode": "center" if preprocessing["resize"] == "crop" else "squash",
            "mean": list(preprocessing["mean"]),
            "std": list(preprocessing["std"]),
            "num_classes": classes,
            "first_conv": "patch_embed.proj",
            "classifier": "head" if classes else None,
        },
        **({"label_names": list(config["class_names"])} if config["class_names"] else {}),
        **hub_config.antialias_entry(preprocessing),
    }
    return [json.dumps(values, indent=2, allow_nan=False) + "\n"]


def conflicts(config):
    """List the options that config.json cannot express."""
    epsilon = 1e-5 if config["pre_norm"] else 1e-6
    expected = {"resnet": None, "distillation": False, "norm_epsilon": epsilon}
    return [
        f"{name}={config[name]!r} (supported: {value!r})"
        for name, value in expected.items()
        if config[name] != value
    ]


def _activation(name, arguments):
    if "act_layer" in arguments:
        return {"activation": hub_config.activation(arguments["act_layer"])}
    if _SWIGLU.search(name):
        return {"activation": "silu"}
    if "quickgelu" in name:
        return {"activation": "quick_gelu"}
    if "_clip_" in name:
        return {}  # repositories with either GELU have this name
    return {"activation": "gelu_tanh" if _TANH.search(name) else "gelu_erf"}


def _preprocessing(details):
    # The defaults are those of timm's `resolve_data_config`.
    crop, mode = details.get("crop_pct") or 0.875, details.get("crop_mode") or "center"
    interpolation = details.get("interpolation") or "bicubic"
    number(above=0, high=1).check(f"{CONFIG}: crop_pct", crop)
    one_of(("center", "squash")).check(f"{CONFIG}: crop_mode", mode)
    one_of(INTERPOLATIONS.values()).check(f"{CONFIG}: interpolation", interpolation)
    return {
        "resize": "squash" if mode == "squash" else "crop",
        "crop_fraction": float(crop),
        "interpolation": interpolation,
        "antialias": hub_config.antialias(details),
        "mean": tuple(details["mean"]),
        "std": tuple(details["std"]),
    }
