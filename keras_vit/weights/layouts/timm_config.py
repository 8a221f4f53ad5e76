"""timm's config.json, read and written."""

import json
import math
import re

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
# Architectures whose arrays look like those of a plain Vision Transformer, but which compute something else.
_FOREIGN = re.compile(r"rope|relpos|_rpn_|_xp_|18x2|dinov3|lingbot|_pe_|dwee|dlittle|dpwee|resnet")
# SigLIP models with the tanh form of GELU; the others have the exact one.
_TANH = re.compile(
    r"(so400m_patch16|giantopt_patch16)_\w*siglip|base_patch32_siglip|large_patch16_siglip_(gap_)?512"
)
# Sizes that only timm has, whose heads have 64 channels.
_HEADS_OF_64 = re.compile(r"betwixt|little|wee|mediumd|so150m|_plus_|xsmall|36x1")


def read(folder):
    """The options in config.json."""
    config = read_json(folder / CONFIG)
    name = config["architecture"]
    if not re.match(r"(test_)?vit\d?(_|$)|deit|flexivit|eva_large", name) or _FOREIGN.search(name):
        raise ValueError(f"{CONFIG} describes timm's {name!r}, which VisionTransformer cannot express")
    details = {**config.get("pretrained_cfg", {}), **config}
    arguments = config.get("model_args") or {}
    pooling = config.get("global_pool")
    if pooling not in (None, "", *_POOLINGS) or arguments.get("pool_include_prefix"):
        raise ValueError(
            f"{CONFIG} describes a pooling that VisionTransformer does not have: {pooling!r}"
            f"{' with prefix tokens' * bool(arguments.get('pool_include_prefix'))}"
        )
    options = _activation(name, arguments)
    if "num_heads" in arguments:
        options["num_heads"] = arguments["num_heads"]
    elif name == "vit_base_patch16_gap_224":
        options["num_heads"] = 16  # others of this size have 12
    elif _HEADS_OF_64.search(name) and "num_features" in config:
        options["num_heads"] = config["num_features"] // 64
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
