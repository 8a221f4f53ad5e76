"""The layout of the official checkpoints: names and shapes of `google-research/vision_transformer`.

A file is an `.npz` of float32 arrays. Its keys are the paths of the parameters, either as flax named them
when the files were published (`LayerNorm_2`, `MlpBlock_3`) or as it names them since 2021 ("Linen":
`LayerNorm_1`, `MlpBlock_0`), with an optional prefix. Kernels have our shapes.
"""

import re

from keras_vit.weights.layouts.layout import ANY, COMMON, Layout
from keras_vit.weights.layouts.table import Row, Table

NORM = (("gamma", "scale"), ("beta", "bias"))
DENSE = (("kernel", "kernel"), ("bias", "bias"))
ATTENTION = ("query", "key", "value", "out")


def rows(ours, theirs, leaves):
    return [Row(f"{ours}/{our_leaf}", f"{theirs}/{their_leaf}") for our_leaf, their_leaf in leaves]


def block_rows(ours, theirs, norms, attention="MultiHeadDotProductAttention_0", mlp="MlpBlock_0"):
    """Rows of attention, MLP and norms; `norms` are (our name, their index)."""
    return [
        *(row for a in ATTENTION for row in rows(f"{ours}attention/{a}", f"{theirs}{attention}/{a}", DENSE)),
        *(row for name, n in norms for row in rows(f"{ours}{name}", f"{theirs}LayerNorm_{n}", NORM)),
        *(row for n in (0, 1) for row in rows(f"{ours}mlp/dense_{n}", f"{theirs}{mlp}/Dense_{n}", DENSE)),
    ]


_BLOCK = ("encoder_block_{i}/", "Transformer/encoderblock_{i}/")
# Before Linen, flax numbered all parts of a block together.
_PRE_LINEN = block_rows(*_BLOCK, [("mlp_norm", 2)], "MultiHeadDotProductAttention_1", "MlpBlock_3")
_PRE_LINEN_KEY = re.compile(r".*/(LayerNorm_2|MultiHeadDotProductAttention_1|MlpBlock_3)/.*")
TRANSFORMER = [
    Row("class_token/token", "cls"),
    *rows("patch_embedding", "embedding", DENSE),
    *block_rows(*_BLOCK, [("attention_norm", 0), ("mlp_norm", 1)]),
    *_PRE_LINEN,
    *rows("encoder_norm", "Transformer/encoder_norm", NORM),
    *rows("pre_logits", "pre_logits", DENSE),
    *rows("head", "head", DENSE),
]
# The state of an optimizer, and the text tower and temperature of an image-text model.
_SKIPPED = re.compile(r"opt/(?!target/).*|extra/.*|(params/)?(txt/.*|t|b)")


class VitJax(Layout):
    name = "vit_jax"
    suffix = ".npz"
    table = Table(
        [
            *TRANSFORMER,
            Row("position_embedding/table", "Transformer/posembed_input/pos_embedding"),
            Row("conv_root/kernel", "conv_root/kernel"),
            *rows("gn_root", "gn_root", NORM),
            *(
                row
                for suffix in ("1", "2", "3", "_proj")
                for part, leaves in (("conv", DENSE), ("gn", NORM))
                for row in rows(
                    f"block{{i}}_unit{{j}}_{part}{suffix}", f"block{{i}}/unit{{j}}/{part}{suffix}", leaves
                )
            ),
        ]
    )
    anchors = ("embedding/kernel",)
    prefixes = ("", "opt/target/", "params/", "params/img/", "img/")
    split_heads = True
    supported = {
        **COMMON,
        "pooling": ("token", "gap", None),
        "representation_size": ANY,
        "resnet": ANY,
    }

    def detect(self, keys):
        return self.family(keys) == "vit_jax"

    def family(self, keys):
        """Which layout with these names the keys have: "vit_jax", "big_vision" or None."""
        prefix = self.prefix(keys)
        if prefix is None:
            return None
        inside = {key.removeprefix(prefix) for key in keys if key.startswith(prefix)}
        if {"pos_embedding", "Transformer/pos_embedding"} & inside:
            return "big_vision"
        if {"Transformer/posembed_input/pos_embedding", "conv_root/kernel"} & inside:
            return "vit_jax"
        if not any(key.startswith("Transformer/") for key in inside):
            return None
        # Without a table the positions are big_vision's fixed ones, which never had names from before Linen.
        return "vit_jax" if any(map(_PRE_LINEN_KEY.fullmatch, inside)) else "big_vision"

    def skipped_keys(self, keys):
        prefix = self.prefix(keys)
        if not prefix:
            return []
        return [key for key in keys if not key.startswith(prefix) and _SKIPPED.fullmatch(key)]

    def read(self, arrays):
        mapped = super().read(arrays)
        for name, array in mapped.arrays.items():
            # Group norms were stored as (1, 1, 1, channels) before flax 0.3.6.
            if "gn" in name and array.ndim == 4 and array.shape[:3] == (1, 1, 1):
                mapped.arrays[name] = array.reshape(-1)
        return mapped

    def implied(self, keys, metadata):
        # There are no fixed positions: without a table a model has none.
        return {
            "activation": "gelu_tanh",
            "norm_epsilon": 1e-6,
            "prefix_positions": True,
            "position_embedding": "none",
        }

    def conflicts(self, config):
        pooling, class_token = config["pooling"], config["class_token"]
        if config["num_layers"] is None:
            return [] if config["resnet"] is not None else super().conflicts(config)
        if pooling is not None and class_token != (pooling == "token"):
            return [f"class_token={class_token} with pooling={pooling!r}"]
        return []
