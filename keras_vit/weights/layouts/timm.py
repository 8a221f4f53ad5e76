"""The layout of timm, DeiT, DINOv2 and ViT-5: a torch state dict with query, key and value in one array.

Supported are timm's classes `VisionTransformer`, with its distilled models and hybrids, `Eva`, `Beit` and,
for one image size, `NaFlexVit`. `Beit`, `NaFlexVit` and ViT-5 are only read.
"""

import re

import numpy as np

from keras_vit.layers.rotary import rotary_options
from keras_vit.tasks import timm_additions
from keras_vit.weights.layouts import timm_config
from keras_vit.weights.layouts.additions import merged
from keras_vit.weights.layouts.decoder import DECODER_BLOCK, DecoderForm
from keras_vit.weights.layouts.layout import ANY, COMMON, Layout, ModelForm, other_values, true_reasons
from keras_vit.weights.layouts.table import Table, add_first_position, fused_rows, patch_kernel, torch_rows
from keras_vit.weights.pretraining import IMAGE_TEXT, SELF_SUPERVISED

_MLP = {"mlp_norm": "norm", "mlp/dense_0": "mlp.fc1", "mlp/dense_1": "mlp.fc2"}
_PACKED = re.compile(r"(blocks\.\d+\.mlp)\.fc1\.")  # gate and up in one array
# Of ViT-5 and of BEiT's authors, which the options determine.
_COMPUTED = re.compile(r"(.*\.)?attn\.(rope(_reg)?\.freqs|relative_position_index)")
_DECODER = re.compile(r"decoder_.*|mask_token")  # of MAE's authors
# Of DINOv2's authors: the token of masked training, and registers, which have no positions.
_MASK_TOKEN, _REGISTERS = "mask_token", "register_tokens"
_EMBEDS = re.compile(r"embeds\.(proj|norm)\.")  # of NaFlexVit
_LAYERS = {
    "patch_embedding": "patch_embed.proj",
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
_QKV = ("query", "key", "value")
_PROJECTIONS = ("attention/query", "attention/key", "attention/value")
_OTHER_NAMES = {
    "attention_scale/gamma": "gamma_1",  # in DeiT III's own files, BEiT and EVA
    "mlp_scale/gamma": "gamma_2",
    "attention/query/bias": "attn.q_bias",  # in BEiT and EVA, whose keys have no bias
    "attention/value/bias": "attn.v_bias",
    **{name: f"attn.{name.partition('/')[2][0]}_proj" for name in _PROJECTIONS},
}
_POOLING = {"probe": "latent", "attention/query": "q", "attention/out": "proj", **_MLP}
_STEM, _UNIT = "patch_embed.backbone.", "patch_embed.backbone.stages.{i}.blocks.{j}."
_UNIT_LAYERS = {
    **{f"conv{n}": f"conv{n}" for n in (1, 2, 3)},
    **{f"gn{n}": f"norm{n}" for n in (1, 2, 3)},
    "conv_proj": "downsample.conv",
    "gn_proj": "downsample.norm",
}


# The decoder in files of facebookresearch/mae (`models_mae.py`), whose encoder has timm's names.
_MAE = DecoderForm(
    [
        *torch_rows(_BLOCK, DECODER_BLOCK, "decoder_blocks.{i}."),
        *fused_rows(f"{DECODER_BLOCK}attention/", _QKV, "decoder_blocks.{i}.attn.qkv"),
    ]
)


class Timm(Layout):
    name = library = "timm"
    forms = {
        "classifier": ModelForm(
            'import timm\n\nmodel = timm.create_model("hf_hub:{repository}", pretrained=True)'
        ),
        "masked_autoencoder": _MAE,
        **merged(timm_additions(), "forms"),
    }
    config_files = (timm_config.CONFIG,)
    table = Table(
        [
            *torch_rows(_LAYERS),
            *torch_rows(_BLOCK, "encoder_block_{i}/", "blocks.{i}."),
            *fused_rows("encoder_block_{i}/attention/", _QKV, "blocks.{i}.attn.qkv"),
            *torch_rows(_OTHER_NAMES, "encoder_block_{i}/", "blocks.{i}."),
            *fused_rows("encoder_block_{i}/mlp/", ("gate", "up"), "blocks.{i}.mlp.packed"),
            *torch_rows({"register_tokens/token": _REGISTERS}),
            *fused_rows("encoder_block_{i}/mlp/", ("gate", "up"), "blocks.{i}.mlp.w12"),
            *torch_rows({"mlp/dense_1": "mlp.w3"}, "encoder_block_{i}/", "blocks.{i}."),
            *torch_rows(_POOLING, "attention_pooling/", "attn_pool."),
            *fused_rows("attention_pooling/attention/", ("key", "value"), "attn_pool.kv"),
            *torch_rows({"conv_root": "stem.conv", "gn_root": "stem.norm"}, "", _STEM),
            *torch_rows({"conv_root": "conv", "gn_root": "norm"}, "", _STEM),  # without stages
            *torch_rows(_UNIT_LAYERS, "block{i+1}_unit{j+1}_", _UNIT),
            *(row for task in timm_additions() for row in task.rows),
        ]
    )
    anchors = ("patch_embed.proj.weight", "embeds.proj.weight")
    # The second is that of transformers' TimmWrapper.
    prefixes = ("", "timm_model.", *(prefix for task in timm_additions() for prefix in task.prefixes))
    without_prefix = re.compile("|".join(task.without_prefix for task in timm_additions()))
    left_out = re.compile("|".join(task.others for task in timm_additions()))
    prefix_positions = None
    supported = {
        **COMMON,
        "activation": (*COMMON["activation"], "silu"),
        "pooling": ("token", "gap", "map", None),
        "norm": ("layer", "rms"),
        "position_embedding": ("learned", "none"),
        **dict.fromkeys(("num_registers", "layer_scale", "resnet", "num_kv_heads"), ANY),
        **dict.fromkeys(("rotary", "pooling_heads", "pooling_mlp_dim"), ANY),
        **dict.fromkeys(("qkv_bias", "distillation", "pre_norm", "norm_after_pooling"), (True, False)),
        **dict.fromkeys(("key_bias", "linear_bias", "qk_norm", "gated_mlp", "scale_mlp"), (True, False)),
        **dict.fromkeys(("attention_sub_norm", "mlp_sub_norm", "post_norm", "final_norm"), (True, False)),
        "pool_prefix": (True, False),
    }

    def position_interpolation(self, keys):
        if "decoder_embed.weight" in keys:  # facebookresearch/mae
            return "bicubic"
        prefix = self.prefix(keys) or ""
        if prefix + _MASK_TOKEN in keys and prefix + _REGISTERS not in keys:  # facebookresearch/dinov2
            return "bicubic_offset"
        return "bicubic_antialias"

    def pretraining(self, keys):
        prefix = self.prefix(keys) or ""
        if prefix + _MASK_TOKEN in keys:  # facebookresearch/mae and dinov2
            return SELF_SUPERVISED
        is_siglip = prefix + "attn_pool.latent" in keys and prefix + "head.weight" not in keys
        return IMAGE_TEXT if is_siglip else None

    def skipped_keys(self, keys):
        skipped = _DECODER if "decoder_embed.weight" in keys else _COMPUTED
        mask_token = (self.prefix(keys) or "") + _MASK_TOKEN
        return [k for k in keys if k == mask_token or skipped.fullmatch(k) or self.left_out.fullmatch(k)]

    def read(self, arrays):
        prefix, options = self.prefix(arrays) or "", {}
        for task in timm_additions():
            arrays, shown = task.renamed(arrays)
            options |= shown
        names, grid = _names(arrays, prefix)
        mapped = super().read({name: array for name, (_, array) in names.items()})
        mapped = mapped.with_keys({name: key for name, (key, _) in names.items()})
        if prefix + _REGISTERS in arrays:
            add_first_position(mapped.arrays)
        return mapped._replace(options={**options, **({"position_grid": grid} if grid else {})})

    def write(self, arrays, config):
        if timm_config.is_eva(config):
            return Table([*_eva_rows(config), *self.table.rows]).write(arrays)
        written = super().write(arrays, config)
        if config["resnet"] == ():
            written = {key.replace(f"{_STEM}stem.", _STEM): array for key, array in written.items()}
        return written

    def implied(self, keys, metadata):
        # Models with a norm before the blocks (CLIP) or attention pooling (SigLIP) exist with several
        # activations, so that none is implied.
        clip, gated = "pre_norm/gamma" in keys, "encoder_block_0/mlp/gate/kernel" in keys
        implied = {"norm_epsilon": 1e-5 if clip or _has_1e_5(keys, metadata.get("rotary")) else 1e-6}
        if "conv_root/kernel" in keys:
            implied["resnet_form"] = "timm"
        if gated:
            implied["activation"] = "silu"
        elif not clip and "attention_pooling/probe" not in keys:
            implied["activation"] = "gelu_erf"
        if "rotary_positions/frequencies" in keys:
            implied["rotary"] = rotary_options({"kind": "mixed", "order": "xy"})
        # A variant says `num_layers`, and whether it has rotary positions.
        elif not {"rotary", "num_layers"} & metadata.keys() and (key := _of_rotary_models(keys)):
            raise ValueError(
                f"expected the option rotary (None for none), or a variant such as 'B/16' for DeiT III; got "
                f"none, and the file's {key} also occurs in models with rotary positions"
            )
        tokens = [name for name in ("class_token/token", "register_tokens/token") if name in keys]
        if "attention_pooling/probe" in keys and tokens and "pool_prefix" not in metadata:
            raise ValueError(
                f"no array shows whether {keys['attention_pooling/probe']} also attends to "
                f"{keys[tokens[0]]}, and no metadata say so; give pool_prefix=True or False"
            )
        return implied

    def unsupported(self, config):
        c, activation, gated = config, config["activation"], config["gated_mlp"]
        no_positions = c["position_embedding"] == "none" and not c["rotary"]
        reasons = {
            "qkv_bias=False with pooling='map'": c["pooling"] == "map" and not c["qkv_bias"],
            "position_embedding='none' without rotary": no_positions,
            f"activation={activation!r} with gated_mlp={gated}": (activation == "silu") != gated,
        }
        by_eva = _unsupported_by_eva(c) if timm_config.is_eva(c) else []
        return super().unsupported(c) + true_reasons(reasons) + by_eva

    read_config = staticmethod(timm_config.read)
    write_config = staticmethod(timm_config.written)
    unsupported_in_config = staticmethod(timm_config.unsupported)


def _has_1e_5(keys, rotary):
    """Whether norms have an epsilon of 1e-5, as those of AIMv2, BEiT-3 and DINOv3."""
    block = "encoder_block_0"
    aimv2 = "patch_norm/gamma" in keys
    beit3 = f"{block}/attention/output_norm/gamma" in keys and f"{block}/mlp/dense_0/kernel" in keys
    dinov3 = rotary and rotary_options(rotary)["kind"] == "dinov3" and f"{block}/attention_norm/beta" in keys
    return aimv2 or beit3 or dinov3


def _of_rotary_models(keys):
    """The key of an array that occurs in timm's models with rotary positions, too, or None."""
    suffixes = ("gamma_1", "attn.q_bias", "attn.q_proj.weight", "mlp.fc1_g.weight")
    names = ("attention_scale/gamma", "attention/query/bias", "attention/query/kernel", "mlp/gate/kernel")
    stored = [keys.get(f"encoder_block_0/{name}", "") for name in names]
    if "encoder_block_0/attention/position_bias/table" in keys:  # BEiT
        return None
    if "pre_norm/gamma" in keys and not {"encoder_norm/gamma", "pooled_norm/gamma"} & keys.keys():
        return keys["pre_norm/gamma"]
    if {"pre_norm/gamma", "attention_pooling/probe"} <= keys.keys():  # Perception Encoder
        return keys["attention_pooling/probe"]
    return next((key for key in stored if key.endswith(suffixes)), None)


def _names(arrays, prefix):
    """The arrays by the names in the table, each with its key, and the grid of the positions if it is stored.

    Packed gates get a name of their own, and NaFlexVit's arrays the names and shapes of VisionTransformer's.
    """
    first, last = (arrays.get(f"{prefix}blocks.0.mlp.{name}.weight") for name in ("fc1", "fc2"))
    shapes = [array.shape for array in (first, last) if array is not None and array.ndim == 2]
    packed = len(shapes) == 2 and shapes[0][0] == 2 * shapes[1][1]
    names = {}
    for key, array in arrays.items():
        name = _PACKED.sub(r"\1.packed.", key) if packed else key
        names[name] = key, array
    if f"{prefix}embeds.proj.weight" not in arrays:
        return names, None
    names = {
        _EMBEDS.sub(r"patch_embed.\1.", name).replace("embeds.", ""): value for name, value in names.items()
    }
    name = f"{prefix}patch_embed.proj.weight"
    names[name] = names[name][0], patch_kernel(*names[name])
    name = f"{prefix}pos_embed"
    rows, columns = names.pop(f"{name}_y", None), names.pop(f"{name}_x", None)
    if rows and columns and rows[1].ndim == columns[1].ndim == 3:
        names[name] = rows[0], rows[1][:, :, np.newaxis] + columns[1][:, np.newaxis]
    if name not in names or names[name][1].ndim != 4:
        return names, None
    key, table = names[name]
    names[name] = key, table.reshape(table.shape[0], -1, table.shape[-1])
    return names, tuple(map(int, table.shape[1:3]))


def _eva_rows(config):
    """Rows with the names that timm's `Eva` has for the arrays of a model."""
    names = {name: _OTHER_NAMES[name] for name in ("attention_scale/gamma", "mlp_scale/gamma")}
    if config["qkv_bias"] and not config["key_bias"]:
        names |= {name: _OTHER_NAMES[name] for name in ("attention/query/bias", "attention/value/bias")}
    elif config["num_kv_heads"] is not None:
        names |= {name: _OTHER_NAMES[name] for name in _PROJECTIONS}
    rows = torch_rows(names, "encoder_block_{i}/", "blocks.{i}.")
    if not config["mlp_sub_norm"]:
        rows += fused_rows("encoder_block_{i}/mlp/", ("gate", "up"), "blocks.{i}.mlp.fc1")
    return rows


def _unsupported_by_eva(config):
    """List the options that timm's `Eva` cannot express together."""
    c, with_map = config, config["pooling"] == "map"
    expected = {"resnet": None, "distillation": False, "representation_size": None, "linear_bias": True}
    expected |= {} if c["gated_mlp"] else {"activation": "gelu_erf"}
    expected |= {"rotate_registers": False} if c["rotary"] else {}
    expected |= {"pool_prefix": True} if with_map else {}
    reasons = {
        "gated_mlp=True with pooling='map'": c["gated_mlp"] and with_map,
        "key_bias=False with num_kv_heads": c["num_kv_heads"] is not None and not c["key_bias"],
        **{
            f"{name}={c[name]!r} with post_norm=True": c["post_norm"] and c[name]
            for name in ("qk_norm", "num_kv_heads", "layer_scale")
        },
    }
    values = {**c, **(c["rotary"] or {})}
    return other_values(values, expected, "{} with options of timm's Eva") + true_reasons(reasons)
