"""The authors' files of Depth Anything 3 for one image, whose encoder has timm's names; they are only read.

These are the models with the head `DPT` on a plain DINOv2 (DA3MONO, DA3METRIC). Their depth is an
exponential: up to a factor, or for DA3METRIC times the focal length in pixels / 300 in meters. The head for
the sky is left out; the authors replace the depth of its pixels after the model.

Sources: `da3.py`, `dpt.py` and `dinov2/vision_transformer.py` of ByteDance-Seed/Depth-Anything-3.
"""

import re

from keras_vit.rules import integer, items
from keras_vit.tasks.depth.dpt_head import LEVELS, conv_rows, has_dpt_head, sizes_of
from keras_vit.weights.catalogue import NORMS
from keras_vit.weights.json_files import read_json
from keras_vit.weights.layouts.additions import TimmAdditions
from keras_vit.weights.layouts.hub_config import CONFIG
from keras_vit.weights.layouts.layout import ModelForm
from keras_vit.weights.layouts.table import CONV, Row

_HEAD = "model.head."
_OTHER_FAMILIES = {
    "a Depth Anything 3 for several views (supported: DA3MONO and DA3METRIC)": r"model\.(da3\..*|"
    r"head\.scratch\.refinenet\d_aux\..*|cam_(enc|dec)\..*|backbone\.pretrained\.camera_token)",
}


def _rows():
    rows, scratch = [], f"{_HEAD}scratch."
    for i in range(LEVELS):
        rows += conv_rows(f"reassemble_{i}/projection", f"{_HEAD}projects.{i}")
        rows += conv_rows(f"reassemble_{i}/resize", f"{_HEAD}resize_layers.{i}")
        rows += [Row(f"reassemble_{i}/convolution/kernel", f"{scratch}layer{i + 1}_rn.weight", CONV)]
        fusion = f"{scratch}refinenet{i + 1}"
        rows += conv_rows(f"fusion_{i}/projection", f"{fusion}.out_conv")
        for unit in (0, 1):
            for j in (0, 1):
                theirs = f"{fusion}.resConfUnit{unit + 1}.conv{j + 1}"
                rows += conv_rows(f"fusion_{i}/unit_{unit}/convolution_{j}", theirs)
    rows += conv_rows("decoder_convolution", f"{scratch}output_conv1")
    rows += conv_rows("head_convolution", f"{scratch}output_conv2.0")
    rows += conv_rows("output_convolution", f"{scratch}output_conv2.2")
    return rows


def _read_config(config):
    """The options in the contents of a config.json; None unless it is of a Depth Anything 3."""
    return {} if str(config.get("model_name")).startswith("da3") else None


class _DepthAnything3(ModelForm):
    """How the authors store a Depth Anything 3 for one image."""

    kind = "depth_estimator"

    has_head = staticmethod(has_dpt_head)

    def head_options(self, checkpoint, layout, folder):
        config = read_json(folder / CONFIG, {}) if folder else {}
        blocks = config
        for name in ("config", "net", "out_layers"):
            blocks = blocks.get(name) if isinstance(blocks, dict) else None
        if blocks is not None:
            items(integer(at_least=0), LEVELS).check(f"{CONFIG}: out_layers", blocks)
        mean, std = NORMS["imagenet"]
        checkpoint.arguments.setdefault("preprocessing", {"mean": mean, "std": std, "antialias": True})
        return {**sizes_of(checkpoint.arrays), "quantity": "relative", "blocks": blocks and tuple(blocks)}


ADDITIONS = TimmAdditions(
    {"depth_anything_3": _DepthAnything3()},
    rows=tuple(_rows()),
    prefixes=("model.backbone.pretrained.",),
    without_prefix=rf"{re.escape(_HEAD)}.*",
    others=rf"{re.escape(_HEAD)}scratch\.sky_output_conv2\..*",
    other_families=_OTHER_FAMILIES,
    read_config=_read_config,
)
