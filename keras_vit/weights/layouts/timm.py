"""The layout of timm (and of DeiT's own files): a torch state dict, query, key and value in one array.

Read are plain, distilled and register models, hybrids, those with LayerScale, a norm before the
blocks (CLIP), a norm after the pooling (`fc_norm`) or pooling by attention.
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


def _several(ours, names, theirs):
    return [
        row for i, n in enumerate(names) for row in torch_dense(f"{ours}/{n}", theirs, part=(i, len(names)))
    ]


def _mlp(ours, theirs):
    return [
        *torch_dense(f"{ours}/dense_0", f"{theirs}.fc1"),
        *torch_dense(f"{ours}/dense_1", f"{theirs}.fc2"),
    ]


_BLOCK, _UNIT = "blocks.{i}", "patch_embed.backbone.stages.{i}.blocks.{j}"
TABLE = Table(
    [
        Row("class_token/token", "cls_token"),
        Row("distillation_token/token", "dist_token"),
        Row("register_tokens/token", "reg_token"),
        Row("position_embedding/table", "pos_embed"),
        *torch_dense("patch_embedding", "patch_embed.proj", CONV),
        *torch_norm("pre_norm", "norm_pre"),
        *torch_norm("encoder_block_{i}/attention_norm", f"{_BLOCK}.norm1"),
        *_several("encoder_block_{i}/attention", ("query", "key", "value"), f"{_BLOCK}.attn.qkv"),
        *torch_dense("encoder_block_{i}/attention/out", f"{_BLOCK}.attn.proj"),
        Row("encoder_block_{i}/attention_scale/gamma", f"{_BLOCK}.ls1.gamma"),
        *torch_norm("encoder_block_{i}/mlp_norm", f"{_BLOCK}.norm2"),
        *_mlp("encoder_block_{i}/mlp", f"{_BLOCK}.mlp"),
        Row("encoder_block_{i}/mlp_scale/gamma", f"{_BLOCK}.ls2.gamma"),
        *torch_norm("encoder_norm", "norm"),
        Row("attention_pooling/probe", "attn_pool.latent"),
        *torch_dense("attention_pooling/attention/query", "attn_pool.q"),
        *_several("attention_pooling/attention", ("key", "value"), "attn_pool.kv"),
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
_ANCHORS = ("patch_embed.proj.weight",)
_PREFIXES = ("", "module.")
_RENAMED = (
    (re.compile(r"(blocks\.\d+)\.gamma_1"), r"\1.ls1.gamma"),  # DeiT III's own files
    (re.compile(r"(blocks\.\d+)\.gamma_2"), r"\1.ls2.gamma"),
    (re.compile(r"patch_embed\.backbone\.(conv|norm)\."), r"patch_embed.backbone.stem.\1."),  # no stages
)
# What no constructor argument stands for, by the key that shows it.
FOREIGN = (
    (re.compile(r".*\.(q_norm|k_norm)\..*"), "norms of query and key (qk-norm)"),
    (re.compile(r".*\.mlp\.(w1|w2|w3|w12|fc1_g|fc1_x)\..*"), "a gated MLP (SwiGLU)"),
    (re.compile(r".*rope.*"), "rotary positions (RoPE)"),
    (re.compile(r".*(rel_pos|relative_position).*"), "relative positions"),
    (re.compile(r"blocks\.\d+\.(attns|ffns|in_proj|mlp_out_proj|attn_out_proj)\..*"), "parallel blocks"),
    (re.compile(r".*\.attn\.(q_proj|q_bias|lambda_\w+)(\..*)?"), "another attention"),
    (re.compile(r"patch_embed\.backbone\.(bn1|conv1|\d+)\..*"), "another stem"),
)

SUFFIX = ".safetensors"
OPTIONS = ()
HEADS_APART = False
PREFIX_POSITIONS = None  # with or without, as the model has it
EXPRESSES = {
    "position_embedding": ("learned",),
    "representation_size": (None,),
}


def detect(keys):
    """Whether these are the keys of a timm state dict."""
    return find_prefix(keys, _ANCHORS, _PREFIXES) is not None


def implied(keys, told):
    """What the layout says of a model without storing it.

    The activation is left open for models with a norm before the blocks (CLIP) or pooling by
    attention (SigLIP), which timm has with several.
    """
    if keys.get("encoder_block_0/attention_scale/gamma", "").endswith("gamma_1") and not told:
        raise ValueError(
            f"{keys['encoder_block_0/attention_scale/gamma']} stands in DeiT III's own files and in timm's "
            "models with rotary positions, and nothing tells which this is; if it is DeiT III, give its "
            "variant, such as 'B/16'"
        )
    clip = "pre_norm/gamma" in keys
    known = {"norm_epsilon": 1e-5 if clip else 1e-6}
    if "conv_root/kernel" in keys:
        known["resnet_form"] = "timm"
    if not clip and "attention_pooling/probe" not in keys:
        known["activation"] = "gelu_erf"
    return known


def read(arrays):
    """Arrays by the file's keys as a `Reading`.

    Raises:
        ValueError: for a family that `VisionTransformer` cannot express; the message names the key.
    """
    prefix = find_prefix(arrays, _ANCHORS, _PREFIXES) or ""
    for key in arrays:
        for pattern, what in FOREIGN:
            if pattern.fullmatch(key.removeprefix(prefix)):
                raise ValueError(f"{key} is part of {what}, which VisionTransformer does not have")
        if key.endswith("norm1.weight") and key.replace(".weight", ".bias") not in arrays:
            raise ValueError(
                f"{key} has no bias beside it: a norm without one (RMSNorm), which VisionTransformer "
                "does not have, or a damaged file"
            )
    beside = [n for n in ("cls_token", "reg_token", "norm_pre.weight") if prefix + n in arrays]
    if prefix + "attn_pool.latent" in arrays and beside:
        raise ValueError(
            f"{prefix}attn_pool.latent beside {prefix}{beside[0]}: timm's probe leaves out prefix tokens or "
            "differs otherwise, which VisionTransformer cannot express"
        )
    return TABLE.read(arrays, lambda key: _today(without_prefix(key, prefix)))


def write(arrays, config):
    """Arrays by our names to arrays by the file's keys."""
    written = TABLE.write(arrays)
    if config["resnet"] == ():
        inside = "patch_embed.backbone."
        written = {key.replace(f"{inside}stem.", inside): array for key, array in written.items()}
    return written


def _today(key):
    for pattern, new in _RENAMED:
        key = pattern.sub(new, key)
    return key
