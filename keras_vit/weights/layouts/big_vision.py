"""The layout of `google-research/big_vision`: the official names, with that project's changes.

The position table has another key and no row for the class token, which is prepended after the positions are
added; a file without a table has the fixed positions ("sincos2d"); attention pooling is `MAPHead_0`; with
`scan` the blocks are stacked along a first axis; bfloat16 is stored as two raw bytes.
"""

import re

import numpy as np

from keras_vit.weights.layouts.layout import ANY, COMMON
from keras_vit.weights.layouts.table import Row, Table, without_prefix
from keras_vit.weights.layouts.vit_jax import TRANSFORMER, VitJax, block_rows

_STACKED = "Transformer/encoderblock/"
_POOLING_AT_ROOT = re.compile(r"(probe|MlpBlock_0/.*|MultiHeadDotProductAttention_0/.*|LayerNorm_0/.*)")


class BigVision(VitJax):
    name = "big_vision"
    table = Table(
        [
            *TRANSFORMER,
            Row("position_embedding/table", "pos_embedding"),
            Row("attention_pooling/probe", "MAPHead_0/probe"),
            *block_rows("attention_pooling", "MAPHead_0", (("mlp_norm", 0),)),
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

    def renamed(self, key):
        key = super().renamed(key)
        if key == "Transformer/pos_embedding":
            return "pos_embedding"
        return f"MAPHead_0/{key}" if _POOLING_AT_ROOT.fullmatch(key) else key

    def read(self, arrays):
        prefix = self.prefix(arrays) or ""
        unstacked, stored_in = {}, {}
        for key, array in arrays.items():
            is_stack = without_prefix(key, prefix).startswith(_STACKED) and array.ndim and len(array)
            for i, part in enumerate(array) if is_stack else [(None, array)]:
                name = key if i is None else key.replace("/encoderblock/", f"/encoderblock_{i}/", 1)
                if name in unstacked:
                    raise ValueError(f"{key} and {stored_in[name]} both hold {name}")
                unstacked[name], stored_in[name] = part, key
        mapped = super().read(unstacked)
        return mapped._replace(
            keys={name: stored_in[key] for name, key in mapped.keys.items()},
            unknown=list(dict.fromkeys(stored_in[key] for key in mapped.unknown)),
        )

    def write(self, arrays, config, scan=False):
        written = super().write(arrays, config)
        if scan:
            blocks = {}
            for key in [key for key in written if key.startswith("Transformer/encoderblock_")]:
                number, leaf = key.removeprefix("Transformer/encoderblock_").split("/", 1)
                blocks.setdefault(leaf, {})[int(number)] = written.pop(key)
            for leaf, by_number in blocks.items():
                written[_STACKED + leaf] = np.stack([by_number[i] for i in sorted(by_number)])
        return {f"params/{key}": array for key, array in written.items()}

    def implied(self, keys, metadata):
        implied = super().implied(keys, metadata)
        return {**implied, "prefix_positions": False, "position_embedding": "sincos2d"}
