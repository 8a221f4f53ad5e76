"""The layout of timm and of DeiT's own files: a torch state dict with query, key and value in one array.

Supported are plain, distilled and register models, hybrids, and those with LayerScale, a norm before the
blocks (CLIP), a norm after the pooling (`fc_norm`) or attention pooling.
"""

from keras_vit.models.config import prefix_tokens
from keras_vit.weights.layouts import timm_config
from keras_vit.weights.layouts.layout import ANY, COMMON, Layout
from keras_vit.weights.layouts.table import CONV, Table, fused_rows, torch_rows

_MLP = {"mlp_norm": "norm", "mlp/dense_0": "mlp.fc1", "mlp/dense_1": "mlp.fc2"}
_LAYERS = {
    "class_token/token": "cls_token",
    "distillation_token/token": "dist_token",
    "register_tokens/token": "reg_token",
    "position_embedding/table": "pos_embed",
    "pre_norm": "norm_pre",
    "encoder_norm": "norm",
    "pooled_norm": "fc_norm",
    "pre_logits": "pre_logits.fc",  # in timm's files of before 2022
    "head": "head",
    "head_distillation": "head_dist",
}
_BLOCK = {
    "attention_norm": "norm1",
    "attention/out": "attn.proj",
    "attention_scale/gamma": "ls1.gamma",
    **_MLP,
    "mlp_norm": "norm2",
    "mlp_scale/gamma": "ls2.gamma",
}
_DEIT3 = {"attention_scale/gamma": "gamma_1", "mlp_scale/gamma": "gamma_2"}  # in DeiT III's own files
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
            *torch_rows(_DEIT3, "encoder_block_{i}/", "blocks.{i}."),
            *fused_rows("encoder_block_{i}/attention/", ("query", "key", "value"), "blocks.{i}.attn.qkv"),
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
        others = [n for n in ("cls_token", "reg_token", "norm_pre.weight") if prefix + n in arrays]
        if prefix + "attn_pool.latent" in arrays and others:
            raise ValueError(
                f"the file holds {prefix}attn_pool.latent and {prefix}{others[0]}: VisionTransformer cannot "
                "express such an attention pooling, which ignores prefix tokens or differs otherwise"
            )
        return super().read(arrays)

    def write(self, arrays, config):
        written = super().write(arrays, config)
        if config["resnet"] == ():
            written = {key.replace(f"{_STEM}stem.", _STEM): array for key, array in written.items()}
        return written

    def implied(self, keys, metadata):
        # Models with a norm before the blocks (CLIP) or attention pooling (SigLIP) exist with several
        # activations, so that none is implied.
        scale = keys.get("encoder_block_0/attention_scale/gamma", "")
        if scale.endswith("gamma_1") and not metadata:
            raise ValueError(
                f"{scale} occurs in DeiT III's own files and in timm's models with rotary positions, and no "
                "metadata say which this is; for DeiT III, give its variant, such as 'B/16'"
            )
        clip = "pre_norm/gamma" in keys
        implied = {"norm_epsilon": 1e-5 if clip else 1e-6}
        if "conv_root/kernel" in keys:
            implied["resnet_form"] = "timm"
        if not clip and "attention_pooling/probe" not in keys:
            implied["activation"] = "gelu_erf"
        return implied

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
