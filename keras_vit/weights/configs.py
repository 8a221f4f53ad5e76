"""What stands beside a checkpoint file: configurations, in our words.

Read are `NAME.json` as `save_weights` writes it, and the `config.json` and
`preprocessor_config.json` of Hugging Face repositories, those of timm's models included.
"""

import hashlib
import json
import math
import re
import warnings

from keras_vit.messages import listed
from keras_vit.models.vit import ARGUMENTS
from keras_vit.preprocessing import Preprocessing, is_float32
from keras_vit.weights.archive import digest_in
from keras_vit.weights.cache import LARGEST_SIDECAR
from keras_vit.weights.fetch import WEIGHTS

FORMAT = "keras_vit checkpoint 1"
CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
# The names of our options in transformers and timm.
_ACTIVATIONS = {
    "gelu": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "quickgelu": "quick_gelu",
}
_ACTIVATION_NAMES = {"gelu_erf": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "quick_gelu": "quick_gelu"}
_SIZES = {
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "mlp_dim",
    "num_channels": "in_channels",
    "qkv_bias": "qkv_bias",
    "layer_norm_eps": "norm_epsilon",
}
_INTERPOLATIONS = {0: "nearest", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
_POOLINGS = {"token": "token", "avg": "gap", "map": "map"}
# timm's constructor arguments for ours.
_TIMM_ARGUMENTS = {
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
# Architectures of timm whose files look like those of a plain Vision Transformer, but are not.
_FOREIGN = re.compile(r"rope|relpos|_rpn_|_xp_|18x2|dinov3|lingbot|_pe_|dwee|dlittle|dpwee|resnet")
# timm's SigLIP models with the tanh form of GELU; the others have the exact one.
_TANH = re.compile(
    r"(so400m_patch16|giantopt_patch16)_\w*siglip|base_patch32_siglip|large_patch16_siglip_(gap_)?512"
)
# Sizes that only timm has, whose heads have 64 channels.
_HEADS_OF_64 = re.compile(r"betwixt|little|wee|mediumd|so150m|_plus_|xsmall|36x1")


def read_configs(path, checked=False):
    """What the files beside a checkpoint tell.

    Args:
        path: pathlib.Path of the checkpoint file.
        checked: Whether the file was checked against a digest. Then only a `NAME.json` is read whose
            digest the file holds; others are left out with a warning, since anyone could have changed them.

    Returns:
        (dict of `VisionTransformer` arguments, name of the file that told them), or ({}, None).
        `image_size` is that of the weights.

    Raises:
        ValueError: if such a file is no JSON, describes another kind of model, or was saved with other
            weights than those of the checkpoint file.
    """
    sidecar, config, preprocessor = (
        path.with_name(name) for name in (f"{path.stem}.json", CONFIG, PREPROCESSOR)
    )
    found = _json(sidecar) if sidecar.is_file() and sidecar.name not in (CONFIG, PREPROCESSOR) else {}
    if found.get("format") == FORMAT:
        covered = digest_in(path)
        if "digest" in found and found["digest"] != covered:
            raise ValueError(
                f"{sidecar.name} was saved with other weights than {path.name}, as by an interrupted save; "
                f"save the model again, or remove 'digest' from {sidecar.name} if the two belong together"
            )
        if checked and covered != _digest(found.get("arguments")):
            return _left_out(sidecar)
        return _checked(_ours(found), sidecar.name), sidecar.name
    if not (path.name in WEIGHTS and config.is_file()):
        return {}, None
    if checked:
        return _left_out(config)
    found = _json(config)
    images = _json(preprocessor) if preprocessor.is_file() else None
    try:
        told = _timm(found) if "architecture" in found else _transformers(found, images)
    except (TypeError, KeyError, AttributeError, IndexError, ArithmeticError) as error:
        raise ValueError(f"{CONFIG} is not as transformers or timm writes it: {error!r}") from None
    return _checked(told, CONFIG), CONFIG


def _left_out(config):
    warnings.warn(
        f"{config} is not read, since sha256 does not cover it; give what it says as arguments", stacklevel=4
    )
    return {}, None


def configuration_digest(config):
    """The SHA-256 of the model's arguments in a configuration, in hexadecimal.

    >>> configuration_digest({"hidden_size": 24, "name": "vit"}) == configuration_digest({"hidden_size": 24})
    True
    """
    return _digest(_arguments_in(config))


def _digest(arguments):
    return hashlib.sha256(json.dumps(arguments, sort_keys=True).encode()).hexdigest()


def _arguments_in(config):
    return {name: value for name, value in config.items() if name in ARGUMENTS}


def written_config(config, layout, digest=None):
    """The text of `NAME.json`: what a layout's arrays do not tell.

    Args:
        config: `model.get_config()`.
        layout: The layout's name.
        digest: `configuration_digest(config)`, if the weights file holds it, too.
    """
    found = {"format": FORMAT, "layout": layout, **({"digest": digest} if digest else {})}
    return json.dumps({**found, "arguments": _arguments_in(config)}, indent=1, allow_nan=False) + "\n"


def timm_cannot_tell(config):
    """What in a model's configuration timm's config.json has no place for, as one phrase an option."""
    epsilon = 1e-5 if config["pre_norm"] else 1e-6
    wanted = {"resnet": None, "distillation": False, "norm_epsilon": epsilon}
    return [f"{name}={config[name]!r} (it has {v!r})" for name, v in wanted.items() if config[name] != v]


def written_timm_config(config):
    """The text of config.json as timm writes it.

    `model_args` say all of the architecture, whose name only tells timm what to build it from.
    """
    size = list(_stored_image_size(config))
    hidden_size, classes = config["hidden_size"], config["num_classes"] or 0
    ratio = config["mlp_dim"] / hidden_size
    if int(hidden_size * ratio) != config["mlp_dim"]:  # as timm computes it
        ratio = math.nextafter(ratio, math.inf)
    pooling = {ours: theirs for theirs, ours in _POOLINGS.items()}.get(config["pooling"], "")
    p = config["preprocessing"]
    values = {
        "architecture": f"vit_base_patch16_{'clip_' * config['pre_norm']}224",
        "num_classes": classes,
        "num_features": hidden_size,
        "global_pool": pooling,
        "model_args": {
            **{theirs: config[ours] for theirs, ours in _TIMM_ARGUMENTS.items()},
            "img_size": size,
            "global_pool": pooling,
            "mlp_ratio": ratio,
            "no_embed_class": not config["prefix_positions"],
            "act_layer": "gelu" if config["activation"] == "gelu_erf" else config["activation"],
        },
        "pretrained_cfg": {
            "input_size": [config["in_channels"], *size],
            "fixed_input_size": True,
            "interpolation": p["interpolation"],
            "crop_pct": p["crop_fraction"],
            "crop_mode": "center" if p["resize"] == "crop" else "squash",
            "mean": list(p["mean"]),
            "std": list(p["std"]),
            "num_classes": classes,
            "first_conv": "patch_embed.proj",
            "classifier": "head" if classes else None,
        },
        **({"label_names": list(config["class_names"])} if config["class_names"] else {}),
        **_aliased(p),
    }
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def _aliased(preprocessing):
    """What neither timm nor transformers, which resize with Pillow, has a word for."""
    return {} if preprocessing["antialias"] else {"keras_vit": {"antialias": False}}


def _antialias(config):
    return config.get("keras_vit", {}).get("antialias", True)  # Pillow always smooths


def written_transformers_config(config):
    """(config.json, preprocessor_config.json) as transformers writes them, as texts."""
    names = config["class_names"] or [f"LABEL_{i}" for i in range(config["num_classes"] or 0)]
    deit = config["num_registers"] or config["distillation"]
    kind = "DeiT" if deit else "ViT"
    architecture = f"{kind}ForImageClassification{'WithTeacher' * config['distillation']}"
    size = _stored_image_size(config)
    values = {
        "architectures": [architecture if config["num_classes"] else f"{kind}Model"],
        "model_type": kind.lower(),
        **{theirs: config[ours] for theirs, ours in _SIZES.items()},
        "hidden_act": _ACTIVATION_NAMES[config["activation"]],
        "image_size": size[0] if size[0] == size[1] else list(size),
        "patch_size": config["patch_size"][0],
        "hidden_dropout_prob": config["dropout_rate"],
        "attention_probs_dropout_prob": config["attention_dropout_rate"],
        "pooler_act": "tanh",
        "pooler_output_size": config["hidden_size"],
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
        **_aliased(config["preprocessing"]),
    }
    p = config["preprocessing"]
    crop = p["resize"] == "crop"
    images = {
        "image_processor_type": f"{kind}ImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": min(Preprocessing(**{**p, "image_size": size}).before_crop)}
        if crop
        else {"height": size[0], "width": size[1]},
        "resample": {name: number for number, name in _INTERPOLATIONS.items()}[p["interpolation"]],
        "do_center_crop": crop,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(p["mean"]),
        "image_std": list(p["std"]),
    }
    if crop:
        images["crop_size"] = {"height": size[0], "width": size[1]}
    return json.dumps(values, indent=2, allow_nan=False) + "\n", json.dumps(
        images, indent=2, allow_nan=False
    ) + "\n"


def _stored_image_size(config):
    if config["position_grid"]:
        return tuple(g * p for g, p in zip(config["position_grid"], config["patch_size"]))
    return tuple(config["image_size"])


def _ours(found):
    arguments = found.get("arguments")
    told = dict(arguments) if isinstance(arguments, dict) else {"arguments": arguments}
    told = {name: tuple(v) if isinstance(v, list) else v for name, v in told.items()}
    for name, nothing in (("image_size", (None, None)), ("position_grid", None), ("class_names", None)):
        if told.get(name) == nothing:
            told.pop(name, None)
    return told


def _is_number(value, kinds=(int, float)):
    return isinstance(value, kinds) and not isinstance(value, bool)


def _all(values, kind):
    return isinstance(values, tuple) and all(_is_number(value, kind) for value in values)


def _is_preprocessing(value):
    try:
        Preprocessing(**{**value, "image_size": None})
    except (TypeError, ValueError):
        return False
    return True


_KINDS = {  # what a told argument must be
    "a whole number or null": lambda v: v is None or _is_number(v, int),
    "a number that float32 holds, or null": lambda v: v is None or is_float32(v),
    "true or false": lambda v: isinstance(v, bool),
    "a text or null": lambda v: v is None or isinstance(v, str),
    "two whole numbers": lambda v: _all(v, int) and len(v) == 2,
    "whole numbers or null": lambda v: v is None or _all(v, int),
    "texts": lambda v: _all(v, str),
    "arguments of Preprocessing": _is_preprocessing,
}
_KIND_OF = {
    **dict.fromkeys(("hidden_size", "num_layers", "mlp_dim", "num_heads"), "a whole number or null"),
    **dict.fromkeys(("num_classes", "representation_size"), "a whole number or null"),
    **dict.fromkeys(("num_registers", "in_channels", "resnet_width", "split_seed"), "a whole number or null"),
    **dict.fromkeys(("norm_epsilon", "layer_scale", "dropout_rate"), "a number that float32 holds, or null"),
    **dict.fromkeys(
        ("attention_dropout_rate", "stochastic_depth_rate"), "a number that float32 holds, or null"
    ),
    **dict.fromkeys(("qkv_bias", "class_token", "distillation", "pre_norm"), "true or false"),
    **dict.fromkeys(("norm_after_pooling", "prefix_positions"), "true or false"),
    **dict.fromkeys(("pooling", "position_embedding", "activation", "resnet_form", "task"), "a text or null"),
    **dict.fromkeys(("image_size", "patch_size", "position_grid"), "two whole numbers"),
    **{"resnet": "whole numbers or null", "class_names": "texts"},
    "preprocessing": "arguments of Preprocessing",
}


def _checked(told, name):
    """What a file tells, or ValueError if it is of a kind that no argument takes."""
    for argument, value in told.items():
        kind = _KIND_OF.get(argument)
        if kind is None:
            raise ValueError(f"{name} tells {argument!r}, which VisionTransformer does not have")
        if not _KINDS[kind](value):
            raise ValueError(f"{name} says {argument}={value!r}; wanted {kind}")
    return told


def _transformers(config, preprocessor):
    kind = config.get("model_type")
    if kind not in ("vit", "deit"):
        raise ValueError(f"{CONFIG} describes a {kind!r} model; transformers' 'vit' and 'deit' are read")
    told = {ours: config[theirs] for theirs, ours in _SIZES.items() if theirs in config}
    told["activation"] = _activation(config.get("hidden_act", "gelu"))
    for name in ("image_size", "patch_size"):
        if name in config:
            told[name] = _pair(config[name])
    architecture = "".join(config.get("architectures") or ())
    if kind == "deit" and architecture:
        told["distillation"] = architecture.endswith("WithTeacher")
    if "ForImageClassification" in architecture:
        names = _class_names(config.get("id2label") or {})
        told |= {"num_classes": len(names)} if names else {}
        if names and not all(re.fullmatch(r"LABEL_\d+", name) for name in names):
            told["class_names"] = tuple(names)
    if preprocessor:
        image_size, channels = _checked(told, CONFIG).get("image_size"), told.get("in_channels", 3)
        told["preprocessing"] = {
            **_image_processor(preprocessor, kind, image_size, channels),
            "antialias": _antialias(config),
        }
    return told


def _class_names(id2label):
    numbers = [str(i) for i in range(len(id2label))]
    if {*id2label} != {*numbers}:
        raise ValueError(
            f"{CONFIG} says id2label of {listed(id2label)}; wanted the class numbers from 0 to "
            f"{len(id2label) - 1}"
        )
    return [str(id2label[number]) for number in numbers]


def _image_processor(found, kind, image_size, channels):
    """What preprocessor_config.json tells, as arguments of `Preprocessing`.

    A square `size` in front of a crop is read as the shortest edge, to which DeiT's authors resize:
    transformers squashes the image to it.

    Args:
        found: The file's values; those that it lacks are as in transformers' class.
        kind: "vit" or "deit", of the model.
        image_size: (height, width) of the model, or None.
        channels: Of the model.

    Source: `_preprocess` of transformers' `image_processing_backends.py`.
    """

    def require(fact, name, wanted):
        _require(fact, PREPROCESSOR, name, found.get(name), wanted)

    named = found.get("image_processor_type") or found.get("feature_extractor_type") or kind
    deit = named.lower().startswith("deit")
    steps = {"do_resize": True, "do_rescale": True, "do_normalize": True, "do_center_crop": deit}
    for name, default in steps.items():
        steps[name] = found.get(name, default) or False  # null is false, too
        require(isinstance(steps[name], bool), name, "true or false")
    known = {*steps, "do_convert_rgb", "do_reduce_labels"}  # images are RGB; labels are not read
    for name in found:
        require(name in known or not (name.startswith("do_") and found[name]), name, "false")
    require(steps["do_resize"], "do_resize", "true: images are resized to the model's size")
    require(found.get("crop_pct") is None, "crop_pct", "size and crop_size")
    resample = found.get("resample", 3 if deit else 2)
    names = ", ".join(f"{number} ({name})" for number, name in _INTERPOLATIONS.items())
    require(resample in _INTERPOLATIONS and not isinstance(resample, bool), "resample", f"one of {names}")

    factor = found.get("rescale_factor", 1 / 255) if steps["do_rescale"] else 1.0
    require(is_float32(factor) and factor > 0, "rescale_factor", "a number above 0 that float32 holds")
    mean, std = 0.0, 1.0
    if steps["do_normalize"]:
        mean, std = found["image_mean"], found["image_std"]
    mean, std = ((v,) * channels if _is_number(v) else v for v in (mean, std))
    # Preprocessing normalises what is in [0, 1].
    told = {"mean": tuple(m / (255 * factor) for m in mean), "std": tuple(s / (255 * factor) for s in std)}
    told["interpolation"] = _INTERPOLATIONS[resample]

    size = _size_of(found.get("size", 256 if deit else 224))
    if not steps["do_center_crop"]:
        fits = len(size) == 2 and image_size in (None, size)
        require(fits, "size", f"the model's {_shown(image_size)} where there is no center crop")
        return told
    crop = _size_of(found.get("crop_size", 224))
    fits = len(crop) == 2 and image_size in (None, crop) and crop[0] == crop[1]
    require(fits, "crop_size", f"the model's {_shown(image_size)}, if that is a square")
    require(len({*size}) == 1 and size[0] >= crop[0], "size", f"one edge of at least {crop[0]} to crop from")
    return told | {"resize": "crop", "crop_fraction": crop[0] / size[0]}


def _require(fact, file, name, value, wanted):
    if not fact:
        raise ValueError(f"{file} says {name}={value!r}; wanted {wanted}")


def _size_of(size):
    """A size in transformers' forms as (height, width), or as (shortest edge,); () of any other."""
    if isinstance(size, dict):
        size = {name: value for name, value in size.items() if value is not None}
        forms = (("height", "width"), ("shortest_edge",))
        size = next(([size[name] for name in names] for names in forms if {*names} == {*size}), ())
    size = tuple(size) if isinstance(size, list | tuple) else (size, size)
    return size if all(_is_number(side, int) and side > 0 for side in size) else ()


def _shown(image_size):
    return "height and width" if image_size is None else f"{image_size[0]}×{image_size[1]}"


def _timm(config):
    name = config["architecture"]
    if not re.match(r"(test_)?vit\d?(_|$)|deit|flexivit|eva_large", name) or _FOREIGN.search(name):
        raise ValueError(f"{CONFIG} describes timm's {name!r}, which VisionTransformer cannot express")
    details = {**config.get("pretrained_cfg", {}), **config}
    extra = config.get("model_args") or {}
    told = _timm_activation(name, extra)
    if config.get("global_pool") not in (None, "", *_POOLINGS) or extra.get("pool_include_prefix"):
        raise ValueError(
            f"{CONFIG} asks for a pooling that VisionTransformer does not have: {config.get('global_pool')!r}"
            f"{' with the prefix tokens' * bool(extra.get('pool_include_prefix'))}"
        )
    if "num_heads" in extra:
        told["num_heads"] = extra["num_heads"]
    elif name == "vit_base_patch16_gap_224":
        told["num_heads"] = 16  # not the 12 of others of this size
    elif _HEADS_OF_64.search(name) and "num_features" in config:
        told["num_heads"] = config["num_features"] // 64
    if "num_classes" in config:
        told["num_classes"] = config["num_classes"] or None
    if pooling := _POOLINGS.get(config.get("global_pool")):
        told["pooling"] = pooling
    if "input_size" in details:
        told["image_size"] = tuple(details["input_size"][1:])
    if {"mean", "std"} & details.keys():
        # The defaults are timm's, in its `resolve_data_config`.
        crop, mode = details.get("crop_pct") or 0.875, details.get("crop_mode") or "center"
        interpolation = details.get("interpolation") or "bicubic"
        _require(_is_number(crop) and 0 < crop <= 1, CONFIG, "crop_pct", crop, "a number in (0, 1]")
        _require(mode in ("center", "squash"), CONFIG, "crop_mode", mode, "'center' or 'squash'")
        known = [*_INTERPOLATIONS.values()]
        _require(interpolation in known, CONFIG, "interpolation", interpolation, f"one of {known}")
        told["preprocessing"] = {
            "resize": "squash" if mode == "squash" else "crop",
            "crop_fraction": float(crop),
            "interpolation": interpolation,
            "antialias": _antialias(config),
            "mean": tuple(details["mean"]),
            "std": tuple(details["std"]),
        }
    names = details.get("label_names")
    if names:
        described = details.get("label_descriptions") or {}
        told["class_names"] = tuple(str(described.get(n, n)) for n in names)
    return told


def _timm_activation(name, extra):
    if "act_layer" in extra:
        return {"activation": _activation(extra["act_layer"])}
    if "quickgelu" in name:
        return {"activation": "quick_gelu"}
    if "_clip_" in name:
        return {}  # repositories of both forms of GELU name this one
    return {"activation": "gelu_tanh" if _TANH.search(name) else "gelu_erf"}


def _activation(name):
    if name not in _ACTIVATIONS:
        raise ValueError(f"{CONFIG} names the activation {name!r}; known are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _pair(size):
    if isinstance(size, dict):
        size = (size["height"], size["width"]) if "height" in size else size["shortest_edge"]
    return tuple(size) if isinstance(size, list | tuple) else (size, size)


def _json(path):
    try:
        if path.stat().st_size > LARGEST_SIDECAR:
            raise ValueError(f"it has more than {LARGEST_SIDECAR} bytes")
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON that can be read: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is no configuration; it holds a {type(found).__name__}")
    return found
