"""Words that the configuration files of timm and transformers share."""

import json
import re

from keras_vit.messages import listed
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
TORCHVISION_CROP = "even"  # the `crop_rounding` of timm and open_clip, which crop with torchvision
# Our tasks by the `problem_type` of transformers, whose TimmWrapper has it beside timm's words.
_TASKS = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}


def activation(name):
    """Our name of an activation."""
    return ACTIVATIONS[one_of(ACTIVATIONS).check(f"{CONFIG}: the activation", name)]


def written_activation(name):
    """transformers' name of an activation of ours."""
    return _WRITTEN[name]


def task_options(config):
    """The option `task` of the classifier that a configuration describes, if it says so."""
    task = _TASKS.get(config.get("problem_type"))
    return {"task": task} if task else {}


def task_entry(config):
    """The entry of config.json for the task of a classifier with this `get_config()`."""
    entries = {ours: {"problem_type": theirs} for theirs, ours in _TASKS.items()}
    return entries.get(config["task"], {}) if config["num_classes"] else {}


def numbered_names(names, field):
    """A tuple of the names in a dict by the numbers of classes.

    Raises:
        ValueError: if its keys are others; the message names the field.
    """
    numbers = [str(i) for i in range(len(names))]
    if {*names} != {*numbers}:
        raise ValueError(
            f"{CONFIG} says {field} of {listed(names)}; expected the class numbers from 0 to {len(names) - 1}"
        )
    return tuple(str(names[number]) for number in numbers)


def are_placeholders(names):
    """Whether classes have the names that transformers gives to those without, as LABEL_0."""
    return all(re.fullmatch(r"LABEL_\d+", str(name)) for name in names)


def as_text(config):
    """The text of a configuration file."""
    return json.dumps(config, indent=2, allow_nan=False) + "\n"


def resizing_options(config, resize, crop_rounding="down"):
    """Read the `Preprocessing` options of `resizing_entry`; a missing one has the project's value.

    Args:
        config: The content of a configuration file.
        resize: That of `Preprocessing`.
        crop_rounding: That of the project.
    """
    stored = config.get("keras_vit", {})
    return {name: stored.get(name, value) for name, value in _resizing(resize, crop_rounding).items()}


def resizing_entry(preprocessing, crop_rounding="down"):
    """The entry of config.json for images that the project of the file would resize in another way."""
    expected = _resizing(preprocessing["resize"], crop_rounding)
    changed = {name: preprocessing[name] for name in expected if preprocessing[name] != expected[name]}
    return {"keras_vit": changed} if changed else {}


def _resizing(resize, crop_rounding):
    """Options for which no project has a word: Pillow always antialiases images that shrink."""
    return {"antialias": True, "crop_rounding": crop_rounding if "crop" in resize else "down"}


def stored_image_size(config):
    """(height, width) of the images to which the stored position table belongs."""
    if config["position_grid"]:
        return tuple(g * p for g, p in zip(config["position_grid"], config["patch_size"]))
    return tuple(config["image_size"])
