"""The catalogue against timm itself, whose architectures are made without weights."""

import re

import pytest

from keras_vit.variants import VARIANTS, parse_variant
from keras_vit.weights.catalogue import CATALOGUE

timm = pytest.importorskip("timm", reason="timm is not installed; the catalogue was read off it")
torch = pytest.importorskip("torch")

PREFIX = "hf://timm/"
ROWS = [row for row in CATALOGUE.values() if row.source.startswith(PREFIX)]
ACTIVATIONS = {"GELU": "gelu_erf", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu"}
POOLINGS = {"token": "token", "avg": "gap", "map": "map"}


def tagged(row):
    """timm's name of the row's weights; of those trained with quick_gelu, the one that computes so."""
    name = row.source.removeprefix(PREFIX)
    if row.options.get("activation") == "quick_gelu":
        return re.sub(r"_clip_", "_clip_quickgelu_", name)
    return name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_says_what_timm_says(row):
    with torch.device("meta"):
        model = timm.create_model(tagged(row).partition(".")[0])
    block, modules = model.blocks[0], dict(model.named_modules())
    mlp = block.mlp.fc1.out_features
    sizes = (model.embed_dim, len(model.blocks), mlp)
    patch = model.patch_embed.proj.kernel_size[0]
    if row.variant is None:
        assert sizes not in [known[:3] for known in VARIANTS.values()]
        assert row.options["num_heads"] == block.attn.num_heads
    else:
        variant = parse_variant(row.variant)
        assert sizes == (variant["hidden_size"], variant["num_layers"], variant["mlp_dim"])
        assert (block.attn.num_heads, patch) == (variant["num_heads"], variant["patch_size"])
        if "resnet" in variant:
            stages = getattr(model.patch_embed.backbone, "stages", ())
            assert tuple(len(stage.blocks) for stage in stages) == variant["resnet"]
    clip = not isinstance(model.norm_pre, torch.nn.Identity)
    epsilons = {
        m.eps for m in modules.values() if type(m) is torch.nn.LayerNorm or type(m).__name__ == "LayerNorm"
    }
    assert epsilons == {row.options.get("norm_epsilon", 1e-5 if clip else 1e-6)}
    assert ACTIVATIONS[type(block.mlp.act).__name__] == row.options.get("activation", "gelu_erf")
    assert getattr(block.mlp.act, "approximate", "none") == "none"
    stored = "map" if model.attn_pool is not None else "token" if model.cls_token is not None else "gap"
    if not isinstance(model.fc_norm, torch.nn.Identity):
        stored = "gap"
    assert POOLINGS[model.global_pool] == row.options.get("pooling", stored)
    assert not (isinstance(model.norm, torch.nn.Identity) and isinstance(model.fc_norm, torch.nn.Identity))
    assert not [n for n in modules if "q_norm" in n and not isinstance(modules[n], torch.nn.Identity)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_prepares_images_as_timm_does(row):
    config = timm.get_pretrained_cfg(tagged(row))
    assert config.hf_hub_id == row.source.removeprefix("hf://")
    assert config.input_size == (3, *row.image_size)
    assert (config.num_classes or None, config.license) == (row.num_classes, row.licence)
    wanted = {"crop": "center"}.get(row.preprocessing["resize"], "squash")
    assert (config.crop_mode, config.interpolation) == (wanted, row.preprocessing["interpolation"])
    assert row.preprocessing.get("crop_fraction", config.crop_pct) == config.crop_pct
    assert (tuple(config.mean), tuple(config.std)) == (row.preprocessing["mean"], row.preprocessing["std"])


def test_every_plain_model_is_here():
    """What is left out has a reason: another kind of block, no repository, or a twin in the catalogue."""
    listed = {row.source.removeprefix(PREFIX) for row in ROWS}
    reasons = (
        r"aimv2|beit3|_xp_|rpn|pwee|_d\w*wee|dlittle|giant_patch14_(reg4_)?dinov2|giant_patch14_reg1_tips|mci"
    )
    reasons += r"|radio|intern300m|test_vit[34]|patch14_siglip_(gap_)?384|\.pali|quickgelu"
    left = []
    for module in ("vision_transformer", "vision_transformer_hybrid", "deit"):
        for name in timm.list_models(module=module, pretrained=True):
            repository = timm.get_pretrained_cfg(name).hf_hub_id
            if repository and repository.removeprefix("timm/") not in listed and not re.search(reasons, name):
                left.append(name)
    assert not left
