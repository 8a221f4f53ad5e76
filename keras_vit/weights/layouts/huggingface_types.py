"""The model types of transformers, one `ModelType` each: the names of layers and options.

An entry says how transformers names what `VisionTransformer` has, and which of its options the type can
express. `huggingface.py` reads and writes the arrays by it, `huggingface_config.py` the options.

Sources: the modules and configurations of transformers 5.23 in `models/` (`vit`, `deit`, `ijepa`, `vit_msn`,
`vit_mae`, `beit`, `dinov2`, `dinov2_with_registers`, `dinov3_vit`, `imagegpt`, `siglip`, `siglip2`, `clip`,
`owlvit`, `owlv2`), and `conversion_mapping.py`, by which it renames the arrays of a file;
`convert_dinov2_to_hf.py` for `images`.
"""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from keras_vit.layers.rotary import rotary_options
from keras_vit.models.vit.geometry import grid_shape, is_dynamic
from keras_vit.rules import integer, number
from keras_vit.weights.catalogue import NORMS
from keras_vit.weights.layouts import hub_config
from keras_vit.weights.layouts.hub_config import CONFIG
from keras_vit.weights.layouts.layout import ANY, COMMON, true_reasons, unsupported_options
from keras_vit.weights.layouts.table import (
    LINEAR,
    Row,
    Table,
    add_first_position,
    flat_patches,
    fused_rows,
    torch_rows,
)

IMAGENET = dict(zip(("image_mean", "image_std"), NORMS["imagenet"]))
# The defaults of transformers' image processors.
VIT_PROCESSOR = {
    **{"do_resize": True, "size": 224, "resample": 2, "do_center_crop": False, "crop_size": 224},
    **{"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True},
    **{"image_mean": (0.5, 0.5, 0.5), "image_std": (0.5, 0.5, 0.5)},
}
_BLOCK = "encoder_block_{i}/"
_MASK_TOKEN = r"(.*\.)?embeddings\.mask_token"  # of masked training
_MAE_DECODER = r"decoder\.(decoder_\w+\..*|decoder_pos_embed|mask_token)"
_CLASS_WEIGHTS = r"criterion\.empty_weight"
PACKED = "siglip2_vision_model"  # whose patches are packed
MASK_PROBABILITIES = "mask_probabilities"  # of all blocks with queries, in files of EoMT

USAGE = 'from transformers import {architecture}\n\nmodel = {architecture}.from_pretrained("{repository}")'


class ModelType(NamedTuple):
    """A model type of transformers.

    Attributes:
        name: Its `model_type`.
        model, classifier: Names of the classes without and with a head; None if there is none with one.
        prefix: What the keys of the model begin with in a file of the classifier.
        rows: Rows of the `Table`; files and memory may have different names.
        plain, gated: Further rows, of MLPs without and with a gate.
        mark: Pattern of a key that only files of this family have; None for the first family.
        anchor: A key that every file of this family has, if it is not among `HuggingFace.anchors`.
        others: Pattern of the keys of what files of this family hold besides the model, such as the decoder
            of `ViTMAEForPreTraining`, the text tower, and the numbers 0, 1, 2, ….
        options: dict from transformers' names of options to ours.
        defaults: The values of options that the arrays do not show, if config.json has none.
        read: dict from our options to functions of config.json.
        written: dict from transformers' names of further options to ours, or to functions of `get_config()`.
        supported: As in `Layout`; an option without an entry must have its default.
        combinations: Function of `get_config()` to a dict from reasons why the type cannot express it to
            whether they apply.
        processor: Name of the class of its image processor.
        images: What the authors' repositories have in preprocessor_config.json besides the defaults of this
            class, for a folder without that file; None if such a model has our default preprocessing.
        interpolation: How it resizes its position table to another grid, as `resize_position_grid`.
        before_classifier: What the names of layers begin with that the classifier ignores, such as a pooler.
        biases: Groups of layers, each of which may be without a bias.
        any_size: Whether the model accepts images of other sizes than config.json's.
        head: The entry of `get_config()` with the options of the head, such as "segmentation" of a segmenter
            or "words" of an open-vocabulary detector; None without a head.
        spare_norm: Whether files hold the last norm also of a model without one (`final_norm`).
        described: Function of config.json to the `ModelType`, this one or a variation, and the values of the
            Vision Transformer in it; None if these are its own.
        renamed: Function of a file's arrays and its keys, dicts by the keys of a model, to both as `rows`
            names them.
        after_reading: Function that changes the `MappedArrays` of a file.
        adapted: As in `Layout`.
        before_writing: Function of arrays and `get_config()` to the arrays that `rows` write.
        after_writing: Function of written arrays, the prefix of their keys and the hidden size to the arrays
            of the file.
        implied: Function of our names and the file's keys (a dict), and its metadata, to further options.
        unsupported_arrays, unsupported_in_config: Reasons, as in `Layout`.
    """

    name: str
    model: str
    classifier: str | None
    prefix: str
    rows: tuple
    plain: tuple
    gated: tuple = ()
    mark: str | None = None
    anchor: str | None = None
    others: str = "(?!)"
    options: dict = {}
    defaults: dict = {}
    read: dict = {}
    written: dict = {}
    supported: dict = {}
    combinations: Callable = lambda config: {}
    processor: str = "ViTImageProcessor"
    images: dict | None = None
    interpolation: str = "bicubic"
    before_classifier: tuple = ("pre_logits/", "attention_pooling/", "pooled_norm/")
    biases: tuple = ()
    any_size: bool = False
    head: str | None = None
    spare_norm: bool = False
    described: Callable | None = None
    renamed: Callable = lambda arrays, keys: (arrays, keys)
    after_reading: Callable = lambda mapped: None
    adapted: Callable = lambda arrays, config: (arrays, config)
    before_writing: Callable = lambda arrays, config: arrays
    after_writing: Callable = lambda written, prefix, hidden_size: written
    implied: Callable = lambda keys, metadata: {}
    unsupported_arrays: Callable = lambda arrays: []
    unsupported_in_config: Callable = lambda config: []

    @property
    def segments(self):
        """Whether it is a model for segmentation, an `ImageSegmenter`."""
        return self.head == "segmentation"

    def table(self, gated):
        """The `Table` of the arrays of a model whose MLPs have a gate, or not."""
        return Table((*self.rows, *(self.gated if gated else self.plain)))

    def unsupported(self, config):
        """Two lists of reasons why the type cannot express a model with this `get_config()`.

        The first names options, the second combinations of their values.
        """
        return unsupported_options(config, self.supported), true_reasons(self.combinations(config))


# Rows ----------------------------------------------------------------------------------------------

_PATCHES = {"patch_embedding": "embeddings.patch_embeddings.projection"}
_TOKENS = {
    "class_token/token": "embeddings.cls_token",
    "distillation_token/token": "embeddings.distillation_token",
    "position_embedding/table": "embeddings.position_embeddings",
}
_SEPARATE = {f"attention/{name}": f"attention.attention.{name}" for name in ("query", "key", "value")}
_SEPARATE["attention/out"] = "attention.output.dense"
_PROJECTIONS = {f"attention/{name}": f"attention.{name[0]}_proj" for name in ("query", "key", "value", "out")}
_VIT_NORMS = {"attention_norm": "layernorm_before", "mlp_norm": "layernorm_after"}
_MLP = {"mlp/dense_0": "mlp.fc1", "mlp/dense_1": "mlp.fc2"}
VIT_BLOCK = {
    **{**_VIT_NORMS, **_SEPARATE},
    **{"mlp/dense_0": "intermediate.dense", "mlp/dense_1": "output.dense"},
}
# As transformers 5 names them in memory, and in a saved state dict.
VIT_BLOCK_IN_MEMORY = {**_VIT_NORMS, **_PROJECTIONS, **_MLP}
_VIT_ROWS = (
    *torch_rows({**_TOKENS, **_PATCHES, "encoder_norm": "layernorm"}),
    *torch_rows({"pre_logits": "pooler.dense", "head": "classifier"}),
    *torch_rows({"head_distillation": "distillation_classifier"}),
    *torch_rows({"head": "cls_classifier"}),  # of a distilled DeiT
    *torch_rows(VIT_BLOCK, _BLOCK, "encoder.layer.{i}."),
    *torch_rows(VIT_BLOCK_IN_MEMORY, _BLOCK, "layers.{i}."),
)

_BEIT_SCALES = {"attention_scale/gamma": "lambda_1", "mlp_scale/gamma": "lambda_2"}
_BIAS, _BIAS_TABLE = "attention/position_bias/table", "relative_position_bias.relative_position_bias_table"
_BEIT_BLOCK = {**VIT_BLOCK, **_BEIT_SCALES, _BIAS: f"attention.attention.{_BIAS_TABLE}"}
_BEIT_ROWS = (
    *torch_rows({**_TOKENS, **_PATCHES, "encoder_norm": "layernorm", "pooled_norm": "pooler.layernorm"}),
    *torch_rows({"head": "classifier"}),
    *torch_rows(_BEIT_BLOCK, _BLOCK, "encoder.layer.{i}."),
    *torch_rows({**VIT_BLOCK_IN_MEMORY, **_BEIT_SCALES, _BIAS: _BIAS_TABLE}, _BLOCK, "layers.{i}."),
)

_DINO = {
    "attention_norm": "norm1",
    "attention_scale/gamma": "layer_scale1.lambda1",
    "mlp_norm": "norm2",
    "mlp_scale/gamma": "layer_scale2.lambda1",
}
_UNGATED = {"mlp/dense_0": "mlp.up_proj", "mlp/dense_1": "mlp.down_proj"}
_GATED = {"mlp/gate": "mlp.gate_proj", "mlp/up": "mlp.up_proj", "mlp/dense_1": "mlp.down_proj"}
_REGISTERS = {"register_tokens/token": "embeddings.register_tokens"}
_DINOV2_ROWS = (
    *torch_rows({**_TOKENS, **_REGISTERS, **_PATCHES, "encoder_norm": "layernorm", "head": "classifier"}),
    *torch_rows({**_DINO, **_SEPARATE}, _BLOCK, "encoder.layer.{i}."),
    *torch_rows(_PROJECTIONS, _BLOCK, "encoder.layer.{i}."),
)


def _dinov3_block(names):
    """Rows of a block's layers, as named in files and in memory."""
    return tuple(
        row for block in ("layer.{i}.", "model.layer.{i}.") for row in torch_rows(names, _BLOCK, block)
    )


_DINOV3_ROWS = (
    *torch_rows({"class_token/token": "embeddings.cls_token", **_REGISTERS, "encoder_norm": "norm"}),
    *torch_rows({"patch_embedding": "embeddings.patch_embeddings"}),
    *_dinov3_block({**_DINO, **_PROJECTIONS}),
)

_EOMT_SHARED = (  # of both types: the head, the tokens and the norm
    Row("queries/token", "query.weight", leading=1),
    Row(MASK_PROBABILITIES, "attn_mask_probs"),
    *torch_rows({f"mask_dense_{i}": f"mask_head.fc{i + 1}" for i in range(3)}),
    *torch_rows({"class_head": "class_predictor"}),
    *torch_rows({"transposed": "conv1", "norm": "layernorm2d"}, "upscale_{i}/", "upscale_block.block.{i}."),
    Row("upscale_{i}/depthwise/kernel", "upscale_block.block.{i}.conv2.weight", (2, 3, 0, 1)),
    *torch_rows({"class_token/token": "embeddings.cls_token", **_REGISTERS, "encoder_norm": "layernorm"}),
)
_EOMT_ROWS = (
    *torch_rows(_PATCHES),
    Row("position_embedding/table", "embeddings.position_embeddings.weight", leading=1),
    *torch_rows({**_DINO, **_PROJECTIONS, "attention/out": "attention.out_proj"}, _BLOCK, "layers.{i}."),
    *_EOMT_SHARED,
)
_EOMT_DINOV3_ROWS = (
    *torch_rows({"patch_embedding": "embeddings.patch_embeddings"}),
    *torch_rows({**_DINO, **_PROJECTIONS}, _BLOCK, "layers.{i}."),
    *_EOMT_SHARED,
)

# As `huggingface.py` presents the arrays of an ImageGPT.
_IMAGE_GPT_ROWS = (
    Row("patch_embedding/table", "wte.weight"),
    Row("start_token/token", "start.weight", leading=1),
    Row("position_embedding/table", "wpe.weight", leading=1),
    *torch_rows({"encoder_norm": "ln_f", "prediction": "lm_head"}),
    *torch_rows({"attention_norm": "ln_1", "mlp_norm": "ln_2"}, _BLOCK, "h.{i}."),
    *fused_rows(f"{_BLOCK}attention/", ("query", "key", "value"), "h.{i}.attn.c_attn"),
    *torch_rows({"attention/out": "attn.c_proj"}, _BLOCK, "h.{i}."),
    *torch_rows({"mlp/dense_0": "mlp.c_fc", "mlp/dense_1": "mlp.c_proj"}, _BLOCK, "h.{i}."),
)

TOWER_BLOCK = {
    "attention_norm": "layer_norm1",
    **{f"attention/{name}": f"self_attn.{name[0]}_proj" for name in ("query", "key", "value")},
    "attention/out": "self_attn.out_proj",
    "mlp_norm": "layer_norm2",
    **_MLP,
}
_TOWER_ROWS = (
    *torch_rows({"patch_embedding": "embeddings.patch_embedding"}),
    Row("position_embedding/table", "embeddings.position_embedding.weight", leading=1),
    *torch_rows(TOWER_BLOCK, _BLOCK, "encoder.layers.{i}."),
)
_PROBE = {"probe": "probe", "attention/out": "attention.out_proj", "mlp_norm": "layernorm", **_MLP}
_IN_PROJECTION = {"kernel": "_weight", "bias": "_bias"}
_SIGLIP_ROWS = (
    *_TOWER_ROWS,
    *torch_rows({"encoder_norm": "post_layernorm", "head": "classifier"}),
    *torch_rows(_PROBE, "attention_pooling/", "head."),
    *fused_rows(
        "attention_pooling/attention/", ("query", "key", "value"), "head.attention.in_proj", _IN_PROJECTION
    ),
)
_CLASS_EMBEDDING = Row("class_token/token", "embeddings.class_embedding", leading=2)
_CLIP_ROWS = (
    *_TOWER_ROWS,
    _CLASS_EMBEDDING,
    *torch_rows({"pre_norm": "pre_layrnorm", "pooled_norm": "post_layernorm"}),
    *torch_rows({"head": "visual_projection"}),
    *torch_rows({"head": "classifier"}),
)


def text_rows(prefix=""):
    """Rows of a text tower whose keys begin with a prefix."""
    model = f"{prefix}text_model."
    return (
        Row("text/token_embedding/table", f"{model}embeddings.token_embedding.weight"),
        Row("text/position_embedding/table", f"{model}embeddings.position_embedding.weight", leading=1),
        *torch_rows(TOWER_BLOCK, "text/encoder_block_{i}/", f"{model}encoder.layers.{{i}}."),
        *torch_rows({"text/encoder_norm": f"{model}final_layer_norm"}),
    )


def _owl_rows(prefix):
    tower = (
        *_TOWER_ROWS,
        _CLASS_EMBEDDING,
        *torch_rows({"pre_norm": "pre_layernorm", "encoder_norm": "post_layernorm"}),
    )
    heads = {
        "merge_norm": "layer_norm",
        "class_projection": "class_head.dense0",
        "class_shift": "class_head.logit_shift",
        "class_scale": "class_head.logit_scale",
        **{f"box_head/dense_{i}": f"box_head.dense{i}" for i in range(3)},
        **{f"objectness_head/dense_{i}": f"objectness_head.dense{i}" for i in range(3)},
    }
    return (
        *(row._replace(theirs=f"{prefix}vision_model.{row.theirs}") for row in tower),
        *text_rows(prefix),
        Row("text_projection/kernel", f"{prefix}text_projection.weight", LINEAR),
        *torch_rows(heads),
    )


# Options -------------------------------------------------------------------------------------------

_SIZES = {
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_channels": "in_channels",
    "layer_norm_eps": "norm_epsilon",
    "image_size": "image_size",
    "patch_size": "patch_size",
}
_OPTIONS = {**_SIZES, "intermediate_size": "mlp_dim"}
_DEFAULTS = {"num_attention_heads": 12, "layer_norm_eps": 1e-12, "hidden_act": "gelu"}
_DROPOUT = {"hidden_dropout_prob": "dropout_rate", "attention_probs_dropout_prob": "attention_dropout_rate"}
_SCALES = {"layerscale_value": "layer_scale", "drop_path_rate": "stochastic_depth_rate"}
_POOLER = {"pooler_act": lambda c: "tanh", "pooler_output_size": "hidden_size"}
_ACTIVATION = {"activation": lambda model: hub_config.activation(model["hidden_act"])}
_BIASED = {**COMMON, "class_token": (True,)}
_BASE = {**_BIASED, "qkv_bias": (True, False)}
_GATES = {"gated_mlp": (True, False), "activation": (*COMMON["activation"], "silu"), "layer_scale": ANY}


def squares_only(config):
    """Whether the grid is not a square, which transformers' tables of these types are."""
    grid = config["position_grid"]
    if grid is None and not is_dynamic(config["image_size"]):
        grid = grid_shape(config["image_size"], config["patch_size"], None)
    return {f"a grid of {grid and f'{grid[0]}×{grid[1]}'} (supported: squares)": grid and grid[0] != grid[1]}


def _of_vit(config):
    has_head, size = bool(config["num_classes"]), config["representation_size"]
    return {
        f"representation_size={size} (supported: hidden_size)": size not in (None, config["hidden_size"]),
        "representation_size with a head": size and has_head,
    }


def _of_deit(config):
    return {
        **_of_vit(config),
        "distillation without a head": config["distillation"] and not config["num_classes"],
        "num_registers with distillation": config["num_registers"] and config["distillation"],
    }


def _dinov2_mlp_dim(hidden_size, ratio, gated):
    """Size of the hidden layer. With a gate two thirds of it remain, rounded up to a multiple of 8."""
    size = int(hidden_size * ratio)
    return (int(size * 2 / 3) + 7) // 8 * 8 if gated else size


def _read_dinov2_mlp_dim(model):
    integer(at_least=1).check(f"{CONFIG}: hidden_size", model["hidden_size"])
    number(above=0).check(f"{CONFIG}: mlp_ratio", model["mlp_ratio"])
    return _dinov2_mlp_dim(model["hidden_size"], model["mlp_ratio"], model["use_swiglu_ffn"])


def _dinov2_ratio(config):
    """The `mlp_ratio`, which transformers restricts to ints, or None."""
    sizes = (config["hidden_size"], config["mlp_dim"])
    for ratio in range(1, 2 + 2 * sizes[1] // sizes[0]):
        if _dinov2_mlp_dim(sizes[0], ratio, config["gated_mlp"]) == sizes[1]:
            return ratio
    return None


def _of_dinov2(config):
    pooling, has_head = config["pooling"], bool(config["num_classes"])
    gated, activation = config["gated_mlp"], config["activation"]
    return {
        **squares_only(config),
        "layer_scale=None": config["layer_scale"] is None,
        f"mlp_dim={config['mlp_dim']}": bool(config["num_layers"]) and _dinov2_ratio(config) is None,
        f"activation={activation!r} with a gate (supported: 'silu')": gated and activation != "silu",
        f"pooling={pooling!r} with a head (supported: 'token_gap')": has_head and pooling == "token",
        f"pooling={pooling!r} without a head (supported: 'token')": not has_head and pooling == "token_gap",
    }


def _of_beit(config):
    pooling, norm = config["pooling"], config["norm_after_pooling"]
    return {
        "num_registers": bool(config["num_registers"]),
        f"pooling={pooling!r} with norm_after_pooling={norm}": (pooling == "gap") != norm,
    }


def _of_dinov2_with_registers(config):
    return {**_of_dinov2(config), "num_registers=0": not config["num_registers"]}


def _of_dinov3(config):
    rotary = config["rotary"]
    options = rotary and {**rotary, "base": None}
    expected = {**rotary_options("dinov3"), "base": None}
    return {
        f"rotary={rotary!r} (supported: kind 'dinov3')": options != expected,
        "layer_scale=None": config["layer_scale"] is None,
        "a head": bool(config["num_classes"]),
    }


def _of_eomt(config):
    return {**_of_dinov2(config), **({} if config["gated_mlp"] else _other_activation(config))}


def _of_eomt_dinov3(config):
    return {**_of_dinov3(config), **_other_activation(config)}


def _other_activation(config):
    activation = config["segmentation"]["activation"]
    return {f"head_activation={activation!r} (supported: the encoder's)": activation != config["activation"]}


def _read_eomt_rotary(model):
    base = (model["rope_parameters"] or {}).get("rope_theta", model["rope_theta"])
    return rotary_options({"kind": "dinov3", "base": base})


def _of_siglip(config):
    heads, size = config["pooling_heads"], config["pooling_mlp_dim"]
    return {
        **squares_only(config),
        "a head": bool(config["num_classes"]),
        f"pooling_heads={heads} (supported: num_heads)": heads not in (None, config["num_heads"]),
        f"pooling_mlp_dim={size} (supported: mlp_dim)": size not in (None, config["mlp_dim"]),
    }


def _of_siglip2(config):
    return {**_of_siglip(config), "max_num_patches=None": config.get("max_num_patches") is None}


def _read_naflex_size(model):
    """The side of the square image whose patches have the stored positions."""
    for name in ("num_patches", "patch_size"):
        integer(at_least=1).check(f"{CONFIG}: {name}", model[name])
    return math.isqrt(model["num_patches"]) * model["patch_size"]


def _of_clip(config):
    return {
        **squares_only(config),
        "pre_norm=False": not config["pre_norm"],
        "class_names (a projection's outputs have no names)": config["class_names"] is not None,
    }


_IMAGE_GPT_SWITCHES = {  # with the only value that our blocks can express
    **{"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    "tie_word_embeddings": False,
}


def _read_image_gpt_causal(model):
    for name, expected in _IMAGE_GPT_SWITCHES.items():
        if model[name] != expected:
            raise ValueError(f"{CONFIG}: {name} must be {expected}; got {model[name]!r}")
    return True


def _read_image_gpt_mlp_dim(model):
    integer(at_least=1).check(f"{CONFIG}: n_embd", model["n_embd"])
    return model["n_inner"] or 4 * model["n_embd"]


def _of_owl(config, objectness):
    stored = config["words"]["objectness"]
    return {
        **squares_only(config),
        "pre_norm=False": not config["pre_norm"],
        f"objectness={stored}": stored != objectness,
    }


def _of_image_gpt(config):
    return {
        "palette=None": config.get("palette") is None,
        "causal=False": not config.get("causal"),
        f"norm={config['norm']!r} (supported: 'rms')": config["norm"] != "rms",
        "final_norm=False": not config["final_norm"],
        "no logits of colors (give the whole ImageGPT)": "clusters" not in config,
        **squares_only(config),
    }


# What only some types do -----------------------------------------------------------------------------


def _implied_of_vit(keys, metadata):
    """Without a class token it is an I-JEPA, whose epsilon has two values."""
    if "class_token/token" in keys:
        return {}
    if "pre_logits/kernel" in keys:
        raise ValueError(f"{keys['pre_logits/kernel']} would read the first patch, not the pooled vector")
    if "norm_epsilon" not in metadata:
        raise ValueError("without a class token the epsilon is unknown; put the config.json next to the file")
    return {}


def _before_writing_deit(arrays, config):
    """A register becomes the distillation token without a head."""
    if "register_tokens/token" in arrays:
        arrays["distillation_token/token"] = arrays.pop("register_tokens/token")
    return arrays


def _after_reading_registers(mapped):
    """The class token is the only prefix token with a position; a file without registers is a DINOv2."""
    if "register_tokens/token" in mapped.arrays:
        add_first_position(mapped.arrays)


def _of_beit_positions(absolute):
    """How absolute positions, as of DiT, and relative ones are resized."""
    return "bicubic" if absolute else "bilinear_half_pixel"


def _implied_of_beit(keys, metadata):
    absolute = keys.get("position_embedding/table")
    if absolute and (relative := keys.get("encoder_block_0/attention/position_bias/table")):
        raise ValueError(f"expected absolute or relative positions; got both, {absolute} and {relative}")
    return {"position_interpolation": _of_beit_positions(absolute)}


def _implied_prefix(keys, metadata):
    """The table has no rows for prefix tokens."""
    return {"prefix_positions": False}


def _with_mask_token(written, prefix, hidden_size, axes=(1,)):
    """Write the mask token, which transformers' modules have even if nothing is masked."""
    return written | {f"{prefix}embeddings.mask_token": np.zeros((*axes, hidden_size), "float32")}


def _adapted_dinov2_with_registers(arrays, config):
    """Add to each register its position, which the table has after the class token's."""
    table, last = arrays["position_embedding/table"], 1 + config["num_registers"]
    arrays["register_tokens/token"] = arrays["register_tokens/token"] + table[:, 1:last]
    arrays["position_embedding/table"] = np.concatenate([table[:, :1], table[:, last:]], axis=1)
    return arrays, {**config, "prefix_positions": False}


def _before_writing_registers(arrays, config):
    """Files hold the registers also if there are none."""
    return {"register_tokens/token": np.zeros((1, 0, config["hidden_size"]), "float32"), **arrays}


def _adapted_clip(arrays, config):
    """The same outputs; of the last tokens transformers normalizes only the pooled one."""
    if config["norm_after_pooling"]:
        return arrays, config
    for leaf in ("gamma", "beta"):
        arrays[f"pooled_norm/{leaf}"] = arrays.pop(f"encoder_norm/{leaf}")
    return arrays, {**config, "norm_after_pooling": True}


def _before_writing_clip(arrays, config):
    """Its head, a projection, has no bias."""
    return {name: array for name, array in arrays.items() if name != "head/bias"}


def _implied_of_clip(keys, metadata):
    """It exists with several activations."""
    pooling = "gap" if keys.get("head/kernel", "").startswith("classifier") else "token"
    return {"pooling": pooling, "activation": None}  # None: it is not implied


def _after_writing_packed(written, prefix, hidden_size):
    key = f"{prefix}embeddings.patch_embedding.weight"
    return written | {key: flat_patches(written[key])}


_CONV1D = re.compile(r"(transformer\.)?h\.\d+\.(attn|mlp)\.c_\w+\.weight")
_EMBEDDINGS, _START = "wte.weight", "start.weight"


def _renamed_image_gpt(arrays, keys):
    """Its layers are convolutions of one position, whose kernels are (in, out).

    The last row of its embeddings is the start token.
    """
    arrays = {name: array.T if _CONV1D.fullmatch(name) else array for name, array in arrays.items()}
    for name in [name for name in arrays if name.endswith(_EMBEDDINGS) and arrays[name].ndim == 2]:
        start = name.removesuffix(_EMBEDDINGS) + _START
        arrays[start], arrays[name] = arrays[name][-1:], arrays[name][:-1]
        keys = {**keys, start: keys[name]}
    return arrays, keys


def _after_writing_image_gpt(written, prefix, hidden_size):
    """The reverse of `_renamed_image_gpt`."""
    written = {
        key: np.ascontiguousarray(array.T) if _CONV1D.fullmatch(key) else array
        for key, array in written.items()
    }
    start, table = written.pop(prefix + _START), written[prefix + _EMBEDDINGS]
    return {**written, prefix + _EMBEDDINGS: np.concatenate([table, start])}


VIT = ModelType(
    "vit",
    "ViTModel",
    "ViTForImageClassification",
    "vit.",
    _VIT_ROWS,
    (),
    options={**_OPTIONS, "qkv_bias": "qkv_bias"},
    defaults=_DEFAULTS,
    read=_ACTIVATION,
    written={**_DROPOUT, **_POOLER},
    supported={**_BASE, "representation_size": ANY},
    combinations=_of_vit,
    others=_MAE_DECODER,
    implied=_implied_of_vit,
)
_BEIT = ModelType(
    "beit",
    "BeitModel",
    "BeitForImageClassification",
    "beit.",
    _BEIT_ROWS,
    (),
    mark=r"(.*\.)?(encoder\.layer|layers)\.0\.(lambda_1|.*relative_position_bias_table)",
    others=rf".*\.relative_position_index|{_MASK_TOKEN}",
    options=_OPTIONS,
    defaults={**_DEFAULTS, "use_mean_pooling": True, "use_absolute_position_embeddings": False},
    read={
        **_ACTIVATION,
        "pooling": lambda model: "gap" if model["use_mean_pooling"] else "token",
        "position_interpolation": lambda m: _of_beit_positions(m["use_absolute_position_embeddings"]),
    },
    implied=_implied_of_beit,
    written={
        **_DROPOUT,
        "use_relative_position_bias": "relative_positions",
        "use_mean_pooling": lambda c: c["pooling"] == "gap",
        "layer_scale_init_value": lambda c: c["layer_scale"] or 0.0,
        "drop_path_rate": "stochastic_depth_rate",
    },
    supported={
        **{**_BIASED, "key_bias": (False,), "relative_positions": (True,), "position_embedding": ("none",)},
        **{"layer_scale": ANY, "pooling": ("token", "gap"), "norm_after_pooling": (True, False)},
    },
    combinations=_of_beit,
    processor="BeitImageProcessor",
    images={},
    interpolation=_of_beit_positions(absolute=False),
    before_classifier=(),
)
DINOV2 = ModelType(
    "dinov2",
    "Dinov2Model",
    "Dinov2ForImageClassification",
    "dinov2.",
    _DINOV2_ROWS,
    tuple(torch_rows(_MLP, _BLOCK, "encoder.layer.{i}.")),
    (
        *fused_rows(f"{_BLOCK}mlp/", ("gate", "up"), "encoder.layer.{i}.mlp.weights_in"),
        *torch_rows({"mlp/dense_1": "mlp.weights_out"}, _BLOCK, "encoder.layer.{i}."),
        *torch_rows(_GATED, _BLOCK, "encoder.layer.{i}."),
    ),
    mark=r"(.*\.)?encoder\.layer\.0\.norm1\.weight",
    others=_MASK_TOKEN,
    options={**_SIZES, "qkv_bias": "qkv_bias", "use_swiglu_ffn": "gated_mlp"},
    defaults={
        **{**_DEFAULTS, "layer_norm_eps": 1e-6},
        **{"use_swiglu_ffn": False, "mlp_ratio": 4, "hidden_size": 768},
    },
    read={
        "activation": lambda m: "silu" if m["use_swiglu_ffn"] else hub_config.activation(m["hidden_act"]),
        "mlp_dim": _read_dinov2_mlp_dim,
    },
    written={**_DROPOUT, **_SCALES, "mlp_ratio": _dinov2_ratio},
    supported={**_BASE, **_GATES, "pooling": ("token", "token_gap")},
    combinations=_of_dinov2,
    processor="BitImageProcessor",
    images={"size": {"shortest_edge": 256}, **IMAGENET},
    any_size=True,
)
_DINOV3 = ModelType(
    "dinov3_vit",
    "DINOv3ViTModel",
    None,
    "",
    _DINOV3_ROWS,
    _dinov3_block(_UNGATED),
    _dinov3_block(_GATED),
    mark=r"(.*\.)?embeddings\.patch_embeddings\.weight",
    others=_MASK_TOKEN,
    options={**_OPTIONS, "use_gated_mlp": "gated_mlp", "num_register_tokens": "num_registers"},
    defaults={
        **{"num_attention_heads": 6, "layer_norm_eps": 1e-5, "hidden_act": "gelu"},
        **{"image_size": 224, "rope_theta": 100.0},
        **{"use_gated_mlp": False, "num_register_tokens": 0},
    },
    read={**_ACTIVATION, "rotary": lambda m: rotary_options({"kind": "dinov3", "base": m["rope_theta"]})},
    written={
        "rope_theta": lambda c: c["rotary"]["base"],
        **dict.fromkeys(("query_bias", "value_bias"), "qkv_bias"),
        "key_bias": lambda c: c["qkv_bias"] and c["key_bias"],
        **dict.fromkeys(("proj_bias", "mlp_bias"), "linear_bias"),
        **_SCALES,
        "pos_embed_rescale": "max_rotary_rescale",
        "attention_dropout": "attention_dropout_rate",
    },
    supported={
        **{**_BASE, **_GATES, "position_embedding": ("none",), "rotary": ANY, "num_registers": ANY},
        **{"key_bias": (True, False), "linear_bias": (True, False)},
    },
    combinations=_of_dinov3,
    processor="DINOv3ViTImageProcessor",
    images={},
    biases=(
        ("attention/query", "attention/value"),
        ("attention/out", "mlp/gate", "mlp/up", "mlp/dense_0", "mlp/dense_1"),
    ),
    any_size=True,
    before_writing=_before_writing_registers,
)
# The head's options in config.json; its arrays show them.
_EOMT_WRITTEN = {
    "num_queries": lambda c: c["segmentation"]["num_queries"],
    "num_blocks": lambda c: c["segmentation"]["query_blocks"],
    "num_upscale_blocks": lambda c: c["segmentation"]["upscale_blocks"],
    "attention_dropout": "attention_dropout_rate",
}
_EOMT = DINOV2._replace(
    name="eomt",
    model="EomtForUniversalSegmentation",
    classifier="EomtForUniversalSegmentation",
    prefix="",
    rows=_EOMT_ROWS,
    plain=tuple(torch_rows(_MLP, _BLOCK, "layers.{i}.")),
    gated=tuple(torch_rows(_GATED, _BLOCK, "layers.{i}.")),
    mark=r"embeddings\.position_embeddings\.weight",
    others=_CLASS_WEIGHTS,
    options={**_SIZES, "use_swiglu_ffn": "gated_mlp", "num_register_tokens": "num_registers"},
    defaults={
        **{**DINOV2.defaults, "num_attention_heads": 16, "hidden_size": 1024},
        **{"num_register_tokens": 4, "image_size": 640},
    },
    written={**DINOV2.written, **_EOMT_WRITTEN},
    combinations=_of_eomt,
    supported={**COMMON, **_GATES, "class_token": (True,), "pooling": ("token", "gap"), "num_registers": ANY},
    processor="EomtImageProcessor",
    images={},
    interpolation="bicubic_antialias",  # of timm's encoder, which the authors' code has
    head="segmentation",
    before_writing=_before_writing_registers,
    implied=_implied_prefix,
)
_EOMT_DINOV3 = _DINOV3._replace(
    name="eomt_dinov3",
    model="EomtDinov3ForUniversalSegmentation",
    classifier="EomtDinov3ForUniversalSegmentation",
    rows=_EOMT_DINOV3_ROWS,
    plain=tuple(torch_rows(_UNGATED, _BLOCK, "layers.{i}.")),
    gated=tuple(torch_rows(_GATED, _BLOCK, "layers.{i}.")),
    mark=r"class_predictor\.weight",
    others=_CLASS_WEIGHTS,
    defaults={
        **{**_DINOV3.defaults, "num_attention_heads": 16, "layer_norm_eps": 1e-6, "image_size": 640},
        **{"num_register_tokens": 4, "rope_parameters": None},
    },
    read={**_ACTIVATION, "rotary": _read_eomt_rotary},
    written={
        **{name: ours for name, ours in _DINOV3.written.items() if name != "rope_theta"},
        **_EOMT_WRITTEN,
        "rope_parameters": lambda c: {"rope_type": "default", "rope_theta": c["rotary"]["base"]},
    },
    supported={**_DINOV3.supported, "pooling": ("token", "gap")},
    combinations=_of_eomt_dinov3,
    processor="EomtImageProcessor",
    head="segmentation",
    implied=_implied_prefix,
)
_IMAGE_GPT = ModelType(
    "imagegpt",
    "ImageGPTForCausalImageModeling",
    None,
    "transformer.",
    _IMAGE_GPT_ROWS,
    (),
    mark=r"(.*\.)?wte\.weight",
    others=r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",
    options={
        **{"n_embd": "hidden_size", "n_layer": "num_layers", "n_head": "num_heads"},
        "layer_norm_epsilon": "norm_epsilon",
    },
    defaults={
        **{"n_embd": 512, "n_layer": 24, "n_head": 8, "n_inner": None, "layer_norm_epsilon": 1e-5},
        **{"activation_function": "quick_gelu", **_IMAGE_GPT_SWITCHES},
    },
    read={
        "activation": lambda model: hub_config.activation(model["activation_function"]),
        "mlp_dim": _read_image_gpt_mlp_dim,
        "causal": _read_image_gpt_causal,
    },
    written={
        "activation_function": lambda c: hub_config.written_activation(c["activation"]),
        "n_inner": "mlp_dim",
        "n_positions": lambda c: math.prod(hub_config.stored_image_size(c)),
        "vocab_size": lambda c: c["palette"] + 1,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop"), "dropout_rate"),
        "attn_pdrop": "attention_dropout_rate",
    },
    supported={
        **{**COMMON, "class_token": (False,), "pooling": ("gap",)},
        **{"norm": ("rms",), "palette": ANY, "causal": (True,)},
    },
    combinations=_of_image_gpt,
    processor="ImageGPTImageProcessor",
    renamed=_renamed_image_gpt,
    after_writing=_after_writing_image_gpt,
)
_SIGLIP = ModelType(
    "siglip_vision_model",
    "SiglipVisionModel",
    None,
    "vision_model.",
    _SIGLIP_ROWS,
    (),
    mark=r"(.*\.)?embeddings\.patch_embedding\.weight",
    others=r"text_model\..*|text_projection\.weight|logit_(scale|bias)|(.*\.)?embeddings\.position_ids",
    options=_OPTIONS,
    defaults={**_DEFAULTS, "layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh"},
    read=_ACTIVATION,
    written={"attention_dropout": "attention_dropout_rate"},
    supported={
        **{**COMMON, "class_token": (False,), "pooling": ("map",)},
        **{"pooling_heads": ANY, "pooling_mlp_dim": ANY},
    },
    combinations=_of_siglip,
    processor="SiglipImageProcessor",
    images={},
)
_CLIP = _SIGLIP._replace(
    name="clip_vision_model",
    model="CLIPVisionModel",
    classifier="CLIPVisionModelWithProjection",
    rows=_CLIP_ROWS,
    mark=r"(.*\.)?embeddings\.class_embedding",
    defaults={**_DEFAULTS, "layer_norm_eps": 1e-5, "hidden_act": "quick_gelu"},
    written={**_SIGLIP.written, "projection_dim": lambda c: c["num_classes"] or c["hidden_size"]},
    supported={**_BIASED, "pre_norm": (True, False), "norm_after_pooling": (True, False)},
    combinations=_of_clip,
    processor="CLIPImageProcessor",
    adapted=_adapted_clip,
    before_writing=_before_writing_clip,
    implied=_implied_of_clip,
    unsupported_arrays=lambda arrays: (
        ["a head with a bias (CLIP's projection has none)"] * bool(np.any(arrays.get("head/bias", 0)))
    ),
    unsupported_in_config=lambda config: (
        ["a head (transformers classifies by CLIP's tokens before the last norm)"]
        * bool(config["num_classes"])
    ),
)
_OWL_VIT = _SIGLIP._replace(
    name="owlvit_vision_model",
    model="OwlViTForObjectDetection",
    classifier="OwlViTForObjectDetection",
    prefix="",
    rows=_owl_rows("owlvit."),
    mark=r"owlvit\..*",
    anchor="owlvit.vision_model.embeddings.patch_embedding.weight",
    others=r"\w+\.(visual_projection\.weight|logit_scale|\w+\.embeddings\.position_ids)",
    defaults=_CLIP.defaults,
    supported={**_BIASED, "pre_norm": (True,), "pooling": ("token", "gap")},
    combinations=lambda config: _of_owl(config, objectness=False),
    processor="OwlViTImageProcessor",
    head="words",
)
# Of models without a depth head, which `huggingface_depth.py` has.
MODEL_TYPES = (
    VIT,
    VIT._replace(
        name="deit",
        model="DeiTModel",
        classifier="DeiTForImageClassification",
        prefix="deit.",
        supported={**VIT.supported, "num_registers": (0, 1), "distillation": (True, False)},
        combinations=_of_deit,
        processor="DeiTImageProcessor",
        before_writing=_before_writing_deit,
    ),
    VIT._replace(
        name="ijepa",
        model="IJepaModel",
        classifier="IJepaForImageClassification",
        prefix="ijepa.",
        supported={**_BASE, "class_token": (False,), "pooling": ("gap",)},
        combinations=lambda config: {},
    ),
    # The next two are read; they are the same models as `vit`, which is written.
    VIT._replace(name="vit_msn", model="ViTMSNModel", defaults={**_DEFAULTS, "layer_norm_eps": 1e-6}),
    VIT._replace(name="vit_mae", model="ViTMAEModel", mark=_MAE_DECODER),
    _BEIT,
    # Its files have registers, too: it comes before `dinov2_with_registers`.
    _DINOV3._replace(after_writing=partial(_with_mask_token, axes=(1, 1))),
    DINOV2._replace(
        name="dinov2_with_registers",
        model="Dinov2WithRegistersModel",
        classifier="Dinov2WithRegistersForImageClassification",
        prefix="dinov2_with_registers.",
        mark=r"(.*\.)?embeddings\.register_tokens",
        options={**DINOV2.options, "num_register_tokens": "num_registers"},
        defaults={**DINOV2.defaults, "num_register_tokens": 4},
        supported={**DINOV2.supported, "num_registers": ANY},
        combinations=_of_dinov2_with_registers,
        interpolation="bicubic_antialias",
        adapted=_adapted_dinov2_with_registers,
        after_reading=_after_reading_registers,
        after_writing=_with_mask_token,
        implied=_implied_prefix,
    ),
    DINOV2._replace(after_writing=_with_mask_token),
    _EOMT,
    _EOMT_DINOV3,
    _IMAGE_GPT,
    _OWL_VIT,
    _OWL_VIT._replace(
        name="owlv2_vision_model",
        model="Owlv2ForObjectDetection",
        classifier="Owlv2ForObjectDetection",
        rows=_owl_rows("owlv2."),
        mark=r"owlv2\..*",
        anchor="owlv2.vision_model.embeddings.patch_embedding.weight",
        combinations=lambda config: _of_owl(config, objectness=True),
        processor="Owlv2ImageProcessor",
    ),
    _CLIP,
    _SIGLIP,
    # Read as the model of one image size that it is for images of this size, and then written as the type
    # before it, unless `max_num_patches` is given.
    _SIGLIP._replace(
        name=PACKED,
        model="Siglip2VisionModel",
        options={theirs: ours for theirs, ours in _OPTIONS.items() if theirs != "image_size"},
        defaults={**_SIGLIP.defaults, "patch_size": 16, "num_patches": 256},
        read={**_ACTIVATION, "image_size": _read_naflex_size},
        interpolation="bilinear_antialias",
        written={**_SIGLIP.written, "num_patches": lambda c: math.prod(c["position_grid"])},
        supported={**_SIGLIP.supported, "max_num_patches": ANY},
        combinations=_of_siglip2,
        processor="Siglip2ImageProcessor",
        any_size=True,
        after_writing=_after_writing_packed,
    ),
)
