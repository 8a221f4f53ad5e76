"""The layout of timm and of DeiT's own files: a torch state dict with query, key and value in one array.

Supported are plain, distilled and register models, hybrids, and those with LayerScale, a norm before the
blocks (CLIP), a norm after the pooling (`fc_norm`) or attention pooling.
"""

import re

from keras_vit.layers.rotary import rotary_options
from keras_vit.models.config import prefix_tokens
from keras_vit.weights.layouts import timm_config
from keras_vit.weights.layouts.layout import ANY, COMMON, Layout
from keras_vit.weights.layouts.table import CONV, Table, fused_rows, torch_rows

_MLP = {"mlp_norm": "norm", "mlp/dense_0": "mlp.fc1", "mlp/dense_1": "mlp.fc2"}
_PACKED = re.compile(r"(blocks\.\d+\.mlp)\.fc1\.")  # gate and up in one array
_LAYERS = {
    "class_token/token": "cls_token",
    "distillation_token/token": "dist_token",
    "register_tokens/token": "reg_token",
    "position_embedding/table": "pos_embed",
    "rotary_positions/frequencies": "rope.freqs",
    "patch_norm": "patch_embed.norm",
    "pre_norm": "norm_pre",
    "encoder_norm": "norm",
    "pooled_norm": "fc_norm",
    "pre_logits": "pre_logits.fc",  # in timm's files of before 2022
    "head": "head",
    "head_distillation": "head_dist",
}
_BLOCK = {
    "attention_norm": "norm1",
    "attention/query_norm": "attn.q_norm",
    "attention/key_norm": "attn.k_norm",
    "attention/output_norm": "attn.norm",
    "attention/position_bias/table": "attn.relative_position_bias_table",
    "attention/out": "attn.proj",
    "attention_scale/gamma": "ls1.gamma",
    **_MLP,
    "mlp/gate": "mlp.fc1_g",
    "mlp/up": "mlp.fc1_x",
    "mlp/hidden_norm": "mlp.norm",
    "mlp_norm": "norm2",
    "mlp_scale/gamma": "ls2.gamma",
}
_OTHER_NAMES = {
    "attention_scale/gamma": "gamma_1",  # in DeiT III's own files, BEiT and EVA
    "mlp_scale/gamma": "gamma_2",
    "attention/query/bias": "attn.q_bias",  # in BEiT and EVA, whose keys have no bias
    "attention/value/bias": "attn.v_bias",
    **{f"attention/{name}": f"attn.{name[0]}_proj" for name in ("query", "key", "value")},
}
_POOLING = {"probe": "latent", "attention/query": "q", "attention/out": "proj", **_MLP}
_STEM, _UNIT = "patch_embed.backbone.", "patch_embed.backbone.stages.{i}.blocks.{j}."
_UNIT_LAYERS = {
    **{f"conv{n}": f"conv{n}" for n in (1, 2, 3)},
    **{f"gn{n}": f"norm{n}" for n in (1, 2, 3)},
    "conv_proj": "downsample.conv",
    "gn_proj": "downsample.norm",
}


class Timm(Layout):
    name = "timm"
    config_files = (timm_config.CONFIG,)
    table = Table(
        [
            *torch_rows(_LAYERS),
            *torch_rows({"patch_embedding": "patch_embed.proj"}, axes=CONV),
            *torch_rows(_BLOCK, "encoder_block_{i}/", "blocks.{i}."),
            *fused_rows("encoder_block_{i}/attention/", ("query", "key", "value"), "blocks.{i}.attn.qkv"),
            *torch_rows(_OTHER_NAMES, "encoder_block_{i}/", "blocks.{i}."),
            *fused_rows("encoder_block_{i}/mlp/", ("gate", "up"), "blocks.{i}.mlp.packed"),
            *torch_rows(_POOLING, "attention_pooling/", "attn_pool."),
            *fused_rows("attention_pooling/attention/", ("key", "value"), "attn_pool.kv"),
            *torch_rows({"conv_root": "stem.conv", "gn_root": "stem.norm"}, "", _STEM, CONV),
            *torch_rows({"conv_root": "conv", "gn_root": "norm"}, "", _STEM, CONV),  # without stages
            *torch_rows(_UNIT_LAYERS, "block{i+1}_unit{j+1}_", _UNIT, CONV),
        ]
    )
    anchors = ("patch_embed.proj.weight",)
    prefixes = ("", "module.")
    prefix_positions = None
    supported = {
        **COMMON,
        "pooling": ("token", "gap", "map", None),
        "num_registers": ANY,
        "layer_scale": ANY,
        "resnet": ANY,
        **dict.fromkeys(("qkv_bias", "distillation", "pre_norm", "norm_after_pooling"), (True, False)),
    }

    def read(self, arrays):
        prefix = self.prefix(arrays) or ""
        first, last = (arrays.get(f"{prefix}blocks.0.mlp.{name}.weight") for name in ("fc1", "fc2"))
        shapes = [array.shape for array in (first, last) if array is not None and array.ndim == 2]
        packed = len(shapes) == 2 and shapes[0][0] == 2 * shapes[1][1]
        names = {_PACKED.sub(r"\1.packed.", key) if packed else key: key for key in arrays}
        read = super().read({name: arrays[key] for name, key in names.items()})
        keys = {ours: names[name] for ours, name in read.keys.items()}
        return read._replace(keys=keys, unknown=[names[name] for name in read.unknown])

    def write(self, arrays, config):
        written = super().write(arrays, config)
        if config["resnet"] == ():
            written = {key.replace(f"{_STEM}stem.", _STEM): array for key, array in written.items()}
        return written

    def implied(self, keys, metadata):
        # Models with a norm before the blocks (CLIP) or attention pooling (SigLIP) exist with several
        # activations, so that none is implied.
        clip, gated = "pre_norm/gamma" in keys, "encoder_block_0/mlp/gate/kernel" in keys
        implied = {"norm_epsilon": 1e-5 if clip else 1e-6}
        if "conv_root/kernel" in keys:
            implied["resnet_form"] = "timm"
        if gated:
            implied["activation"] = "silu"
        elif not clip and "attention_pooling/probe" not in keys:
            implied["activation"] = "gelu_erf"
        if "rotary_positions/frequencies" in keys:
            implied["rotary"] = rotary_options({"kind": "mixed", "order": "xy"})
        elif not metadata and (key := self._ambiguous(keys)):
            raise ValueError(
                f"models with {key} exist with and without rotary positions, which no array shows, and no "
                "metadata say which this is; give rotary, or a variant such as 'B/16' for DeiT III"
            )
        return implied

    def _ambiguous(self, keys):
        """The key of an array that also occurs in timm's models with rotary positions, or None."""
        suffixes = ("gamma_1", "attn.q_bias", "attn.q_proj.weight", "mlp.fc1_g.weight")
        names = ("attention_scale/gamma", "attention/query/bias", "attention/query/kernel", "mlp/gate/kernel")
        found = [keys.get(f"encoder_block_0/{name}", "") for name in names]
        if "encoder_block_0/attention/position_bias/table" in keys:  # BEiT
            return None
        if "pre_norm/gamma" in keys and not {"encoder_norm/gamma", "pooled_norm/gamma"} & keys.keys():
            return keys["pre_norm/gamma"]
        if {"class_token/token", "attention_pooling/probe"} <= keys.keys():
            return keys["attention_pooling/probe"]
        return next((key for key in found if key.endswith(suffixes)), None)

    def conflicts(self, config):
        conflicts = super().conflicts(config)
        if config["pooling"] == "map":
            if prefix_tokens(config):
                conflicts.append("pooling='map' with prefix tokens")
            if not config["qkv_bias"]:
                conflicts.append("qkv_bias=False with pooling='map'")
            if config["pre_norm"]:  # `read` refuses it because another family has these keys
                conflicts.append("pre_norm=True with pooling='map'")
        return conflicts

    def read_config(self, folder):
        return timm_config.read(folder)

    def write_config(self, config):
        return timm_config.written(config)

    def config_conflicts(self, config):
        return timm_config.conflicts(config)
