"""Words that the configuration files of timm and transformers share."""

import json

from keras_vit.rules import one_of

CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
ACTIVATIONS = {
    "gelu": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "quickgelu": "quick_gelu",
    "silu": "silu",
    "swish": "silu",
}
_WRITTEN = {"gelu_erf": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "quick_gelu": "quick_gelu", "silu": "silu"}
INTERPOLATIONS = {0: "nearest", 2: "bilinear", 3: "bicubic"}  # by Pillow's numbers


def activation(name):
    """Our name of an activation."""
    return ACTIVATIONS[one_of(ACTIVATIONS).check(f"{CONFIG}: the activation", name)]


def written_activation(name):
    """transformers' name of an activation of ours."""
    return _WRITTEN[name]


def as_text(config):
    """The text of a configuration file."""
    return json.dumps(config, indent=2, allow_nan=False) + "\n"


def antialias(config):
    """Whether images are antialiased when they shrink: always by Pillow, unless `antialias_entry` says no."""
    return config.get("keras_vit", {}).get("antialias", True)


def antialias_entry(preprocessing):
    """The entry of config.json for images that are not antialiased, for which neither project has a word."""
    return {} if preprocessing["antialias"] else {"keras_vit": {"antialias": False}}


def stored_image_size(config):
    """(height, width) of the images to which the stored position table belongs."""
    if config["position_grid"]:
        return tuple(g * p for g, p in zip(config["position_grid"], config["patch_size"]))
    return tuple(config["image_size"])
