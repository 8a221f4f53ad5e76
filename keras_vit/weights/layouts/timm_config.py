"""timm's config.json, read and written.

The name of an architecture selects what timm passes to its constructor, and `model_args` replace some of it.
Both are read as one dict of timm's arguments, as far as no array shows them.
"""

import math
import re

from keras_vit.layers.rotary import rotary_options
from keras_vit.rules import number, one_of
from keras_vit.tasks import timm_additions
from keras_vit.weights.json_files import read_json
from keras_vit.weights.layouts import hub_config
from keras_vit.weights.layouts.hub_config import CONFIG, INTERPOLATIONS, TORCHVISION_CROP
from keras_vit.weights.layouts.layout import other_values
from keras_vit.weights.pretraining import of_name

_POOLINGS = {"token": "token", "avg": "gap", "map": "map"}
_KNOWN = re.compile(r"(test_|naflex)?vit\d?(_|$)|deit|flexivit|eva|beit|aimv2")
# Architectures whose arrays look like those of a Vision Transformer, but which compute something else.
_FOREIGN = re.compile(r"relpos|_xp_|18x2|d\w*wee|pwee|dlittle|resnet|_mci_")
_EVA = re.compile(r"eva02|eva_giant|_rope_|dinov3|lingbot|_pe_|sapiens2")  # timm's class `Eva`
# Its pooling by default is the mean, and by these names another one.
_EVA_POOLINGS = ((r"_clip_|_rope_((mixed_)?ape_|mixed_)?\d", "token"), (r"_pe_core_", "map"))
# Constructor arguments by the names of architectures; later rows replace earlier ones.
_ROTARY = {"use_rot_pos_emb": True}
_NAMED = (
    (r"eva02_(?!enormous)|rope_reg\d_gap", {**_ROTARY, "ref_feat_shape": 16}),
    (r"_rope_(ape_)?\d", {**_ROTARY, "rope_temperature": 100, "rope_grid_indexing": "xy"}),
    (r"_rope_mixed", {**_ROTARY, "rope_type": "mixed", "rope_temperature": 10, "rope_grid_indexing": "xy"}),
    (
        r"dinov3|lingbot|sapiens2",
        {**_ROTARY, "rope_type": "dinov3", "rope_temperature": 100, "rope_rotate_half": True},
    ),
    (r"_pe_", {**_ROTARY, "rope_grid_indexing": "xy", "rope_grid_offset": 1, "attn_pool_num_heads": 8}),
    (r"_pe_\w+_gigantic", {"rope_grid_offset": 0}),
    (
        r"eva02_(?!enormous)|aimv2|sapiens2|plus_patch16_dinov3|_7b_|giant_patch16_lingbot"
        r"|vit_giant_patch14_(dinov2|reg)",
        {"swiglu_mlp": True},
    ),
    (r"enormous|_rpn_", {"use_post_norm": True}),
    (r"test_vit3", {"pool_include_prefix": True}),
    (r"quickgelu", {"act_layer": "quick_gelu"}),
    # SigLIP models with the tanh form of GELU; the others have the exact one.
    (
        r"(so400m_patch16|giantopt_patch16)_\w*siglip|base_patch32_siglip|large_patch16_siglip_(gap_)?512",
        {"act_layer": "gelu_tanh"},
    ),
    (r"naflexvit_\w+_siglip", {"act_layer": "gelu_tanh", "pos_embed_interp_mode": "bilinear"}),
    (r"naflexvit_\w+_parfac_", {"pos_embed": "factorized"}),
    # Of `VisionTransformer`, what its loader passes to `resample_abs_pos_embed`.
    (r"flexivit|_radio_", {"pos_embed_interp_mode": "bilinear", "pos_embed_antialias": False}),
    (r"(base|huge)_patch16_radio_v3", {"pos_embed_align_corners": True}),
    (r"naflexvit_\w+_(radio|par|parfac)_", {"pos_embed_ar_preserving": True}),
)
_EPSILON_1E5 = re.compile(r"vit_\w*_clip_|dinov3|lingbot|_pe_|aimv2|beit3")
_HEAD_SIZES = (  # of families that have sizes of their own
    (r"aimv2|_7b_", 128),
    (r"eva02_enormous", 112),
    (r"_pe_\w+gigantic", 96),
    (r"eva_giant|beit3_giant", 88),
    (r"huge_patch16_(radio|sapiens2)", 80),
    (r"_5b_", 76),
    (r"so400m", 72),
    (
        r"eva|beit|rope|dinov3|lingbot|_pe_|radio|intern|dinov2|tipsv2|sapiens2"
        r"|betwixt|little|wee|mediumd|so150m|_plus_|xsmall|36x1",
        64,
    ),
)
# How timm resizes a position table: the defaults of the options pos_embed_*, and our name by their values.
_RESIZING = {"interp_mode": "bicubic", "antialias": True, "align_corners": False, "ar_preserving": False}
_INTERPOLATIONS = {
    ("bicubic", True, False, False): "bicubic_antialias",
    ("bicubic", True, False, True): "bicubic_antialias_square",
    ("bicubic", False, False, False): "bicubic",
    ("bilinear", True, False, False): "bilinear_antialias",
    ("bilinear", False, False, False): "bilinear_half_pixel",
    ("bilinear", False, True, False): "bilinear",
    ("bilinear", False, False, True): "bilinear_half_pixel_square",
    ("bilinear", False, True, True): "bilinear_square",
}
# Classes that an argument may name; of other values nothing is known.
_CLASSES = {
    "norm_layer": ("layernorm", "rmsnorm"),
    "attn_layer": ("", "attn"),
    **dict.fromkeys(("mlp_layer", "block_fn", "embed_layer", "embed_norm_layer"), ()),
}
_ROTARY_KINDS = {"cat": "axial", "mixed": "mixed", "dinov3": "dinov3"}


def read(folder):
    """The options in config.json, for `Layout.read_config`."""
    config = read_json(folder / CONFIG)
    of_tasks = (task.read_config(config) for task in timm_additions())
    options = next((options for options in of_tasks if options is not None), None)
    return options_of(config) if options is None else options


def options_of(config):
    """The options in the contents of a config.json, of which only `architecture` is needed."""
    name, arguments = _described(config)
    details = {**config.get("pretrained_cfg", {}), **config}
    pooling = _pooling(name, arguments, config)
    options = {
        **_activation(name, arguments),
        "rotary": _rotary(arguments),
        "gated_mlp": bool(arguments.get("swiglu_mlp")),
        "post_norm": bool(arguments.get("use_post_norm")),
        "norm_epsilon": 1e-5 if _EPSILON_1E5.search(name) and "norm_layer" not in arguments else 1e-6,
        "pool_prefix": bool(_EVA.search(name) or arguments.get("pool_include_prefix")),
        "pooling_heads": arguments.get("attn_pool_num_heads"),
        "position_interpolation": _position_interpolation(arguments),
    }
    if arguments.get("rope_rescale_coords"):
        options["max_rotary_rescale"] = arguments["rope_rescale_coords"]
    if num_heads := _num_heads(name, arguments, config):
        options["num_heads"] = num_heads
    if "num_classes" in config:
        options["num_classes"] = config["num_classes"] or None
    if pooling:
        options["pooling"] = _POOLINGS[pooling]
    # An argument of the constructor decides; timm leaves the other as it was in the pretrained model.
    if size := arguments.get("img_size") or details.get("input_size", ())[1:]:
        options["image_size"] = size if isinstance(size, int) else tuple(size)
    if {"mean", "std"} & details.keys():
        options["preprocessing"] = _preprocessing(details)
    # Without the tag of its weights, an architecture says nothing about them.
    if learned_from := details.get("tag") and of_name(f"{name}.{details['tag']}"):
        options["pretraining"] = learned_from
    names = details.get("label_names") or ()
    if isinstance(names, dict):
        names = hub_config.numbered_names(names, "label_names")
    if not hub_config.are_placeholders(names):
        descriptions = details.get("label_descriptions") or {}
        options["class_names"] = tuple(str(descriptions.get(name, name)) for name in names)
    return options | hub_config.task_options(config)


def _pooling(name, arguments, config):
    """timm's name of the pooling; None or "" without pooling."""
    pooling = config.get("global_pool")
    if pooling is None and _EVA.search(name):
        poolings = [pooling for pattern, pooling in _EVA_POOLINGS if re.search(pattern, name)]
        pooling = arguments.get("global_pool", poolings[0] if poolings else "avg")
    prefix = arguments.get("pool_include_prefix") and pooling != "map"
    if pooling not in (None, "", *_POOLINGS) or prefix:
        raise ValueError(
            f"{CONFIG} describes a pooling that VisionTransformer does not have: {pooling!r}"
            f"{' with prefix tokens' * bool(prefix)}"
        )
    return pooling


def _num_heads(name, arguments, config):
    """The heads of the attention, or None if the file does not say them."""
    if "num_heads" in arguments:
        return arguments["num_heads"]
    if name == "vit_base_patch16_gap_224":
        return 16  # others of this size have 12
    sizes = [size for pattern, size in _HEAD_SIZES if re.search(pattern, name)]
    return config["num_features"] // sizes[0] if sizes and "num_features" in config else None


def _position_interpolation(arguments):
    """How timm resizes the position table to another grid."""
    options = {name: arguments.get(f"pos_embed_{name}", default) for name, default in _RESIZING.items()}
    if arguments.get("pos_embed") == "factorized":
        options |= {"interp_mode": "bilinear", "antialias": False, "align_corners": False}
    values = tuple(options.values())
    if values not in _INTERPOLATIONS:
        raise ValueError(f"{CONFIG}: no position_interpolation is like pos_embed_* of {options}")
    return _INTERPOLATIONS[values]


def _described(config):
    """(name of the architecture, arguments of timm's constructor) of the contents of config.json."""
    name, options = config["architecture"], config.get("model_args") or {}
    if not _KNOWN.match(name) or _FOREIGN.search(name):
        raise ValueError(f"{CONFIG} describes timm's {name!r}, which VisionTransformer cannot express")
    for argument, known in _CLASSES.items():
        if options.get(argument) is not None and options[argument] not in known:
            raise ValueError(f"{CONFIG}: nothing is known of {argument}={options[argument]!r} in model_args")
    if options.get("patchify_channels_last") is False:
        raise ValueError(f"{CONFIG}: patches must be stored with the channels last (patchify_channels_last)")
    arguments = {}
    for pattern, values in _NAMED:
        if re.search(pattern, name):
            arguments |= values
    # The name says on which grid Perception Encoder's positions were first trained.
    if match := re.search(r"_pe_\w+_patch(\d+)_(\d+)", name):
        arguments["ref_feat_shape"] = int(match[2]) // int(match[1])
    return name, {**arguments, **{key: value for key, value in options.items() if value is not None}}


def _rotary(arguments):
    """The option `rotary` for the arguments of timm's `Eva`."""
    if not arguments.get("use_rot_pos_emb"):
        return None
    rotary_kind = _ROTARY_KINDS.get(arguments.get("rope_type", "cat"))
    axial, is_half = rotary_kind == "axial", rotary_kind == "dinov3"
    offset = arguments.get("rope_grid_offset", 0)
    if rotary_kind is None or arguments.get("rope_rotate_half", False) != is_half or (is_half and offset):
        raise ValueError(
            f"{CONFIG} describes rotary positions that VisionTransformer does not have: "
            f"{ {key: value for key, value in arguments.items() if key.startswith('rope_')} }"
        )
    return rotary_options(
        {
            "kind": rotary_kind,
            "base": arguments.get("rope_temperature", 10_000),
            "order": {"ij": "yx", "xy": "xy"}[arguments.get("rope_grid_indexing", "ij")],
            "reference_grid": arguments.get("ref_feat_shape") if axial else None,
            "offset": offset if axial else 0,
        }
    )


def _activation(name, arguments):
    if arguments.get("swiglu_mlp"):
        return {"activation": "silu"}
    if "act_layer" in arguments:
        return {"activation": hub_config.activation(arguments["act_layer"])}
    if re.match(r"vit_\w*_clip_", name):
        return {}  # repositories with either GELU have this name
    return {"activation": "gelu_erf"}


def _preprocessing(details):
    # The defaults are those of timm's `resolve_data_config`.
    crop, mode = details.get("crop_pct") or 0.875, details.get("crop_mode") or "center"
    interpolation = details.get("interpolation") or "bicubic"
    number(above=0, high=1).check(f"{CONFIG}: crop_pct", crop)
    one_of(("center", "squash")).check(f"{CONFIG}: crop_mode", mode)
    one_of(INTERPOLATIONS.values()).check(f"{CONFIG}: interpolation", interpolation)
    resize = "crop" if mode == "center" else "squash" if crop == 1 else "squash_crop"
    return {
        "resize": resize,
        "crop_fraction": float(crop),
        "interpolation": interpolation,
        **hub_config.resizing_options(details, resize, TORCHVISION_CROP),
        "mean": tuple(details["mean"]),
        "std": tuple(details["std"]),
    }


# Writing --------------------------------------------------------------------------------------------

_ARGUMENTS = {  # of both of timm's constructors, and ours
    "patch_size": "patch_size",
    "embed_dim": "hidden_size",
    "depth": "num_layers",
    "num_heads": "num_heads",
    "in_chans": "in_channels",
    "qkv_bias": "qkv_bias",
    "qk_norm": "qk_norm",
    "init_values": "layer_scale",
    "class_token": "class_token",
}
_VIT_ARGUMENTS = {  # of VisionTransformer only
    "reg_tokens": "num_registers",
    "pre_norm": "pre_norm",
    "fc_norm": "norm_after_pooling",
    "final_norm": "final_norm",
    "scale_attn_norm": "attention_sub_norm",
    "scale_mlp_norm": "mlp_sub_norm",
    "proj_bias": "linear_bias",
}
_EVA_ARGUMENTS = {  # of Eva only
    "num_reg_tokens": "num_registers",
    "use_pre_transformer_norm": "pre_norm",
    "use_fc_norm": "norm_after_pooling",
    "scale_attn_inner": "attention_sub_norm",
    "scale_mlp": "mlp_sub_norm",
    "swiglu_mlp": "gated_mlp",
    "use_post_norm": "post_norm",
    "rope_rescale_coords": "max_rotary_rescale",
}
# Architectures whose constructor has this norm and epsilon; `model_args` replace the rest.
_EVA_BUILDERS = {
    ("layer", 1e-6): "eva_giant_patch14_224",
    ("layer", 1e-5): "vit_base_patch16_dinov3",
    ("rms", 1e-6): "vit_base_patch16_sapiens2",
}


def is_eva(config):
    """Whether of timm's classes only `Eva` can express the model, not `VisionTransformer`."""
    c = config
    return bool(
        c["rotary"]
        or c["gated_mlp"]
        or c["post_norm"]
        or c["num_kv_heads"]
        or (c["qkv_bias"] and not c["key_bias"])
        or (c["layer_scale"] is not None and not c["scale_mlp"])
        or (c["pooling"] == "map" and (c["pooling_heads"] or c["pooling_mlp_dim"]))
    )


def written(config):
    """The values of config.json, in a list.

    `model_args` has the whole architecture; its name only selects timm's builder.
    """
    size = list(hub_config.stored_image_size(config))
    hidden_size, classes = config["hidden_size"], config["num_classes"] or 0
    pooling = {ours: theirs for theirs, ours in _POOLINGS.items()}.get(config["pooling"], "")
    preprocessing = config["preprocessing"]
    eva = is_eva(config)
    arguments_of_class = _EVA_ARGUMENTS if eva else _VIT_ARGUMENTS
    values = {
        "architecture": _builder(config),
        "num_classes": classes,
        "num_features": hidden_size,
        "global_pool": pooling,
        "model_args": {
            **{theirs: config[ours] for theirs, ours in {**_ARGUMENTS, **arguments_of_class}.items()},
            "img_size": size,
            "global_pool": pooling,
            "mlp_ratio": ratio(config["mlp_dim"], hidden_size),
            "no_embed_class": not config["prefix_positions"],
            **(_only_eva(config) if eva else _only_vit(config)),
        },
        "pretrained_cfg": {
            "input_size": [config["in_channels"], *size],
            "fixed_input_size": True,
            "interpolation": preprocessing["interpolation"],
            "crop_pct": 1.0 if preprocessing["resize"] == "squash" else preprocessing["crop_fraction"],
            "crop_mode": "center" if preprocessing["resize"] == "crop" else "squash",
            "mean": list(preprocessing["mean"]),
            "std": list(preprocessing["std"]),
            "num_classes": classes,
            "first_conv": "patch_embed.proj",
            "classifier": "head" if classes else None,
        },
        **({"label_names": list(config["class_names"])} if config["class_names"] else {}),
        **hub_config.task_entry(config),
        **hub_config.resizing_entry(preprocessing, TORCHVISION_CROP),
    }
    return [values]


def unsupported(config):
    """List the options that config.json cannot express."""
    reasons = other_values(config, {"resnet": None, "distillation": False})
    norm, epsilon = config["norm"], config["norm_epsilon"]
    if config["preprocessing"]["resize"] == "pad":
        reasons.append("preprocessing with resize='pad'")
    if _builder(config) is None:
        reasons.append(f"norm={norm!r} with norm_epsilon={epsilon!r}")
    elif is_eva(config):
        # None in `model_args` does not replace a value of the builder.
        if norm == "rms" and config["layer_scale"] is None:
            reasons.append("norm='rms' with layer_scale=None")
        rotary = config["rotary"] or {"kind": None}
        free = rotary["kind"] == "axial" and rotary["reference_grid"] is None
        if epsilon == 1e-5 and config["layer_scale"] is None and free:
            reasons.append("norm_epsilon=1e-05 with neither layer_scale nor reference_grid")
    return reasons


def _builder(config):
    """The architecture that timm's constructor is called with, or None."""
    norm, epsilon = config["norm"], config["norm_epsilon"]
    if is_eva(config):
        unscaled = epsilon == 1e-5 and config["layer_scale"] is None
        return "vit_pe_core_base_patch16_224" if unscaled else _EVA_BUILDERS.get((norm, epsilon))
    if (norm, epsilon) == ("layer", 1e-5):
        return "vit_base_patch16_clip_224"
    return "vit_base_patch16_224" if epsilon == 1e-6 else None


def _only_vit(config):
    """Arguments of VisionTransformer that are not ours."""
    return {
        "act_layer": "gelu" if config["activation"] == "gelu_erf" else config["activation"],
        "pool_include_prefix": config["pooling"] == "map" and config["pool_prefix"],
        **({"norm_layer": "rmsnorm"} if config["norm"] == "rms" else {}),
    }


def _only_eva(config):
    """Arguments of Eva that are not ours."""
    c = config
    separate = c["num_kv_heads"] is not None
    rotary = c["rotary"]
    kinds = {ours: theirs for theirs, ours in _ROTARY_KINDS.items()}
    return {
        "attn_type": "eva" if c["qkv_bias"] and not c["key_bias"] else "rope",
        "qkv_fused": not separate,
        "num_kv_heads": c["num_kv_heads"] if separate or c["post_norm"] else c["num_heads"],
        "attn_only_layer_scale": not c["scale_mlp"],
        "swiglu_align_to": 0,
        "use_post_transformer_norm": c["final_norm"] and not c["norm_after_pooling"],
        "attn_pool_num_heads": c["pooling_heads"] or c["num_heads"],
        "attn_pool_mlp_ratio": ratio(c["pooling_mlp_dim"] or c["mlp_dim"], c["hidden_size"]),
        "dynamic_img_size": False,
        "use_abs_pos_emb": c["position_embedding"] == "learned",
        "use_rot_pos_emb": rotary is not None,
        **(
            {
                "rope_type": kinds[rotary["kind"]],
                "rope_temperature": rotary["base"],
                "rope_grid_indexing": "ij" if rotary["order"] == "yx" else "xy",
                "rope_grid_offset": rotary["offset"],
                "rope_rotate_half": rotary["kind"] == "dinov3",
                "ref_feat_shape": rotary["reference_grid"],
            }
            if rotary
            else {}
        ),
    }


def ratio(mlp_dim, hidden_size):
    """The ratio from which timm computes the size of the hidden layer."""
    ratio = mlp_dim / hidden_size
    return ratio if int(hidden_size * ratio) == mlp_dim else math.nextafter(ratio, math.inf)
