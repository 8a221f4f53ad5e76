"""The layout of the official checkpoints: names and shapes of `google-research/vision_transformer`.

A file is an `.npz` of float32 arrays. Its keys are the paths of the parameters, either as flax
named them when the files were published (`LayerNorm_2`, `MlpBlock_3`) or as it names them since
2021 ("Linen": `LayerNorm_1`, `MlpBlock_0`); `opt/target/`, `params/` or `img/` may stand before
them. Kernels have the shapes of ours.
"""

import re

from keras_vit.weights.layouts.names import Row, Table, find_prefix, without_prefix

NORM = (("gamma", "scale"), ("beta", "bias"))
DENSE = (("kernel", "kernel"), ("bias", "bias"))
ATTENTION = ("query", "key", "value", "out")


def rows(ours, theirs, leaves):
    return [Row(f"{ours}/{our_leaf}", f"{theirs}/{their_leaf}") for our_leaf, their_leaf in leaves]


def block_rows(ours, theirs, norms):
    """The rows of attention, MLP and norms; `norms` are (our name, their number)."""
    attention = f"{theirs}/MultiHeadDotProductAttention_0"
    return [
        *(row for a in ATTENTION for row in rows(f"{ours}/attention/{a}", f"{attention}/{a}", DENSE)),
        *(row for name, n in norms for row in rows(f"{ours}/{name}", f"{theirs}/LayerNorm_{n}", NORM)),
        *(
            row
            for n in (0, 1)
            for row in rows(f"{ours}/mlp/dense_{n}", f"{theirs}/MlpBlock_0/Dense_{n}", DENSE)
        ),
    ]


TRANSFORMER = [
    Row("class_token/token", "cls"),
    *rows("patch_embedding", "embedding", DENSE),
    *block_rows(
        "encoder_block_{i}", "Transformer/encoderblock_{i}", (("attention_norm", 0), ("mlp_norm", 1))
    ),
    *rows("encoder_norm", "Transformer/encoder_norm", NORM),
    *rows("pre_logits", "pre_logits", DENSE),
    *rows("head", "head", DENSE),
]
TABLE = Table(
    [
        *TRANSFORMER,
        Row("position_embedding/table", "Transformer/posembed_input/pos_embedding"),
        *rows("conv_root", "conv_root", DENSE[:1]),
        *rows("gn_root", "gn_root", NORM),
        *(
            row
            for suffix in ("1", "2", "3", "_proj")
            for part, leaves in ((f"conv{suffix}", DENSE[:1]), (f"gn{suffix}", NORM))
            for row in rows(f"block{{i}}_unit{{j}}_{part}", f"block{{i}}/unit{{j}}/{part}", leaves)
        ),
    ]
)

# What flax called the parts of a block before Linen: it counted all of them together.
_PRE_LINEN = (
    (re.compile(r"(?<=/)LayerNorm_2(?=/)"), "LayerNorm_1"),
    (re.compile(r"(?<=/)MultiHeadDotProductAttention_1(?=/)"), "MultiHeadDotProductAttention_0"),
    (re.compile(r"(?<=/)MlpBlock_3(?=/)"), "MlpBlock_0"),
)
_PREFIXES = ("", "opt/target/", "params/", "params/img/", "img/")
# What a training run or a pair of towers keeps beside the model: optimizer state, text, temperature.
_BESIDE = re.compile(r"opt/(?!target/).*|extra/.*|(params/)?(txt/.*|t|b)")

SUFFIX = ".npz"
OPTIONS = ()
HEADS_APART = True  # the kernels of attention have an axis of heads
PREFIX_POSITIONS = True
EXPRESSES = {
    "pooling": ("token", "gap", None),
    "position_embedding": ("learned",),
    "activation": ("gelu_tanh", "gelu_erf", "quick_gelu"),
    "qkv_bias": (True,),
    "num_registers": (0,),
    "distillation": (False,),
    "layer_scale": (None,),
    "pre_norm": (False,),
    "norm_after_pooling": (False,),
}


def detect(keys):
    """Whether these are the keys of an official checkpoint."""
    return family(keys) == "vit_jax"


def family(keys):
    """Which of the layouts with these names keys are in, "vit_jax" or "big_vision"; None for another."""
    prefix = find_prefix(keys, ["embedding/kernel"], _PREFIXES)
    if prefix is None:
        return None
    inside = {key.removeprefix(prefix) for key in keys if key.startswith(prefix)}
    if {"pos_embedding", "Transformer/pos_embedding"} & inside:
        return "big_vision"
    if {"Transformer/posembed_input/pos_embedding", "conv_root/kernel"} & inside:
        return "vit_jax"
    if not any(key.startswith("Transformer/") for key in inside):
        return None
    # Without positions: big_vision's fixed ones, which have never had names from before Linen.
    return "vit_jax" if any(linen(key) != key for key in inside) else "big_vision"


def implied(keys, told):
    """What the layout says of a model without storing it."""
    return {
        "activation": "gelu_tanh",
        "norm_epsilon": 1e-6,
        "prefix_positions": True,
        "position_embedding": "none",  # where there is no table
    }


def read(arrays):
    """Arrays by the file's keys as a `Reading`."""
    inside, short = unwrapped(arrays)
    reading = TABLE.read(inside, lambda key: linen(short(key)))
    for name, array in reading.arrays.items():
        # Group norms were stored as (1, 1, 1, channels) before flax 0.3.6.
        if "gn" in name and array.ndim == 4 and array.shape[:3] == (1, 1, 1):
            reading.arrays[name] = array.reshape(-1)
    return reading._replace(left_out=[key for key in arrays if key not in inside])


def write(arrays, config):
    """Arrays by our names to arrays by the file's keys."""
    return TABLE.write(arrays)


def is_beside(key):
    """Whether a key is of what a training run or a pair of towers keeps beside the model."""
    return _BESIDE.fullmatch(key) is not None


def linen(key):
    """The Linen name of a key, which may be one from before."""
    for pattern, new in _PRE_LINEN:
        key = pattern.sub(new, key)
    return key


def unwrapped(arrays):
    """(the arrays but for what stands beside the model, a function that takes the prefix off a key)."""
    prefix = find_prefix(arrays, ["embedding/kernel"], _PREFIXES) or ""
    inside = {
        key: array
        for key, array in arrays.items()
        if not prefix or key.startswith(prefix) or not is_beside(key)
    }
    return inside, lambda key: without_prefix(key, prefix)
