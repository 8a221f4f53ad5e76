"""The layout of Hugging Face's `transformers`: ViT and DeiT, with or without a classifier.

The weights of `ViTModel` are those of `ViTForImageClassification` without the prefix `vit.`; its
pooler is the paper's representation layer. Two classifiers belong to a distilled DeiT.
"""

import re

from keras_vit.weights.layouts.names import (
    CONV,
    Row,
    Table,
    find_prefix,
    torch_dense,
    torch_norm,
    without_prefix,
)

_BLOCK, _OURS = "encoder.layer.{i}", "encoder_block_{i}"
TABLE = Table(
    [
        Row("class_token/token", "embeddings.cls_token"),
        Row("distillation_token/token", "embeddings.distillation_token"),
        Row("position_embedding/table", "embeddings.position_embeddings"),
        *torch_dense("patch_embedding", "embeddings.patch_embeddings.projection", CONV),
        *torch_norm(f"{_OURS}/attention_norm", f"{_BLOCK}.layernorm_before"),
        *(
            row
            for part in ("query", "key", "value")
            for row in torch_dense(f"{_OURS}/attention/{part}", f"{_BLOCK}.attention.attention.{part}")
        ),
        *torch_dense(f"{_OURS}/attention/out", f"{_BLOCK}.attention.output.dense"),
        *torch_norm(f"{_OURS}/mlp_norm", f"{_BLOCK}.layernorm_after"),
        *torch_dense(f"{_OURS}/mlp/dense_0", f"{_BLOCK}.intermediate.dense"),
        *torch_dense(f"{_OURS}/mlp/dense_1", f"{_BLOCK}.output.dense"),
        *torch_norm("encoder_norm", "layernorm"),
        *torch_dense("pre_logits", "pooler.dense"),
        *torch_dense("head", "classifier"),
        *torch_dense("head_distillation", "distillation_classifier"),
    ]
)
_ANCHOR = "embeddings.patch_embeddings.projection.weight"
_PREFIXES = ("", "vit.", "deit.")
# transformers 5 has other names in memory, which a saved state dict shows, than in its files.
_IN_MEMORY = {
    "attention.q_proj": "attention.attention.query",
    "attention.k_proj": "attention.attention.key",
    "attention.v_proj": "attention.attention.value",
    "attention.o_proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}
_BLOCK_KEY = re.compile(r"layers\.(\d+)\.(.+)\.(weight|bias)")
_HEAD = re.compile(r"((cls_|distillation_)?classifier)\.(weight|bias)")

SUFFIX = ".safetensors"
OPTIONS = ()
HEADS_APART = False
PREFIX_POSITIONS = True
EXPRESSES = {
    "pooling": ("token",),
    "position_embedding": ("learned",),
    "resnet": (None,),
    "num_registers": (0, 1),
    "layer_scale": (None,),
    "pre_norm": (False,),
    "norm_after_pooling": (False,),
}


def detect(keys):
    """Whether these are the keys of a ViT or DeiT of transformers."""
    return find_prefix(keys, [_ANCHOR], _PREFIXES) is not None


def implied(keys, told):
    """What the layout says of a model without storing it: the defaults of `ViTConfig`."""
    return {"activation": "gelu_erf", "norm_epsilon": 1e-12, "prefix_positions": True}


def read(arrays):
    """Arrays by the file's keys as a `Reading`.

    A pooler beside a classifier is left out, as the classifiers of transformers do not read it.
    """
    prefix = find_prefix(arrays, [_ANCHOR], _PREFIXES) or ""

    def short(key):
        if _HEAD.fullmatch(key):
            return key.removeprefix("cls_")
        inside = without_prefix(key, prefix)
        if _HEAD.fullmatch(inside):
            return "/" + key  # heads stand outside the prefix
        block = _BLOCK_KEY.fullmatch(inside)
        if not block:
            return inside
        number, layer, leaf = block.groups()
        return f"encoder.layer.{number}.{_IN_MEMORY.get(layer, layer)}.{leaf}"

    reading = TABLE.read(arrays, short)
    if "distillation_token/token" in reading.arrays and "head_distillation/kernel" not in reading.arrays:
        # No head reads it: it is a token like a register.
        for names in (reading.arrays, reading.keys):
            names["register_tokens/token"] = names.pop("distillation_token/token")
    if "head/kernel" in reading.arrays:
        for name in [name for name in reading.arrays if name.startswith("pre_logits/")]:
            del reading.arrays[name]
            reading.left_out.append(reading.keys.pop(name))
    return reading


def write(arrays, config):
    """Arrays by our names to arrays by the file's keys.

    A register is written as the distillation token of a DeiT that no classifier reads.
    """
    arrays = dict(arrays)
    if "register_tokens/token" in arrays:
        arrays["distillation_token/token"] = arrays.pop("register_tokens/token")
    prefix = "deit." if "distillation_token/token" in arrays else "vit."
    prefix = prefix if config["num_classes"] else ""
    written = {}
    for key, array in TABLE.write(arrays).items():
        if not _HEAD.fullmatch(key):
            written[prefix + key] = array
        elif key.startswith("classifier") and config["distillation"]:
            written["cls_" + key] = array
        else:
            written[key] = array
    return written
