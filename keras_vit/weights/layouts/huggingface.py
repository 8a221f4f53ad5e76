"""The layout of Hugging Face's `transformers`: ViT and DeiT, with or without a classifier.

The weights of `ViTModel` are those of `ViTForImageClassification` without the prefix `vit.`; its pooler is
the paper's representation layer. A distilled DeiT has two classifiers.
"""

import re

from keras_vit.weights.layouts import huggingface_config
from keras_vit.weights.layouts.layout import ANY, COMMON, Layout
from keras_vit.weights.layouts.table import CONV, Table, torch_rows

# Our layers and their names in the files.
_LAYERS = {
    "class_token/token": "embeddings.cls_token",
    "distillation_token/token": "embeddings.distillation_token",
    "position_embedding/table": "embeddings.position_embeddings",
    "encoder_norm": "layernorm",
    "pre_logits": "pooler.dense",
    "head": "classifier",
    "head_distillation": "distillation_classifier",
}
_BLOCK = {
    "attention_norm": "layernorm_before",
    "attention/query": "attention.attention.query",
    "attention/key": "attention.attention.key",
    "attention/value": "attention.attention.value",
    "attention/out": "attention.output.dense",
    "mlp_norm": "layernorm_after",
    "mlp/dense_0": "intermediate.dense",
    "mlp/dense_1": "output.dense",
}
# As transformers 5 names them in memory, and in a saved state dict.
_BLOCK_IN_MEMORY = {
    "attention_norm": "layernorm_before",
    "attention/query": "attention.q_proj",
    "attention/key": "attention.k_proj",
    "attention/value": "attention.v_proj",
    "attention/out": "attention.o_proj",
    "mlp_norm": "layernorm_after",
    "mlp/dense_0": "mlp.fc1",
    "mlp/dense_1": "mlp.fc2",
}


class HuggingFace(Layout):
    name = "huggingface"
    in_folder = True
    config_files = huggingface_config.FILES
    table = Table(
        [
            *torch_rows(_LAYERS),
            *torch_rows({"head": "cls_classifier"}),  # of a distilled DeiT
            *torch_rows({"patch_embedding": "embeddings.patch_embeddings.projection"}, axes=CONV),
            *torch_rows(_BLOCK, "encoder_block_{i}/", "encoder.layer.{i}."),
            *torch_rows(_BLOCK_IN_MEMORY, "encoder_block_{i}/", "layers.{i}."),
        ]
    )
    without_prefix = re.compile(r"(cls_|distillation_)?classifier\..*")
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
        mapped = super().read(arrays)
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
            if not self.without_prefix.fullmatch(key):
                key = prefix + key
            elif key.startswith("classifier") and config["distillation"]:
                key = "cls_" + key
            written[key] = array
        return written

    def implied(self, keys, metadata):
        # The defaults of transformers' `ViTConfig`.
        return {"activation": "gelu_erf", "norm_epsilon": 1e-12, "prefix_positions": True}

    def conflicts(self, config):
        height, width = config["patch_size"]
        has_head, size = bool(config["num_classes"]), config["representation_size"]
        found = {
            f"patch_size={config['patch_size']} (supported: squares)": height != width,
            f"representation_size={size} (supported: hidden_size)": size not in (None, config["hidden_size"]),
            "representation_size with a head": size and has_head,
            "distillation without a head": config["distillation"] and not has_head,
            "num_registers with distillation": config["num_registers"] and config["distillation"],
        }
        return super().conflicts(config) + [reason for reason, is_found in found.items() if is_found]

    def read_config(self, folder):
        return huggingface_config.read(folder)

    def write_config(self, config):
        return huggingface_config.written(config)
