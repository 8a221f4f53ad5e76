"""Every Vision Transformer of timm, created without weights, is read correctly or refused.

The expected options come from timm's modules, never from our code, so that a silently wrong read fails.
"""

import functools
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; see requirements-peers.txt")
timm = pytest.importorskip("timm", reason="timm is not installed; see requirements-peers.txt")

from timm.layers import LayerNorm, Mlp  # noqa: E402
from timm.layers.attention import Attention  # noqa: E402
from timm.layers.attention_pool import AttentionPoolLatent  # noqa: E402
from timm.layers.hybrid_embed import HybridEmbed  # noqa: E402
from timm.layers.patch_embed import PatchEmbed  # noqa: E402
from timm.models._hub import save_config_for_hf  # noqa: E402
from timm.models.deit import VisionTransformerDistilled  # noqa: E402
from timm.models.vision_transformer import Block, VisionTransformer  # noqa: E402

from keras_vit.variants import VARIANTS  # noqa: E402
from keras_vit.weights import checkpoint  # noqa: E402
from keras_vit.weights.catalogue import CATALOGUE  # noqa: E402
from keras_vit.weights.show import expected_shapes  # noqa: E402

NAMES = [name for name in timm.list_models() if re.match("(test_)?vit|deit|flexivit|eva|beit", name)]
PREFIX = "hf://timm/"
ROWS = [row for row in CATALOGUE.values() if row.source.startswith(PREFIX)]
ACTIVATIONS = {"GELU": "gelu_erf", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu"}
POOLINGS = {"token": "token", "avg": "gap", "map": "map"}
Nothing = torch.nn.Identity


@functools.cache
def made(name):
    with torch.device("meta"):
        return timm.create_model(name)


def unsupported_parts(model):
    """The parts of timm's model that VisionTransformer cannot express."""
    if type(model) not in (VisionTransformer, VisionTransformerDistilled):
        return [type(model).__name__]
    found = []
    for block in model.blocks:
        if type(block) is not Block:
            return [type(block).__name__]
        if type(block.attn) is not Attention or type(block.mlp) is not Mlp:
            return [f"{type(block.attn).__name__}, {type(block.mlp).__name__}"]
        norms = (block.attn.q_norm, block.attn.k_norm, block.attn.norm, block.mlp.norm)
        if not all(isinstance(norm, Nothing) for norm in norms):
            found.append("norms inside of attention or MLP")
        if block.attn.proj.bias is None:
            found.append("no bias")
        if type(block.mlp.act).__name__ not in ACTIVATIONS:
            found.append(type(block.mlp.act).__name__)
        if type(block.norm1) not in (LayerNorm, torch.nn.LayerNorm):
            found.append(type(block.norm1).__name__)
    if isinstance(model.norm, Nothing) and isinstance(model.fc_norm, Nothing):
        found.append("no last norm")
    if model.global_pool not in POOLINGS:
        found.append(f"pooling {model.global_pool!r}")
    if model.global_pool == "avg" and model.pool_include_prefix and model.num_prefix_tokens:
        found.append("a mean with prefix tokens")
    if model.global_pool == "map" and model.num_prefix_tokens:
        found.append("a probe with prefix tokens")  # most ignore them, some do not, and no array shows it
    if model.attn_pool is not None and (
        type(model.attn_pool) is not AttentionPoolLatent
        or model.attn_pool.latent_len != 1
        or model.attn_pool.pos_embed is not None
        or isinstance(model.attn_pool.q, Nothing)
    ):
        found.append("another attention pooling")
    embed = model.patch_embed
    if type(embed) is HybridEmbed:
        if not {type(m).__name__ for m in embed.backbone.modules()} & {"StdConv2dSame"}:
            found.append("another stem")
    elif type(embed) is not PatchEmbed or not isinstance(embed.norm, Nothing):
        found.append(type(embed).__name__)
    return sorted({*found})


def arguments_of(model):
    """The arguments of VisionTransformer for timm's model."""
    block, embed = model.blocks[0], model.patch_embed
    prefix_with_positions = not model.no_embed_class
    found = {
        "image_size": tuple(embed.img_size),
        "patch_size": tuple(embed.proj.kernel_size),
        "hidden_size": model.embed_dim,
        "num_layers": len(model.blocks),
        "mlp_dim": block.mlp.fc1.out_features,
        "num_heads": block.attn.num_heads,
        "num_classes": model.num_classes or None,
        "pooling": POOLINGS[model.global_pool],
        "activation": ACTIVATIONS[type(block.mlp.act).__name__],
        "norm_epsilon": block.norm1.eps,
        "qkv_bias": block.attn.qkv.bias is not None,
        "class_token": model.cls_token is not None,
        "num_registers": model.num_reg_tokens,
        "distillation": isinstance(model, VisionTransformerDistilled),
        "layer_scale": not isinstance(block.ls1, Nothing),
        "pre_norm": not isinstance(model.norm_pre, Nothing),
        "norm_after_pooling": isinstance(model.norm, Nothing),
        "position_embedding": "none" if model.pos_embed is None else "learned",
        "in_channels": model.in_chans,
        "representation_size": None,
    }
    if model.num_prefix_tokens and model.pos_embed is not None:
        found["prefix_positions"] = prefix_with_positions
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
    assert {name: found.get(name) for name in expected} == expected


def arguments_to_give(model, name, config):
    """The arguments that a caller must give: heads where no variant has the sizes, and the activation of
    families with several."""
    given = {"activation": ACTIVATIONS[type(model.blocks[0].mlp.act).__name__]}
    if config and not ("_clip_" in name and "quickgelu" not in name):
        given = {}
    mlp = model.blocks[0].mlp.fc1.out_features
    if (model.embed_dim, len(model.blocks), mlp) not in [sizes[:3] for sizes in VARIANTS.values()]:
        given["num_heads"] = model.blocks[0].attn.num_heads
    return given


# Its arrays have the names and shapes of another kind of model, with norms after attention and MLP: only
# config.json shows the difference.
ONLY_CONFIG_SHOWS = "vit_base_patch16_rpn_224"


@pytest.mark.parametrize("config", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_an_architecture_is_read_as_it_is_or_refused(name, config, tmp_path, monkeypatch):
    """With the configuration that timm writes, or from the arrays with the heads given."""
    model = made(name)
    if reasons := unsupported_parts(model):
        try:
            read(model, tmp_path, monkeypatch, config, num_heads=4, activation="gelu_erf")
        except ValueError as error:
            assert "\n" not in str(error)
        else:
            assert name == ONLY_CONFIG_SHOWS and not config, reasons
        return
    given = arguments_to_give(model, name, config)
    if config:
        assert_equal_arguments(read(model, tmp_path, monkeypatch, **given), model)
        return
    heads = model.blocks[0].attn.num_heads
    found = read(model, tmp_path, monkeypatch, config=False, **{**given, "num_heads": heads})
    # Border pixels that fill no patch leave no trace in the arrays.
    embed = model.patch_embed
    sides = zip(embed.img_size, embed.grid_size)
    assert found["image_size"] == tuple(side // cells * cells for side, cells in sides)
    assert_equal_arguments({**found, "image_size": tuple(embed.img_size)}, model)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_of_the_catalogue_is_read_as_it_is(row, tmp_path, monkeypatch):
    """Catalogue, config.json and arrays agree, and leave nothing open."""
    name = row.source.removeprefix(PREFIX)
    # For weights trained with quick_gelu, the architecture that computes it.
    quick = row.options.get("activation") == "quick_gelu"
    computing = name.replace("_clip_", "_clip_quickgelu_") if quick else name
    classes = timm.get_pretrained_cfg(name).num_classes
    with torch.device("meta"):
        model = timm.create_model(computing, num_classes=classes)
    monkeypatch.setattr(checkpoint, "fetch", lambda *_, **__: tmp_path / "model.safetensors")
    for publisher in {name, computing}:
        with torch.device("meta"):
            save_config_for_hf(timm.create_model(publisher, num_classes=classes), tmp_path / "config.json")
        found = read(model, tmp_path, monkeypatch, config=False, source=row.name)
        assert not unsupported_parts(model)
        assert_equal_arguments(found, model)
