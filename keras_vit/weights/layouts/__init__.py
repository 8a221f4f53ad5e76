"""The layouts of checkpoint files. A new layout is a file with a `Layout` and an entry in `LAYOUTS`."""

import re

from keras_vit.tasks import huggingface_additions, layouts, timm_additions
from keras_vit.weights.layouts.additions import merged
from keras_vit.weights.layouts.big_vision import BigVision
from keras_vit.weights.layouts.huggingface import HuggingFace
from keras_vit.weights.layouts.open_clip import OpenClip
from keras_vit.weights.layouts.timm import Timm
from keras_vit.weights.layouts.vit_jax import VitJax

_ALL = (VitJax(), BigVision(), Timm(), HuggingFace(), OpenClip(), *layouts())
LAYOUTS = {layout.name: layout for layout in _ALL}

# Image-text models without a Vision Transformer, each with a key that only it has. Sources: the modules
# `align` and `groupvit` of transformers, and `ModifiedResNet` of open_clip.
_OTHER_FAMILIES = {
    "ALIGN, whose image tower is an EfficientNet": r"(vision_model\.)?encoder\.blocks\.0\.depthwise_conv\..*",
    "GroupViT, which merges tokens into groups": r"(vision_model\.)?encoder\.stages\.0\.group_token",
    "a CLIP whose image tower is a ResNet": r"visual\.layer1\.0\.conv1\.weight",
    **merged((*huggingface_additions(), *timm_additions()), "other_families"),
}


def check_family(keys):
    """Raise ValueError for keys of a family that is no Vision Transformer.

    >>> check_family(["vision_model.encoder.stages.0.group_token"])
    Traceback (most recent call last):
    ValueError: expected a Vision Transformer; got GroupViT, which merges tokens into groups
    """
    for family, pattern in _OTHER_FAMILIES.items():
        if any(re.fullmatch(pattern, key) for key in keys):
            raise ValueError(f"expected a Vision Transformer; got {family}")


def detect_layout(keys):
    """The `Layout` of a file with these keys, or None.

    >>> detect_layout(["patch_embed.proj.weight", "cls_token"]).name
    'timm'
    """
    return next((layout for layout in LAYOUTS.values() if layout.detect(keys)), None)
