"""The layout of `google-research/big_vision`: the official names, with that project's changes.

The position table has another key and no row for the class token, which is prepended after the positions are
added; a file without a table has the fixed positions ("sincos2d"); attention pooling is `MAPHead_0`; with
`scan` the blocks are stacked along a first axis; bfloat16 is stored as two raw bytes.
"""

import numpy as np

from keras_vit.weights.layouts.layout import ANY, COMMON
from keras_vit.weights.layouts.table import Row, Table, flax_rows
from keras_vit.weights.layouts.vit_jax import TRANSFORMER, VitJax, block_names

_STACKED = "Transformer/encoderblock/"
_POOLING = {"probe": "probe", **block_names(mlp_norm=0)}


class BigVision(VitJax):
    name = "big_vision"
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
        prefix = self.prefix(arrays) or ""
        unstacked, stored_in = {}, {}
        for key, array in arrays.items():
            is_stack = key.removeprefix(prefix).startswith(_STACKED) and array.ndim and len(array)
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
