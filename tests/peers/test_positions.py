"""At other image sizes positions are resized as the authors of a file do, at loading and at each call.

With the environment variable WRITE_POSITIONS=1 the last test writes the differences into docs/checkpoints.md.
"""

import os
import pathlib
import re
from functools import partial

import numpy as np
import pytest
from peers import test_depth, test_open_clip, test_owl_vit, test_timm, test_transformers
from peers.packages import open_clip, timm, torch
from peers.torch_models import channels_first, images_of
from reference.comparing import numpy
from reference.small import compute
from timm.models.vision_transformer import VisionTransformer

from keras_vit import from_pretrained
from keras_vit.interpolation import INTERPOLATIONS

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of timm's interpolation
BOUND = 3e-6  # of the largest value
ROTARY, RELATIVE = "rotary positions", "relative positions"  # which no table of positions holds
MANUAL = pathlib.Path(__file__).parents[2] / "docs/checkpoints.md"
CUBIC = {"mode": "bicubic", "align_corners": False}


# Each function saves a small model with random weights in a folder. It returns the source, arguments of
# `from_pretrained`, and a function of images to the authors' outputs by the names of our stages.


def _transformers(name, folder):
    theirs = test_transformers.made(name)
    theirs.save_pretrained(folder)
    return folder, {}, lambda images: test_transformers.stages_of(theirs, images)


def _depth(build, folder):
    theirs = build()
    theirs.save_pretrained(folder)
    return folder, {}, lambda images: {"depth": test_depth.depth_of(theirs, images)[..., np.newaxis]}


def _owl_vit(version, folder):
    theirs = test_owl_vit.made(version)
    theirs.save_pretrained(folder)
    return folder, {"convert": test_owl_vit.of_ids}, lambda images: test_owl_vit.theirs_of(theirs, images)


def _timm(name, folder, **options):
    """A model by name, in a folder as timm publishes it."""
    theirs = test_timm.named(name, **options)
    timm.models.save_for_hf(theirs, folder, safe_serialization=True)

    def stages(images):
        changes = {**test_timm.SIZES, **options, "img_size": images.shape[1:3]}
        source = {"file": str(folder / "model.safetensors"), "num_classes": 5, "input_size": (3, 32, 32)}
        again = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=source, **changes)
        return test_timm.stages_of(again.eval(), images)

    return folder, {"num_heads": theirs.blocks[0].attn.num_heads}, stages


def _naflex(name, folder):
    """timm's `NaFlexVit`, which resizes the table at each call."""
    sizes = {option: value for option, value in test_timm.SIZES.items() if option != "img_size"}
    theirs = test_timm.randomized(timm.create_model(name, pos_embed_grid_size=(4, 4), **sizes))
    timm.models.save_for_hf(theirs, folder, safe_serialization=True)

    def stages(images):
        with torch.no_grad():
            return {"logits": theirs(channels_first(images))}

    return folder, {"num_heads": 3}, stages


def _open_clip(name, folder):
    theirs, _ = test_open_clip.made(name, folder / "theirs")
    file = folder / "theirs/open_clip_model.safetensors"

    def stages(images):
        model = open_clip.create_model(
            f"local-dir:{file.parent}", load_weights=False, force_image_size=images.shape[1:3]
        )
        open_clip.load_checkpoint(model, str(file))
        with torch.no_grad():
            return {"logits": model.eval().encode_image(channels_first(images))}

    return file.parent, {**test_open_clip.HEADS.get(name, {})}, stages


def _with_table(theirs, images, resized):
    """timm's model with a resized position table."""
    grid, size = [side // 8 for side in images.shape[1:3]], images.shape[1:3]
    model = VisionTransformer(**{**SIZES, **theirs.options, "img_size": size}).eval()
    state = theirs.state_dict()
    rows = state["pos_embed"].shape[1] - 16
    table = state["pos_embed"][:, rows:].reshape(1, 4, 4, -1).permute(0, 3, 1, 2)
    table = resized(table, grid).permute(0, 2, 3, 1).flatten(1, 2)
    model.load_state_dict({**state, "pos_embed": torch.cat([state["pos_embed"][:, :rows], table], dim=1)})
    return test_timm.stages_of(model, images)


SIZES = {**test_timm.SIZES, "num_classes": 0}


def _facebookresearch(project, folder, **options):
    """A file of facebookresearch, whose models have timm's arrays under the authors' names."""
    options_of_timm = {"init_values": 1e-5, **options}
    theirs = test_timm.randomized(VisionTransformer(**{**SIZES, **options_of_timm}))
    theirs.options = options_of_timm
    state, size = dict(theirs.state_dict()), SIZES["embed_dim"]
    if project == "mae":
        state |= {"decoder_embed.weight": torch.ones(16, size), "decoder_embed.bias": torch.ones(16)}
        state |= {"mask_token": torch.ones(1, 1, 16)}
    else:
        state |= {"mask_token": torch.ones(1, size)}
    if "reg_tokens" in options:  # The class token has a position, in a row of its own.
        state["register_tokens"] = state.pop("reg_token")
        first = torch.randn(1, 1, size, generator=torch.Generator().manual_seed(2))
        state["cls_token"] = state["cls_token"] - first
        state["pos_embed"] = torch.cat([first, state["pos_embed"]], dim=1)
    torch.save(state, folder / "authors.pth")

    def resized(table, grid):
        if project == "mae":
            return torch.nn.functional.interpolate(table, size=grid, **CUBIC)
        if "reg_tokens" in options:
            return torch.nn.functional.interpolate(table, size=grid, antialias=True, **CUBIC)
        scale = tuple((side + 0.1) / 4 for side in grid)
        return torch.nn.functional.interpolate(table, scale_factor=scale, mode="bicubic")

    expected = lambda images: {"tokens": _with_table(theirs, images, resized)["tokens"]}  # noqa: E731
    return folder / "authors.pth", {"num_heads": 3}, expected


def _families():
    """dict from names to (interpolation, function that saves)."""
    names = [n for n in test_transformers.MODELS if "rectangle" not in n and "border" not in n]
    rules = {
        "registers": "bicubic_antialias",
        "SigLIP 2": "bilinear_antialias",
        "DINOv3": ROTARY,
        "BEiT": RELATIVE,
    }
    families = {
        f"transformers: {name}": (
            next((rule for family, rule in rules.items() if family in name), "bicubic"),
            partial(_transformers, name),
        )
        for name in names
    }
    families |= {
        "transformers: Depth Anything": ("bicubic", partial(_depth, test_depth.anything)),
        "transformers: DPT": ("bilinear_half_pixel", partial(_depth, test_depth.dpt)),
        "transformers: OWL-ViT": ("bicubic", partial(_owl_vit, "OwlViT")),
        "transformers: OWLv2": ("bicubic", partial(_owl_vit, "Owlv2")),
    }
    by_name = {
        "ViT": ("bicubic_antialias", "vit_tiny_patch16_224", {}),
        "DeiT": ("bicubic_antialias", "deit_tiny_distilled_patch16_224", {}),
        "DeiT III": ("bicubic_antialias", "deit3_small_patch16_224", {}),
        "DINOv2": ("bicubic_antialias", "vit_small_patch14_dinov2", {}),
        "DINOv2 with registers": ("bicubic_antialias", "vit_small_patch14_reg4_dinov2", {}),
        "SigLIP": ("bicubic_antialias", "vit_base_patch16_siglip_224", {}),
        "FlexiViT": ("bilinear_half_pixel", "flexivit_small", {}),
        "C-RADIOv3-B": ("bilinear", "vit_base_patch16_radio_v3", {}),
        "C-RADIOv4-H": ("bilinear_half_pixel", "vit_huge_patch16_radio_v4", {}),
        "EVA-02": ("bicubic_antialias", "eva02_tiny_patch14_224", {}),
        "AIMv2": ("bicubic_antialias", "aimv2_large_patch14_224", {"embed_dim": 24, "num_heads": 3}),
        "BEiT": (RELATIVE, "beit_base_patch16_224", {}),
    }
    return families | {
        **{f"timm: {name}": (rule, partial(_timm, model, **o)) for name, (rule, model, o) in by_name.items()},
        **{
            f"timm: NaFlexVit, {name}": (rule, partial(_naflex, f"naflexvit_base_patch16_{name}"))
            for name, rule in {
                "gap": "bicubic_antialias",
                "siglip": "bilinear_antialias",
                "par_gap": "bicubic_antialias_square",
                "parfac_gap": "bilinear_half_pixel_square",
                "radio_v3": "bilinear_square",
            }.items()
        },
        "timm: NaFlexVit, C-RADIOv4": (
            "bilinear_half_pixel_square",
            partial(_naflex, "naflexvit_huge_patch16_radio_v4"),
        ),
        "open_clip: CLIP": ("bicubic_antialias", partial(_open_clip, "CLIP, quick GELU")),
        "facebookresearch: MAE": ("bicubic", partial(_facebookresearch, "mae")),
        "facebookresearch: DINOv2": ("bicubic_offset", partial(_facebookresearch, "dinov2")),
        "facebookresearch: DINOv2 with registers": (
            "bicubic_antialias",
            partial(_facebookresearch, "dinov2", reg_tokens=4, no_embed_class=True),
        ),
    }


FAMILIES = _families()


def difference(name, folder, at_call):
    """The largest difference to the authors' outputs at two sizes, relative to the largest value."""
    interpolation, save = FAMILIES[name]
    source, options, stages = save(folder)
    convert = options.pop("convert", lambda model: model)
    differences = []
    for size in _sizes(name):
        model = convert(from_pretrained(source, image_size=(None, None) if at_call else size, **options))
        encoder = getattr(model, "encoder", model)
        if interpolation in INTERPOLATIONS:
            assert encoder.position_interpolation == interpolation
        images = images_of(*size, encoder.in_channels)
        for stage, expected in stages(images).items():
            computed = model(images) if stage == "depth" else compute(model, images, [stage])[stage]
            expected = np.maximum(numpy(expected), -1e6)  # of padding texts theirs are smaller
            largest = np.abs(expected[expected > -1e6]).max()
            differences.append(np.abs(numpy(computed) - expected).max() / largest)
    return float(max(differences))


def _sizes(name):
    """A rectangle of more patches than the stored 4×4 (or 3×3), and a smaller one."""
    if "DPT" in name:  # which transformers computes of squares alone
        return [(96, 96), (32, 32)]
    patch = 14 if "Depth" in name else 8
    return [(7 * patch, 5 * patch), (3 * patch, 2 * patch)]


@pytest.mark.parametrize("at_call", [False, True], ids=["at loading", "at each call"])
@pytest.mark.parametrize("name", FAMILIES)
def test_outputs_at_other_sizes_are_the_authors(name, at_call, tmp_path):
    if at_call and FAMILIES[name][0] == RELATIVE:
        with pytest.raises(ValueError, match="relative positions are of one grid"):
            difference(name, tmp_path, at_call)
        return
    assert difference(name, tmp_path, at_call) <= BOUND


def test_the_manual_has_each_family_and_its_interpolation(tmp_path):
    before, start, rest = MANUAL.read_text().partition("<!-- positions -->\n\n")
    table, end, after = rest.partition("\n\n<!-- end of positions -->")
    if os.environ.get("WRITE_POSITIONS"):
        table = _table(tmp_path)
        MANUAL.write_text(before + start + table + end + after)
    rows = [re.split(r" *\| *", line.strip("| ")) for line in table.splitlines()[2:]]
    assert [row[:2] for row in rows] == [[name, f"`{rule}`"] for name, (rule, _) in FAMILIES.items()]
    assert all(float(cell) <= BOUND for row in rows for cell in row[2:] if cell != "–")


def _table(folder):
    rows = ["| family | interpolation | at loading | at each call |", "|---|---|---|---|"]
    for name, (rule, _) in FAMILIES.items():
        cells = []
        for at_call in (False, True):
            files = folder / f"{name}, {at_call}".replace("/", " ")
            files.mkdir()
            measured = rule != RELATIVE or not at_call
            cells.append(f"{difference(name, files, at_call):.1e}" if measured else "–")
        rows.append(" | ".join([f"| {name}", f"`{rule}`", *cells, ""]).rstrip())
    return "\n".join(rows)
