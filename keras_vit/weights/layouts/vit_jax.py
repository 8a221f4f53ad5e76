"""The layout of the official checkpoints: names and shapes of `google-research/vision_transformer`.

A file is an `.npz` of float32 arrays. Its keys are the paths of the parameters, either as flax named them
when the files were published (`LayerNorm_2`, `MlpBlock_3`) or as it names them since 2021 ("Linen":
`LayerNorm_1`, `MlpBlock_0`), with an optional prefix. Kernels have our shapes.
"""

import re

from keras_vit.weights.layouts.flax import block_names
from keras_vit.weights.layouts.flax_towers import FlaxTowers
from keras_vit.weights.layouts.layout import ANY, COMMON, Layout, ModelForm
from keras_vit.weights.layouts.table import Row, Table, flax_rows

_BLOCK = ("encoder_block_{i}/", "Transformer/encoderblock_{i}/")


TRANSFORMER = [
    *flax_rows({"class_token/token": "cls", "patch_embedding": "embedding"}),
    *flax_rows({"attention_norm": "LayerNorm_0", **block_names()}, *_BLOCK),
    *flax_rows(block_names(1, 2, 3), *_BLOCK),
    *flax_rows({"encoder_norm": "Transformer/encoder_norm", "pre_logits": "pre_logits", "head": "head"}),
]
_UNIT = [f"{part}{suffix}" for part in ("conv", "gn") for suffix in ("1", "2", "3", "_proj")]
_PRE_LINEN = re.compile(r".*/(LayerNorm_2|MultiHeadDotProductAttention_1|MlpBlock_3)/.*")
# The state of an optimizer, and the text tower and temperature of an image-text model.
_SKIPPED = re.compile(r"opt/(?!target/).*|extra/.*|(params/)?(txt/.*|t|b)")


class VitJax(Layout):
    name = "vit_jax"
    forms = {"classifier": ModelForm(), "image_text": FlaxTowers(tokenizer_family="lit")}
    suffix = ".npz"
    table = Table(
        [
            *TRANSFORMER,
            Row("position_embedding/table", "Transformer/posembed_input/pos_embedding"),
            *flax_rows({"conv_root": "conv_root", "gn_root": "gn_root"}),
            *flax_rows(dict(zip(_UNIT, _UNIT)), "block{i}_unit{j}_", "block{i}/unit{j}/"),
        ]
    )
    anchors = ("embedding/kernel",)
    prefixes = ("", "opt/target/", "params/", "params/img/", "img/")
    split_heads = True
    stem_alone = True
    supported = {**COMMON, "pooling": ("token", "gap", None), "representation_size": ANY, "resnet": ANY}

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
        return "vit_jax" if any(map(_PRE_LINEN.fullmatch, inside)) else "big_vision"

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

    def unsupported(self, config):
        pooling, class_token, reasons = config["pooling"], config["class_token"], super().unsupported(config)
        has_pooling = config["num_layers"] is not None and pooling is not None
        if has_pooling and class_token != (pooling == "token"):
            reasons.append(f"class_token={class_token} with pooling={pooling!r}")
        return reasons
