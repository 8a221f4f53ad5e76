"""What the weights of a file learned from: labels, images alone, or images with texts."""

import re

SUPERVISED, SELF_SUPERVISED, IMAGE_TEXT, UNKNOWN = "supervised", "self_supervised", "image_text", "unknown"

# By a name of timm, ARCHITECTURE.TAG, or of a repository: the first pattern that it has counts. A fine-tuned
# model learned from labels at last, and the image tower of LiT before its text tower.
_NAMES = (
    (r"[_-]ft(_in)?\d+k|_ft_|/lit-", SUPERVISED),
    (r"dino|lvd|\bmae\b|mim_|ijepa|msn|imagegpt|sapiens|pt22k|beit3\w*\.(indomain_)?pt", SELF_SUPERVISED),
    (r"clip|siglip|webli|aimv2|_pe_|radio|tips|intern", IMAGE_TEXT),
    (r"in\d+k|i\d+k|imagenet|deit|/sam/|google/vit-|bamboo", SUPERVISED),
)
# By the model types of transformers: without a classifier and with one. Published classifiers of the first
# types are linear probes of frozen features.
_TYPES = {
    **dict.fromkeys(
        ("dinov2", "dinov2_with_registers", "dinov3_vit", "vit_mae", "vit_msn", "ijepa", "imagegpt"),
        (SELF_SUPERVISED, SELF_SUPERVISED),
    ),
    "beit": (SELF_SUPERVISED, SUPERVISED),
    **dict.fromkeys(
        ("siglip_vision_model", "siglip2_vision_model", "clip_vision_model"), (IMAGE_TEXT, SUPERVISED)
    ),
    **dict.fromkeys(("owlvit_vision_model", "owlv2_vision_model"), (IMAGE_TEXT, IMAGE_TEXT)),
    "deit": (SUPERVISED, SUPERVISED),
    "vit": (None, SUPERVISED),
}


def of_name(name):
    """What the weights with a name of timm or of a repository learned from; None if it does not say.

    >>> of_name("vit_base_patch14_dinov2.lvd142m"), of_name("vit_base_patch16_clip_224.openai_ft_in1k")
    ('self_supervised', 'supervised')
    """
    return next((value for pattern, value in _NAMES if re.search(pattern, name.lower())), None)


def of_type(name, has_classifier):
    """What the weights of a model type of transformers learned from; None if it does not say."""
    return _TYPES.get(name, (None, None))[has_classifier]


def of_arguments(arguments):
    """What the weights of a stored model learned from: what is known, or labels if it has their classes.

    Args:
        arguments: dict of `VisionTransformer` arguments of the stored model.

    >>> of_arguments({"num_classes": 10}), of_arguments({"num_classes": None})
    ('supervised', 'unknown')
    """
    # The head of a CLIP is a projection.
    has_classes = arguments.get("num_classes") and not arguments.get("pre_norm")
    return arguments.get("pretraining") or (SUPERVISED if has_classes else UNKNOWN)
