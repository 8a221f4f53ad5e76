"""The layout of timm and of DeiT's own files: a torch state dict with query, key and value in one array.

Supported are plain, distilled and register models, hybrids, and those with LayerScale, a norm before the
blocks (CLIP), a norm after the pooling (`fc_norm`) or attention pooling.
"""

import re

from keras_vit.models.config import prefix_tokens
from keras_vit.weights.layouts import timm_config
from keras_vit.weights.layouts.layout import ANY, COMMON, Layout
from keras_vit.weights.layouts.table import CONV, Row, Table, torch_dense, torch_norm


def _concatenated(ours, names, theirs):
    return [
        row for i, n in enumerate(names) for row in torch_dense(f"{ours}/{n}", theirs, part=(i, len(names)))
    ]


def _mlp(ours, theirs):
    return [
        *torch_dense(f"{ours}/dense_0", f"{theirs}.fc1"),
        *torch_dense(f"{ours}/dense_1", f"{theirs}.fc2"),
    ]


_BLOCK, _UNIT = "blocks.{i}", "patch_embed.backbone.stages.{i}.blocks.{j}"
_RENAMED = (
    (re.compile(r"(blocks\.\d+)\.gamma_1"), r"\1.ls1.gamma"),  # DeiT III's own files
    (re.compile(r"(blocks\.\d+)\.gamma_2"), r"\1.ls2.gamma"),
    (re.compile(r"patch_embed\.backbone\.(conv|norm)\."), r"patch_embed.backbone.stem.\1."),  # no stages
)
# Parts that `VisionTransformer` does not have, by the keys that show them.
FOREIGN = (
    (re.compile(r".*\.(q_norm|k_norm)\..*"), "norms of query and key (qk-norm)"),
    (re.compile(r".*\.mlp\.(w1|w2|w3|w12|fc1_g|fc1_x)\..*"), "a gated MLP (SwiGLU)"),
    (re.compile(r".*rope.*"), "rotary positions (RoPE)"),
    (re.compile(r".*(rel_pos|relative_position).*"), "relative positions"),
    (re.compile(r"blocks\.\d+\.(attns|ffns|in_proj|mlp_out_proj|attn_out_proj)\..*"), "parallel blocks"),
    (re.compile(r".*\.attn\.(q_proj|q_bias|lambda_\w+)(\..*)?"), "another attention"),
    (re.compile(r"patch_embed\.backbone\.(bn1|conv1|\d+)\..*"), "another stem"),
)


class Timm(Layout):
    name = "timm"
    config_files = (timm_config.CONFIG,)
    table = Table(
        [
            Row("class_token/token", "cls_token"),
            Row("distillation_token/token", "dist_token"),
            Row("register_tokens/token", "reg_token"),
            Row("position_embedding/table", "pos_embed"),
            *torch_dense("patch_embedding", "patch_embed.proj", CONV),
            *torch_norm("pre_norm", "norm_pre"),
            *torch_norm("encoder_block_{i}/attention_norm", f"{_BLOCK}.norm1"),
            *_concatenated("encoder_block_{i}/attention", ("query", "key", "value"), f"{_BLOCK}.attn.qkv"),
            *torch_dense("encoder_block_{i}/attention/out", f"{_BLOCK}.attn.proj"),
            Row("encoder_block_{i}/attention_scale/gamma", f"{_BLOCK}.ls1.gamma"),
            *torch_norm("encoder_block_{i}/mlp_norm", f"{_BLOCK}.norm2"),
            *_mlp("encoder_block_{i}/mlp", f"{_BLOCK}.mlp"),
            Row("encoder_block_{i}/mlp_scale/gamma", f"{_BLOCK}.ls2.gamma"),
            *torch_norm("encoder_norm", "norm"),
            Row("attention_pooling/probe", "attn_pool.latent"),
            *torch_dense("attention_pooling/attention/query", "attn_pool.q"),
            *_concatenated("attention_pooling/attention", ("key", "value"), "attn_pool.kv"),
            *torch_dense("attention_pooling/attention/out", "attn_pool.proj"),
            *torch_norm("attention_pooling/mlp_norm", "attn_pool.norm"),
            *_mlp("attention_pooling/mlp", "attn_pool.mlp"),
            *torch_norm("pooled_norm", "fc_norm"),
            *torch_dense("pre_logits", "pre_logits.fc"),  # in timm's files of before 2022
            *torch_dense("head", "head"),
            *torch_dense("head_distillation", "head_dist"),
            *torch_dense("conv_root", "patch_embed.backbone.stem.conv", CONV)[:1],
            *torch_norm("gn_root", "patch_embed.backbone.stem.norm"),
            *(
                row
                for n in (1, 2, 3)
                for row in (
                    *torch_dense(f"block{{i+1}}_unit{{j+1}}_conv{n}", f"{_UNIT}.conv{n}", CONV)[:1],
                    *torch_norm(f"block{{i+1}}_unit{{j+1}}_gn{n}", f"{_UNIT}.norm{n}"),
                )
            ),
            *torch_dense("block{i+1}_unit{j+1}_conv_proj", f"{_UNIT}.downsample.conv", CONV)[:1],
            *torch_norm("block{i+1}_unit{j+1}_gn_proj", f"{_UNIT}.downsample.norm"),
        ]
    )
    anchors = ("patch_embed.proj.weight",)
    prefixes = ("", "module.")
    old_names = _RENAMED
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
        """Map arrays to our names.

        Raises:
            ValueError: for a family that `VisionTransformer` cannot express; the message names the key.
        """
        prefix = self.prefix(arrays) or ""
        for key in arrays:
            for pattern, part in FOREIGN:
                if pattern.fullmatch(key.removeprefix(prefix)):
                    raise ValueError(f"{key} is part of {part}, which VisionTransformer does not have")
            if key.endswith("norm1.weight") and key.replace(".weight", ".bias") not in arrays:
                raise ValueError(
                    f"{key} has no bias: it is an RMSNorm, which VisionTransformer does not have, or the "
                    "file is damaged"
                )
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
            backbone = "patch_embed.backbone."
            written = {key.replace(f"{backbone}stem.", backbone): array for key, array in written.items()}
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
