"""The layout of the official checkpoints: names and shapes of `google-research/vision_transformer`.

A file is an `.npz` of float32 arrays. Its keys are the paths of the parameters, either as flax
named them when the files were published (`LayerNorm_2`, `MlpBlock_3`) or as it names them since
2021 ("Linen": `LayerNorm_1`, `MlpBlock_0`). Kernels have the shapes of ours.
"""

import re

# Our variable: the file's key in Linen names. {i} and {j} stand for numbers.
_BLOCK = "Transformer/encoderblock_{i}"
_NORM = (("gamma", "scale"), ("beta", "bias"))
_DENSE = (("kernel", "kernel"), ("bias", "bias"))
_LAYERS = (
    ("patch_embedding", "embedding", _DENSE),
    *(
        (
            f"encoder_block_{{i}}/attention/{ours}",
            f"{_BLOCK}/MultiHeadDotProductAttention_0/{ours}",
            _DENSE,
        )
        for ours in ("query", "key", "value", "out")
    ),
    ("encoder_block_{i}/attention_norm", f"{_BLOCK}/LayerNorm_0", _NORM),
    ("encoder_block_{i}/mlp_norm", f"{_BLOCK}/LayerNorm_1", _NORM),
    *((f"encoder_block_{{i}}/mlp/dense_{n}", f"{_BLOCK}/MlpBlock_0/Dense_{n}", _DENSE) for n in (0, 1)),
    ("encoder_norm", "Transformer/encoder_norm", _NORM),
    ("pre_logits", "pre_logits", _DENSE),
    ("head", "head", _DENSE),
    ("conv_root", "conv_root", _DENSE[:1]),
    ("gn_root", "gn_root", _NORM),
    *(
        (f"block{{i}}_unit{{j}}_{part}", f"block{{i}}/unit{{j}}/{part}", leaves)
        for suffix in ("1", "2", "3", "_proj")
        for part, leaves in ((f"conv{suffix}", _DENSE[:1]), (f"gn{suffix}", _NORM))
    ),
)
NAMES = {
    "class_token/token": "cls",
    "position_embedding/table": "Transformer/posembed_input/pos_embedding",
    **{
        f"{ours}/{our_leaf}": f"{theirs}/{their_leaf}"
        for ours, theirs, leaves in _LAYERS
        for our_leaf, their_leaf in leaves
    },
}

# What flax called the parts of a block before Linen: it counted all of them together.
_PRE_LINEN = (
    (re.compile(r"(?<=/)LayerNorm_2(?=/)"), "LayerNorm_1"),
    (re.compile(r"(?<=/)MultiHeadDotProductAttention_1(?=/)"), "MultiHeadDotProductAttention_0"),
    (re.compile(r"(?<=/)MlpBlock_3(?=/)"), "MlpBlock_0"),
)


def _pattern(template):
    return re.compile(re.escape(template).replace(r"\{i\}", r"(?P<i>\d+)").replace(r"\{j\}", r"(?P<j>\d+)"))


_READ = [(_pattern(theirs), ours) for ours, theirs in NAMES.items()]


def detect(keys):
    """Whether these are the keys of an official checkpoint."""
    return (
        "embedding/kernel" in keys
        and any(key.startswith("Transformer/") for key in keys)
        or ("conv_root/kernel" in keys and "embedding/kernel" in keys)
    )


def read(arrays):
    """Arrays by the file's keys to arrays by our variables' names.

    Returns:
        (dict of arrays by our names, dict from our names to the file's keys, list of keys that the
        layout does not know).
    """
    known, keys, unknown = {}, {}, []
    for key, array in arrays.items():
        linen = key
        for pattern, new in _PRE_LINEN:
            linen = pattern.sub(new, linen)
        ours = _our_name(linen)
        if ours is None:
            unknown.append(key)
            continue
        if ours in known:
            raise ValueError(
                f"{key} and {keys[ours]} both stand for {ours}; a checkpoint holds each array once"
            )
        # Group norms were stored as (1, 1, 1, channels) before flax 0.3.6.
        if "gn" in ours and array.ndim == 4 and array.shape[:3] == (1, 1, 1):
            array = array.reshape(-1)
        known[ours], keys[ours] = array, key
    return known, keys, unknown


def _our_name(key):
    for pattern, ours in _READ:
        match = pattern.fullmatch(key)
        if match:
            return ours.format(**match.groupdict())
    return None
