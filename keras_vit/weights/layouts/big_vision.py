"""The layout of `google-research/big_vision`: the official names, with that project's changes.

The position table has another key and no row for the class token, which is prepended after the positions are
added; a file without a table has the fixed positions ("sincos2d"); attention pooling is `MAPHead_0`; with
`scan` the blocks are stacked along a first axis; bfloat16 is stored as two raw bytes.
"""

from keras_vit.weights.layouts.flax import block_names, stacked, unstacked
from keras_vit.weights.layouts.flax_towers import FlaxTowers
from keras_vit.weights.layouts.layout import ANY, COMMON, ModelForm
from keras_vit.weights.layouts.table import Row, Table, flax_rows
from keras_vit.weights.layouts.vit_jax import TRANSFORMER, VitJax
from keras_vit.weights.pretraining import IMAGE_TEXT

_STACKED = "Transformer/encoderblock/"
_POOLING = {"probe": "probe", **block_names(mlp_norm=0)}


class BigVision(VitJax):
    name = "big_vision"
    forms = {"classifier": ModelForm(), "image_text": FlaxTowers(prefix="params/")}
    table = Table(
        [
            *TRANSFORMER,
            Row("position_embedding/table", "pos_embedding"),
            Row("position_embedding/table", "Transformer/pos_embedding"),
            *flax_rows(_POOLING, "attention_pooling/", "MAPHead_0/"),
            *flax_rows(_POOLING, "attention_pooling/"),  # some files have it at the root
        ]
    )
    prefix_positions = False
    write_options = ("scan",)
    supported = {
        **COMMON,
        "pooling": ("token", "gap", "map", None),
        "position_embedding": ("learned", "sincos2d"),
        "representation_size": ANY,
    }

    def detect(self, keys):
        return self.family(keys) == "big_vision"

    def read(self, arrays):
        parts, stored_in = unstacked(arrays, (self.prefix(arrays) or "") + _STACKED)
        return super().read(parts).with_keys(stored_in)

    def write(self, arrays, config, scan=False):
        written = super().write(arrays, config)
        written = stacked(written, "Transformer/encoderblock_") if scan else written
        return {f"params/{key}": array for key, array in written.items()}

    def pretraining(self, keys):
        prefix = self.prefix(keys) or ""
        has_text = any(key.removeprefix("params/").startswith("txt/") for key in keys)
        is_siglip = any("MAPHead_0/" in key for key in keys) and f"{prefix}head/kernel" not in keys
        return IMAGE_TEXT if has_text or is_siglip else None

    def implied(self, keys, metadata):
        implied = super().implied(keys, metadata)
        return {**implied, "prefix_positions": False, "position_embedding": "sincos2d"}
