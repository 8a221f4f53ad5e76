"""The layouts of checkpoint files. A new layout is a file with a `Layout` and an entry in `LAYOUTS`."""

import re

from keras_vit.lazy import LazyTable
from keras_vit.tasks import huggingface_additions, layouts, timm_additions
from keras_vit.weights.layouts.additions import merged

# A file needs one of them, and those before it, which do not recognize it.
LAYOUTS = LazyTable(
    {
        "vit_jax": "keras_vit.weights.layouts.vit_jax.VitJax",
        "big_vision": "keras_vit.weights.layouts.big_vision.BigVision",
        "timm": "keras_vit.weights.layouts.timm.Timm",
        "huggingface": "keras_vit.weights.layouts.huggingface.HuggingFace",
        "open_clip": "keras_vit.weights.layouts.open_clip.OpenClip",
        **layouts(),
    }
)

# Files without a whole Vision Transformer, each with a key that only it has. Sources: the modules
# `align` and `groupvit` of transformers, and `ModifiedResNet` of open_clip.
_OTHER_FAMILIES = {
    "ALIGN, whose image tower is an EfficientNet": r"(vision_model\.)?encoder\.blocks\.0\.depthwise_conv\..*",
    "GroupViT, which merges tokens into groups": r"(vision_model\.)?encoder\.stages\.0\.group_token",
    "a CLIP whose image tower is a ResNet": r"visual\.layer1\.0\.conv1\.weight",
    "an adapter of peft, which its `merge_and_unload` puts into its model": r".*\.lora_A\..*",
}


def check_family(keys):
    """Raise ValueError for keys of a family that is no Vision Transformer.

    >>> check_family(["vision_model.encoder.stages.0.group_token"])
    Traceback (most recent call last):
    ValueError: expected a Vision Transformer; got GroupViT, which merges tokens into groups
    """
    if any("/" in key for key in keys):
        return  # a file of Flax
    of_tasks = merged((*huggingface_additions(), *timm_additions()), "other_families")
    for family, pattern in {**_OTHER_FAMILIES, **of_tasks}.items():
        if any(re.fullmatch(pattern, key) for key in keys):
            raise ValueError(f"expected a Vision Transformer; got {family}")


def detect_layout(keys):
    """The `Layout` of a file with these keys, or None.

    >>> detect_layout(["patch_embed.proj.weight", "cls_token"]).name
    'timm'
    """
    return next((layout for layout in LAYOUTS.values() if layout.detect(keys)), None)
