"""The layout of Hugging Face's `transformers`: ViT and DeiT, with or without a classifier.

The weights of `ViTModel` are those of `ViTForImageClassification` without the prefix `vit.`; its pooler is
the paper's representation layer. A distilled DeiT has two classifiers.
"""

import re

from keras_vit.weights.layouts import huggingface_config
from keras_vit.weights.layouts.layout import ANY, COMMON, Layout
from keras_vit.weights.layouts.table import CONV, Row, Table, torch_dense, torch_norm, without_prefix

_BLOCK, _OURS = "encoder.layer.{i}", "encoder_block_{i}"
# Block layers as transformers 5 names them in memory and in a saved state dict, and as its files name them.
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


class HuggingFace(Layout):
    name = "huggingface"
    in_folder = True
    config_files = huggingface_config.FILES
    table = Table(
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
    anchors = ("embeddings.patch_embeddings.projection.weight",)
    prefixes = ("", "vit.", "deit.")
    supported = {
        **COMMON,
        "representation_size": ANY,
        "qkv_bias": (True, False),
        "num_registers": (0, 1),
        "distillation": (True, False),
    }

    def read(self, arrays):
        prefix = self.prefix(arrays) or ""

        def renamed(key):
            if _HEAD.fullmatch(key):
                return key.removeprefix("cls_")
            inside = without_prefix(key, prefix)
            if _HEAD.fullmatch(inside):
                return "/" + key  # heads do not have the prefix
            block = _BLOCK_KEY.fullmatch(inside)
            if not block:
                return inside
            number, layer, leaf = block.groups()
            return f"encoder.layer.{number}.{_IN_MEMORY.get(layer, layer)}.{leaf}"

        mapped = self.table.read(arrays, renamed)
        names = mapped.arrays.keys()
        if "distillation_token/token" in names and "head_distillation/kernel" not in names:
            # Without a head of its own the token is a register.
            for by_name in (mapped.arrays, mapped.keys):
                by_name["register_tokens/token"] = by_name.pop("distillation_token/token")
        if "head/kernel" in names:
            # transformers' classifiers ignore a pooler.
            for name in [name for name in names if name.startswith("pre_logits/")]:
                del mapped.arrays[name]
                mapped.skipped.append(mapped.keys.pop(name))
        return mapped

    def write(self, arrays, config):
        """Map arrays to the file's keys; a register becomes a DeiT's distillation token without a head."""
        arrays = dict(arrays)
        if "register_tokens/token" in arrays:
            arrays["distillation_token/token"] = arrays.pop("register_tokens/token")
        prefix = "deit." if "distillation_token/token" in arrays else "vit."
        prefix = prefix if config["num_classes"] else ""
        written = {}
        for key, array in super().write(arrays, config).items():
            if not _HEAD.fullmatch(key):
                written[prefix + key] = array
            elif key.startswith("classifier") and config["distillation"]:
                written["cls_" + key] = array
            else:
                written[key] = array
        return written

    def implied(self, keys, metadata):
        # The defaults of transformers' `ViTConfig`.
        return {"activation": "gelu_erf", "norm_epsilon": 1e-12, "prefix_positions": True}

    def conflicts(self, config):
        conflicts = super().conflicts(config)
        height, width = config["patch_size"]
        if height != width:
            conflicts.append(f"patch_size={config['patch_size']} (supported: squares)")
        if config["representation_size"] not in (None, config["hidden_size"]):
            conflicts.append(f"representation_size={config['representation_size']} (supported: hidden_size)")
        if config["representation_size"] and config["num_classes"]:
            conflicts.append("representation_size with a head")
        if config["distillation"] and not config["num_classes"]:
            conflicts.append("distillation without a head")
        if config["num_registers"] and config["distillation"]:
            conflicts.append("num_registers with distillation")
        return conflicts

    def read_config(self, folder):
        return huggingface_config.read(folder)

    def write_config(self, config):
        return huggingface_config.written(config)
