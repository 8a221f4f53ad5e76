"""The layout of `google-research/big_vision`: the official names, and what that project changed.

Positions stand at the root and have no row for the class token, which joins after they are added;
a file without positions has the fixed ones ("sincos2d"); the pooling by attention is `MAPHead_0`;
with `scan` the blocks are one, stacked along a first axis; bfloat16 is stored as two raw bytes.
"""

import re

import numpy as np

from keras_vit.weights.layouts import vit_jax
from keras_vit.weights.layouts.names import Row, Table

TABLE = Table(
    [
        *vit_jax.TRANSFORMER,
        Row("position_embedding/table", "pos_embedding"),
        Row("attention_pooling/probe", "MAPHead_0/probe"),
        *vit_jax.block_rows("attention_pooling", "MAPHead_0", (("mlp_norm", 0),)),
    ]
)
_STACKED = "Transformer/encoderblock/"
_POOLING_AT_ROOT = re.compile(r"(probe|MlpBlock_0/.*|MultiHeadDotProductAttention_0/.*|LayerNorm_0/.*)")

SUFFIX = ".npz"
OPTIONS = ("scan",)  # of write
HEADS_APART = True
PREFIX_POSITIONS = False
EXPRESSES = {
    **vit_jax.EXPRESSES,
    "pooling": ("token", "gap", "map", None),
    "position_embedding": ("learned", "sincos2d"),
    "resnet": (None,),
}


def detect(keys):
    """Whether these are the keys of a big_vision checkpoint, rather than an official one."""
    return vit_jax.family(keys) == "big_vision"


def implied(keys, told):
    """What the layout says of a model without storing it."""
    # The positions where there is no table.
    return {
        **vit_jax.implied(keys, told),
        "prefix_positions": False,
        "position_embedding": "sincos2d",
    }


def read(arrays):
    """Arrays by the file's keys as a `Reading`."""
    inside, short = vit_jax.unwrapped(arrays)
    apart, whole = {}, {}  # the arrays with each block of a stack apart, and the file's key of each
    for key, array in inside.items():
        stacked = short(key).startswith(_STACKED) and array.ndim and len(array)
        for i, part in enumerate(array) if stacked else [(None, array)]:
            name = key if i is None else key.replace("/encoderblock/", f"/encoderblock_{i}/", 1)
            if name in apart:
                raise ValueError(f"{key} and {whole[name]} both hold {name}")
            apart[name], whole[name] = part, key
    reading = TABLE.read(apart, lambda key: _today(short(key)))
    return reading._replace(
        keys={name: whole[key] for name, key in reading.keys.items()},
        unknown=list(dict.fromkeys(whole[key] for key in reading.unknown)),
        left_out=[key for key in arrays if key not in inside],
    )


def write(arrays, config, scan=False):
    """Arrays by our names to arrays by the file's keys; with `scan`, the blocks in one stack."""
    written = TABLE.write(arrays)
    if scan:
        blocks = {}
        for key in [key for key in written if key.startswith("Transformer/encoderblock_")]:
            number, leaf = key.removeprefix("Transformer/encoderblock_").split("/", 1)
            blocks.setdefault(leaf, {})[int(number)] = written.pop(key)
        for leaf, by_number in blocks.items():
            written[_STACKED + leaf] = np.stack([by_number[i] for i in sorted(by_number)])
    return {f"params/{key}": array for key, array in written.items()}


def _today(key):
    """Today's name of a key from before Linen, or from when the pooling stood at the root."""
    key = vit_jax.linen(key)
    if key == "Transformer/pos_embedding":
        return "pos_embedding"
    return f"MAPHead_0/{key}" if _POOLING_AT_ROOT.fullmatch(key) else key
