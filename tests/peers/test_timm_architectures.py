"""Every Vision Transformer of timm, created without weights, is read correctly or refused.

The expected options come from timm's modules, never from our code, so that a silently wrong read fails.
"""

import functools
import math
import re

import numpy as np
import pytest
from peers.packages import timm, timm_coverage, torch
from timm.layers import LayerNorm, Mlp, RmsNorm
from timm.layers.attention import Attention, AttentionRope
from timm.layers.attention_pool import AttentionPoolLatent
from timm.layers.hybrid_embed import HybridEmbed
from timm.layers.mlp import GluMlp, SwiGLU
from timm.layers.patch_embed import PatchEmbed
from timm.layers.pos_embed_sincos import (
    RotaryEmbeddingCat,
    RotaryEmbeddingDinoV3,
    RotaryEmbeddingMixed,
)
from timm.models import beit, eva, vision_transformer
from timm.models._hub import save_config_for_hf
from timm.models.deit import VisionTransformerDistilled
from timm.models.naflexvit import NaFlexVit

from keras_vit.variants import CHOICES, VARIANTS, parse_variant
from keras_vit.weights import checkpoint
from keras_vit.weights.catalogue import CATALOGUE
from keras_vit.weights.show import expected_shapes

NAMES = [
    name for name in timm.list_models() if re.match("(test_|naflex)?vit|deit|flexivit|eva|beit|aimv2", name)
]
PREFIX = "hf://timm/"
ROWS = [row for row in CATALOGUE.values() if row.source.startswith(PREFIX)]
ACTIVATIONS = {"GELU": "gelu_erf", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu", "SiLU": "silu"}
POOLINGS = {"token": "token", "avg": "gap", "map": "map"}
Nothing = torch.nn.Identity
CLASSES = (
    *(vision_transformer.VisionTransformer, VisionTransformerDistilled, eva.Eva, beit.Beit, NaFlexVit),
)
BLOCKS = (
    *(vision_transformer.Block, vision_transformer.ResPostBlock, beit.Block),
    *(eva.EvaBlock, eva.EvaBlockPostNorm),
)
ATTENTIONS = (Attention, AttentionRope, beit.Attention, eva.EvaAttention)
MLPS = (Mlp, GluMlp, SwiGLU)
ROTARY = (type(None), RotaryEmbeddingCat, RotaryEmbeddingDinoV3, RotaryEmbeddingMixed)
NORMS = {LayerNorm: "layer", torch.nn.LayerNorm: "layer", RmsNorm: "rms"}


def tagged(row):
    """timm's name of the row's weights; for quick_gelu the architecture that computes it."""
    name = row.source.removeprefix(PREFIX)
    is_quick = row.options.get("activation") == "quick_gelu"
    return name.replace("_clip_", "_clip_quickgelu_") if is_quick else name


@functools.cache
def made(name):
    with torch.device("meta"):
        return timm.create_model(name)


def part(module, name):
    """A part of a module, or None if it does nothing."""
    found = getattr(module, name, None)
    return None if isinstance(found, Nothing) else found


def embedding(model):
    """The module with the patches' projection."""
    return model.embeds if isinstance(model, NaFlexVit) else model.patch_embed


def is_expressible(model):
    """Whether VisionTransformer has all parts of timm's model."""
    if type(model) not in CLASSES:
        return False
    for block in model.blocks:
        if type(block) not in BLOCKS or type(block.attn) not in ATTENTIONS or type(block.mlp) not in MLPS:
            return False
        if part(block.attn, "gate") is not None or type(block.norm1) not in NORMS:
            return False
        if type(block.mlp.act).__name__ not in ACTIVATIONS:
            return False
    embed, pool, mean = embedding(model), getattr(model, "attn_pool", None), model.global_pool == "avg"
    if type(embed) is HybridEmbed:
        known_embedding = "StdConv2dSame" in {type(module).__name__ for module in embed.backbone.modules()}
    else:
        known_embedding = type(embed) is PatchEmbed or isinstance(model, NaFlexVit)
    return (
        known_embedding
        and type(getattr(model, "rope", None)) in ROTARY
        and model.global_pool in POOLINGS
        and not (mean and getattr(model, "pool_include_prefix", False) and model.num_prefix_tokens)
        and (pool is None or is_plain_pooling(pool, arguments_of(model)["qkv_bias"]))
        # One bias for all blocks.
        and getattr(model, "rel_pos_bias", None) is None
    )


def is_plain_pooling(pool, qkv_bias):
    is_plain = type(pool) is AttentionPoolLatent and pool.latent_len == 1 and pool.pos_embed is None
    return is_plain and not isinstance(pool.q, Nothing) and qkv_bias


def rotary_of(model):
    """Kind, base, order, offset and reference grid of the rotary positions, or None."""
    rope = getattr(model, "rope", None)
    if rope is None:
        return None
    kind = {"RotaryEmbeddingCat": "axial", "RotaryEmbeddingMixed": "mixed"}.get(type(rope).__name__, "dinov3")
    assert getattr(model.blocks[0].attn, "rotate_half", False) == (kind == "dinov3")
    return {
        "kind": kind,
        "base": float(rope.temperature),
        "order": {"ij": "yx", "xy": "xy"}[rope.grid_indexing],
        "offset": float(getattr(rope, "grid_offset", 0)) if kind == "axial" else 0.0,
        "reference_grid": rope.ref_feat_shape and tuple(rope.ref_feat_shape) if kind == "axial" else None,
        "rotate_registers": False,
    }


def arguments_of(model):
    """The arguments of VisionTransformer for timm's model."""
    block, embed = model.blocks[0], embedding(model)
    attention, mlp, naflex = block.attn, block.mlp, isinstance(model, NaFlexVit)
    gated = type(mlp) is not Mlp
    hidden = mlp.fc2.in_features
    scales = [getattr(block, name, None) for name in ("gamma_1", "gamma_2")]
    if all(scale is None for scale in scales):
        scales = [part(block, name) for name in ("ls1", "ls2")]
    key_bias = getattr(attention, "q_bias", None) is None
    if part(attention, "qkv") is None:
        has_bias, key_bias = attention.q_proj.bias is not None, attention.k_proj.bias is not None
    else:
        has_bias = attention.qkv.bias is not None or not key_bias
    pool = getattr(model, "attn_pool", None)
    kv_heads = tuple(getattr(b.attn, "num_kv_heads", b.attn.num_heads) for b in model.blocks)
    registers = getattr(model, "num_reg_tokens", 0)
    if isinstance(model, eva.Eva):
        registers = 0 if model.reg_token is None else model.reg_token.shape[1]
    table = model.embeds.pos_embed_type if naflex else model.pos_embed is not None or None
    patch = embed.patch_size if naflex else embed.proj.kernel_size
    found = {
        "image_size": tuple(model.pretrained_cfg["input_size"][1:] if naflex else embed.img_size),
        "patch_size": tuple(patch),
        "hidden_size": model.embed_dim,
        "num_layers": len(model.blocks),
        "mlp_dim": hidden,
        "num_heads": attention.num_heads,
        "num_kv_heads": None if {*kv_heads} == {attention.num_heads} else kv_heads,
        "num_classes": model.num_classes or None,
        "pooling": POOLINGS[model.global_pool],
        "activation": ACTIVATIONS[type(mlp.act).__name__],
        "gated_mlp": gated,
        "norm": NORMS[type(block.norm1)],
        "norm_epsilon": block.norm1.eps,
        "qkv_bias": has_bias,
        "key_bias": key_bias or not has_bias,
        "linear_bias": attention.proj.bias is not None,
        "qk_norm": part(attention, "q_norm") is not None,
        "attention_sub_norm": part(attention, "norm") is not None,
        "mlp_sub_norm": part(mlp, "norm") is not None,
        "post_norm": type(block) in (vision_transformer.ResPostBlock, eva.EvaBlockPostNorm),
        "patch_norm": not isinstance(embed, HybridEmbed) and part(embed, "norm") is not None,
        "final_norm": part(model, "norm") is not None or part(model, "fc_norm") is not None,
        "rotary": rotary_of(model),
        "relative_positions": getattr(attention, "relative_position_bias_table", None) is not None,
        "class_token": getattr(embed if naflex else model, "cls_token", None) is not None,
        "num_registers": registers,
        "distillation": isinstance(model, VisionTransformerDistilled),
        "layer_scale": scales[0] is not None,
        "scale_mlp": scales[1] is not None or scales[0] is None,
        "pre_norm": part(model, "norm_pre") is not None,
        "norm_after_pooling": part(model, "fc_norm") is not None,
        "position_embedding": "none" if table in (None, "none") else "learned",
        "in_channels": model.in_chans,
        "representation_size": None,
    }
    if pool is not None:
        found["pooling_heads"] = pool.num_heads
        found["pooling_mlp_dim"] = pool.mlp.fc1.out_features
        if model.num_prefix_tokens:
            found["pool_prefix"] = isinstance(model, eva.Eva) or model.pool_include_prefix
    if model.num_prefix_tokens and found["position_embedding"] == "learned":
        found["prefix_positions"] = not naflex and not getattr(model, "no_embed_class", False)
    if type(embed) is HybridEmbed:
        stages = getattr(embed.backbone, "stages", ())
        found |= {"resnet": tuple(len(stage.blocks) for stage in stages), "resnet_form": "timm"}
    return found


def read(model, folder, monkeypatch, config=True, source=None, **given):
    """Read a file with the arrays of timm's model, which take no memory."""
    arrays = {key: np.broadcast_to(np.float32(0), array.shape) for key, array in model.state_dict().items()}
    monkeypatch.setattr(checkpoint, "load_arrays", lambda path, subtree: arrays)
    with open(folder / "model.safetensors", "wb") as file:
        file.truncate(2**34)  # sparse, and larger than any model
    if config:
        save_config_for_hf(model, folder / "config.json")
    found = checkpoint.read_checkpoint(source or folder, **given)
    arguments = dict(found.arguments)
    mismatches = found.mismatches(expected_shapes(arguments, arguments.pop("position_grid", None)))
    if any(mismatches.values()):
        raise ValueError(f"does not fit the model: {list(mismatches.values())}")
    return {**found.arguments, **given}


def assert_equal_arguments(found, model):
    expected = arguments_of(model)
    found = {**found, "layer_scale": found.get("layer_scale") is not None}
    for name, default in (("pooling_heads", "num_heads"), ("pooling_mlp_dim", "mlp_dim")):
        found[name] = found.get(name) or found[default]
    found = {"rotary": None, "post_norm": False, **found}
    assert {name: found.get(name) for name in expected} == expected


def arguments_to_give(model, name, config):
    """What a caller must give: heads where no variant has the sizes, and what no array shows."""
    expected = arguments_of(model)
    given = {"activation": expected["activation"]} if not config or "_clip_" in name else {}
    if (model.embed_dim, len(model.blocks), expected["mlp_dim"]) not in [v[:3] for v in VARIANTS.values()]:
        given["num_heads"] = expected["num_heads"]
    if config:
        return given
    given |= {name: expected[name] for name in ("num_heads", "rotary", "post_norm", "pooling")}
    if expected["position_embedding"] == "none" or expected["relative_positions"]:
        given["image_size"] = expected["image_size"]
    return given | {n: expected[n] for n in ("pool_prefix", "pooling_heads") if n in expected}


@pytest.mark.parametrize("config", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_an_architecture_is_read_as_it_is_or_refused(name, config, tmp_path, monkeypatch):
    """With the configuration that timm writes, or from the arrays with what these do not show."""
    model = made(name)
    if not is_expressible(model):
        with pytest.raises(ValueError) as caught:
            read(model, tmp_path, monkeypatch, config, num_heads=4, activation="gelu_erf", rotary=None)
        assert "\n" not in str(caught.value)
        return
    given = arguments_to_give(model, name, config)
    if config:
        assert_equal_arguments(read(model, tmp_path, monkeypatch, **given), model)
        return
    found = read(model, tmp_path, monkeypatch, config=False, **given)
    size = tuple(arguments_of(model)["image_size"])
    if isinstance(model, NaFlexVit):  # The table has a grid of its own.
        assert found["position_grid"] == tuple(model.embeds.pos_embed_grid_size)
    elif "image_size" not in given:
        # Border pixels that fill no patch leave no trace in the arrays.
        embed = model.patch_embed
        sides = zip(embed.img_size, embed.grid_size)
        assert found["image_size"] == tuple(side // cells * cells for side, cells in sides)
    assert_equal_arguments({**found, "image_size": size}, model)


def signature(name):
    """What distinguishes the structure of an architecture from others', apart from its sizes."""
    model = made(name)
    if not is_expressible(model):
        return None
    sizes = ("image_size", "hidden_size", "num_layers", "mlp_dim", "num_classes", "pooling_mlp_dim")
    found = {key: value for key, value in arguments_of(model).items() if key not in sizes}
    found["num_kv_heads"] = found["num_kv_heads"] is None
    del found["num_heads"]
    return type(model).__name__, str(found)


@functools.cache
def structures():
    """One architecture with published weights for each structure."""
    found = {signature(name): name for name in timm_coverage.pretrained()}
    return [name for key, name in found.items() if key is not None]


def test_most_published_weights_are_of_a_kind_that_is_read():
    tags = timm_coverage.pretrained()
    expressible = sum(count for name, count in tags.items() if signature(name) is not None)
    assert (sum(tags.values()), expressible) == (525, 445)


@pytest.mark.parametrize("name", sorted(timm_coverage.pretrained()))
def test_each_structure_has_timms_logits(name):
    """At a reduced width, with every other option as published."""
    if name not in structures():
        return  # Another architecture has the same structure, or it is refused.
    found = timm_coverage.result(name)
    assert isinstance(found, float) and found < timm_coverage.BOUND, found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_of_the_catalogue_is_read_as_it_is(row, tmp_path, monkeypatch):
    """Catalogue, config.json and arrays agree, and leave nothing open."""
    name, computing = row.source.removeprefix(PREFIX), tagged(row)
    classes = timm.get_pretrained_cfg(name).num_classes
    with torch.device("meta"):
        model = timm.create_model(computing, num_classes=classes)
    monkeypatch.setattr(checkpoint, "fetch", lambda *_, **__: tmp_path / "model.safetensors")
    for publisher in {name, computing}:
        with torch.device("meta"):
            save_config_for_hf(timm.create_model(publisher, num_classes=classes), tmp_path / "config.json")
        found = read(model, tmp_path, monkeypatch, config=False, source=row.name)
        assert is_expressible(model)
        assert_equal_arguments(found, model)
    if row.variant and "_parfac_" not in row.name:  # whose factors of positions are read as their sums
        own = {n: value for n, value in parse_variant(row.variant).items() if n not in CHOICES}
        grid = found.pop("position_grid", None)
        shapes = expected_shapes({**found, **own}, grid)
        count = sum(math.prod(shape) for shape in shapes.values())
        assert count == sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_has_timms_preprocessing(row):
    config = timm.get_pretrained_cfg(tagged(row))
    assert config.hf_hub_id == row.source.removeprefix("hf://")
    assert config.input_size == (3, *row.image_size)
    assert (config.num_classes or None, config.license) == (row.num_classes, row.license)
    wanted = {"crop": "center"}.get(row.preprocessing["resize"], "squash")
    assert (config.crop_mode, config.interpolation) == (wanted, row.preprocessing["interpolation"])
    assert row.preprocessing.get("crop_fraction", 1) == config.crop_pct
    assert (tuple(config.mean), tuple(config.std)) == (row.preprocessing["mean"], row.preprocessing["std"])


def test_every_plain_model_is_in_the_catalogue():
    """Missing ones have a reason: another kind of block, no repository, or a duplicate."""
    listed = {row.source.removeprefix(PREFIX) for row in ROWS}
    reasons = r"_xp_|pwee|_d\w*wee|dlittle|mci|lingbot|\.pali|quickgelu"
    left = []
    for module in ("vision_transformer", "vision_transformer_hybrid", "deit", "eva", "beit", "naflexvit"):
        for name in timm.list_models(module=module, pretrained=True):
            repository = timm.get_pretrained_cfg(name).hf_hub_id
            if repository and repository.removeprefix("timm/") not in listed and not re.search(reasons, name):
                left.append(name)
    assert not left
