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
        parts, stored_in = unstacked(arrays, (self.prefix(arrays) or "") + _STACKED)
        mapped = super().read(parts)
        return mapped._replace(
            keys={name: stored_in[key] for name, key in mapped.keys.items()},
            unknown=list(dict.fromkeys(stored_in[key] for key in mapped.unknown)),
        )

    def write(self, arrays, config, scan=False):
        written = super().write(arrays, config)
        written = stacked(written, "Transformer/encoderblock_") if scan else written
        return {f"params/{key}": array for key, array in written.items()}

    def implied(self, keys, metadata):
        implied = super().implied(keys, metadata)
        return {**implied, "prefix_positions": False, "position_embedding": "sincos2d"}


def unstacked(arrays, start):
    """Divide arrays of all blocks, whose keys begin with `start`, into one array for each block.

    Args:
        arrays: dict of arrays by key.
        start: Such as "Transformer/encoderblock/".

    Returns:
        (dict of arrays by key, dict from these keys to the given ones).

    Raises:
        ValueError: if a block's array is there both ways.

    Example:
        >>> sorted(unstacked({"encoderblock/bias": np.zeros((2, 3))}, "encoderblock/")[0])
        ['encoderblock_0/bias', 'encoderblock_1/bias']
    """
    parts, stored_in = {}, {}
    for key, array in arrays.items():
        is_stack = key.startswith(start) and array.ndim and len(array)
        for i, part in enumerate(array) if is_stack else [(None, array)]:
            name = key if i is None else f"{start[:-1]}_{i}/{key.removeprefix(start)}"
            if name in parts:
                raise ValueError(f"{key} and {stored_in[name]} both hold {name}")
            parts[name], stored_in[name] = part, key
    return parts, stored_in


def stacked(arrays, start):
    """The inverse of `unstacked`: `start` ends with "_", before the number of a block."""
    others, blocks = {}, {}
    for key, array in arrays.items():
        if key.startswith(start):
            number, leaf = key.removeprefix(start).split("/", 1)
            blocks.setdefault(leaf, {})[int(number)] = array
        else:
            others[key] = array
    stacks = {leaf: np.stack([parts[i] for i in sorted(parts)]) for leaf, parts in blocks.items()}
    return {**others, **{f"{start[:-1]}/{leaf}": stack for leaf, stack in stacks.items()}}
