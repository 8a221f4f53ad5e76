"""The layouts of checkpoint files. A new layout is a file with a `Layout` and an entry in `LAYOUTS`."""

from keras_vit.weights.layouts.big_vision import BigVision
from keras_vit.weights.layouts.huggingface import HuggingFace
from keras_vit.weights.layouts.open_clip import OpenClip
from keras_vit.weights.layouts.timm import Timm
from keras_vit.weights.layouts.vit_jax import VitJax

LAYOUTS = {layout.name: layout for layout in (VitJax(), BigVision(), Timm(), HuggingFace(), OpenClip())}


def detect_layout(keys):
    """The `Layout` of a file with these keys, or None.

    >>> detect_layout(["patch_embed.proj.weight", "cls_token"]).name
    'timm'
    """
    return next((layout for layout in LAYOUTS.values() if layout.detect(keys)), None)
