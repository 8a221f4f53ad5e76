"""The layout of `google-research/scenic`'s OWL-ViT and OWLv2: Flax's parameters in a msgpack file.

Of three forms the last is written: OWL-ViT's blocks are `resblocks.0` with the norms `ln_1` and `ln_2`,
OWLv2's have `ln_0` and `ln_1`, and in the code of 2024 the blocks are `resblocks_0`. The norm after the
merged class token has Flax's epsilon, 1e-6, and the heads' GELU is the approximate one.
"""

from keras_vit.weights.catalogue import NORMS
from keras_vit.weights.layouts.layout import COMMON, Layout, other_values
from keras_vit.weights.layouts.table import Row, Table, flax_rows
from keras_vit.weights.layouts.text_tower import NOT_BERT, WordDetectorForm, unsupported_text
from keras_vit.weights.pretraining import IMAGE_TEXT

_CLIP = "backbone/clip/"
_TEXT = {"causal": True, "pooling": "argmax", "activation": "quick_gelu", "norm_epsilon": 1e-5}
_HEAD = {"merge_class_token": True, "merge_norm_epsilon": 1e-6, "head_activation": "gelu_tanh"}
_MEAN, _STD = NORMS["clip"]


def _block(first_norm):
    return {
        "attention_norm": f"ln_{first_norm}",
        **{f"attention/{part}": f"attn/{part}" for part in ("query", "key", "value", "out")},
        "mlp_norm": f"ln_{first_norm + 1}",
        "mlp/dense_0": "mlp/c_fc",
        "mlp/dense_1": "mlp/c_proj",
    }


def _tower(ours, theirs, first_norm):
    blocks = (f"{_CLIP}{theirs}/transformer/resblocks{sign}{{i}}/" for sign in "_.")
    return [
        row for block in blocks for row in flax_rows(_block(first_norm), f"{ours}encoder_block_{{i}}/", block)
    ]


def _rows(first_norm):
    return [
        Row("patch_embedding/kernel", f"{_CLIP}visual/conv1/kernel"),
        Row("class_token/token", f"{_CLIP}visual/class_embedding", leading=2),
        Row("position_embedding/table", f"{_CLIP}visual/positional_embedding", leading=1),
        *flax_rows({"pre_norm": "ln_pre", "encoder_norm": "ln_post"}, "", f"{_CLIP}visual/"),
        *_tower("", "visual", first_norm),
        Row("text/token_embedding/table", f"{_CLIP}text/token_embedding/embedding"),
        Row("text/position_embedding/table", f"{_CLIP}text/positional_embedding", leading=1),
        *flax_rows({"encoder_norm": "ln_final"}, "text/", f"{_CLIP}text/"),
        *_tower("text/", "text", first_norm),
        Row("text_projection/kernel", f"{_CLIP}text/text_projection/kernel"),
        *flax_rows({"merge_norm": "backbone/merged_class_token"}),
        *flax_rows({"class_projection": "class_head/Dense_0"}),
        *flax_rows({"class_shift": "class_head/logit_shift", "class_scale": "class_head/logit_scale"}),
        *flax_rows({f"box_head/dense_{i}": f"obj_box_head/Dense_{i}" for i in range(3)}),
        *flax_rows({f"objectness_head/dense_{i}": f"objectness_head/Dense_{i}" for i in range(3)}),
    ]


class WordDetectors(WordDetectorForm):
    """How scenic stores an `ObjectDetector` with a text tower."""

    head = _HEAD

    def text_options(self, folder):
        return dict(_TEXT)

    def unsupported(self, model, config):
        return other_values(vars(model), _HEAD) + unsupported_text(model.text, {**NOT_BERT, **_TEXT})


class Scenic(Layout):
    name = "scenic"
    forms = {"word_detector": WordDetectors()}
    suffix = ".msgpack"
    table, _old = Table(_rows(0)), Table(_rows(1))
    anchors = (f"{_CLIP}visual/conv1/kernel",)
    prefixes = ("", "params/", "optimizer/target/")
    split_heads = True
    supported = {
        **COMMON,
        "activation": ("quick_gelu",),
        "norm_epsilon": (1e-5,),
        "class_token": (True,),
        "pre_norm": (True,),
        "pooling": ("token", "gap"),
    }

    def table_of(self, keys):
        return self.table if any("/ln_0/" in key for key in keys) else self._old

    def position_interpolation(self, keys):
        return "truncate"

    def pretraining(self, keys):
        return IMAGE_TEXT

    def skipped_keys(self, keys):
        prefix = self.prefix(keys)
        unused = (f"{prefix}class_head/padding", f"{prefix}obj_mask_head/")
        return [key for key in keys if not key.startswith(prefix) or key.startswith(unused)]

    def write(self, arrays, config):
        return {f"params/{key}": array for key, array in super().write(arrays, config).items()}

    def implied(self, keys, metadata):
        options = {"activation": "quick_gelu", "norm_epsilon": 1e-5, "prefix_positions": True}
        images = {"mean": _MEAN, "std": _STD, "resize": "pad", "antialias": True}
        return {**options, "pooling": "token", "preprocessing": images}
