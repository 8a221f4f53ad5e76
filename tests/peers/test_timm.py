"""timm's own models against ours, from the same files, in both directions."""

import json
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; see requirements-peers.txt")
timm = pytest.importorskip("timm", reason="timm is not installed; see requirements-peers.txt")

from peers.timm_models import NAMES, SAVED, SIZES, made, stages_of, told  # noqa: E402
from peers.torch_models import assert_same_stages, channels_first, images_of, randomised  # noqa: E402
from reference.comparing import assert_close  # noqa: E402
from reference.small import small  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from timm.layers import resample_abs_pos_embed  # noqa: E402
from timm.layers.patch_embed import resample_patch_embed  # noqa: E402
from timm.models import adapt_input_conv  # noqa: E402

from keras_vit import from_pretrained, save_weights  # noqa: E402
from keras_vit.weights.resizing import (  # noqa: E402
    adapted_channels,
    resized_patch_kernel,
    resized_positions,
)


def images_for(model, **options):
    height, width = model.patch_embed.img_size
    return images_of(
        height, width, model.patch_embed.proj.in_channels if model.in_chans == 1 else 3, **options
    )


@pytest.fixture
def saved(tmp_path):
    """Write a model's state dict to a safetensors file."""

    def saved(model, name="theirs.safetensors"):
        save_file(model.state_dict(), tmp_path / name)
        return tmp_path / name

    return saved


# One model, in both directions --------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_theirs_is_loaded(name, saved, record_property):
    model = made(name)
    images = images_for(model)
    ours = from_pretrained(saved(model), **told(name))
    assert_same_stages(ours, images, stages_of(model, images), record_property)


@pytest.mark.parametrize("name", SAVED)
def test_a_model_of_ours_is_loaded_by_them(name, saved, tmp_path):
    """Strictly, and bit for bit."""
    model = made(name)
    ours = from_pretrained(saved(model), **told(name))
    written = load_file(save_weights(ours, tmp_path / "ours.safetensors", "timm"))
    before = model.state_dict()
    assert written.keys() == before.keys()
    for key, array in written.items():
        torch.testing.assert_close(array, before[key], rtol=0, atol=0)
    model.load_state_dict(written, strict=True)


@pytest.mark.parametrize("name", SAVED)
def test_what_is_written_beside_is_enough_to_load_it_again(name, saved, tmp_path):
    model = made(name)
    images = images_for(model)
    save_weights(from_pretrained(saved(model), **told(name)), tmp_path / "ours.safetensors", "timm")
    assert_same_stages(from_pretrained(tmp_path / "ours.safetensors"), images, stages_of(model, images))


@pytest.mark.parametrize("name", ["registers", "hybrid", "SigLIP"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_file_of_another_precision_is_loaded(name, dtype, saved):
    model = made(name).to(dtype)
    path = saved(model)
    images = images_for(model)
    assert_same_stages(from_pretrained(path, **told(name)), images, stages_of(model.float(), images))


@pytest.mark.parametrize("wrapped", ["model", "state_dict", None])
@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("renamed", [False, True])
def test_a_torch_file_as_training_scripts_write_it_is_loaded(wrapped, prefix, renamed, tmp_path):
    """With DeiT III's own names of LayerScale, and what parallel training puts in front."""
    sizes = {"img_size": 32, "patch_size": 8, "num_classes": 5}
    model = randomised(timm.create_model("deit3_small_patch16_224", **sizes), scale=0.05)
    state = {prefix + key: array for key, array in model.state_dict().items()}
    if renamed:
        state = {re.sub(r"ls([12])\.gamma", r"gamma_\1", key): array for key, array in state.items()}
        assert f"{prefix}blocks.0.gamma_1" in state
    torch.save({wrapped: state} if wrapped else state, tmp_path / "deit.pth")
    images = images_for(model)
    ours = from_pretrained(tmp_path / "deit.pth", variant="S/8")
    assert_same_stages(ours, images, stages_of(model, images))


# Models by name, with timm's own configuration ----------------------------------------------------

NAMED = {
    "vit_tiny_patch16_224": {},
    "vit_base_patch16_siglip_gap_224": {},
    "vit_base_patch16_siglip_224": {},
    "vit_so400m_patch14_siglip_224": {"mlp_ratio": 2},
    "vit_base_patch32_siglip_256": {},
    "vit_base_patch16_clip_224": {},
    "vit_base_patch16_clip_quickgelu_224": {},
    "vit_small_patch14_reg4_dinov2": {},
    "vit_base_patch16_reg4_gap_256": {},
    "vit_medium_patch16_gap_240": {},
    "deit3_small_patch16_224": {},
    "deit_tiny_distilled_patch16_224": {},
    "flexivit_small": {},
    "vit_tiny_patch16_224 ": {"act_layer": "gelu_tanh"},
    "vit_tiny_patch16_224  ": {"img_size": (16, 40)},
    "vit_tiny_patch16_224   ": {"in_chans": 1, "num_classes": 0},
    "vit_tiny_patch16_224    ": {"global_pool": "avg", "fc_norm": False},
    "vit_tiny_patch16_224     ": {"global_pool": "avg", "class_token": False, "qkv_bias": False},
}


def named(name, **options):
    changes = {**SIZES, **NAMED[name], **options}
    return randomised(timm.create_model(name.strip(), **changes))


@pytest.mark.parametrize("name", NAMED)
def test_a_folder_as_they_publish_it_is_loaded(name, tmp_path):
    """By what `config.json` tells alone."""
    model = named(name)
    timm.models.save_for_hf(model, tmp_path, safe_serialization=True)
    images = images_for(model)
    # Repositories with either form of GELU name the same CLIP.
    given = {"activation": "gelu_erf"} if "_clip_" in name and "quick" not in name else {}
    ours = from_pretrained(tmp_path, **given)
    assert_same_stages(ours, images, stages_of(model, images))
    p, config = ours.preprocessing, model.pretrained_cfg
    channels = slice(model.in_chans if model.in_chans == 1 else 3)
    if model.in_chans == 3:
        assert (p.mean, p.std) == (tuple(config["mean"][channels]), tuple(config["std"][channels]))
    assert p.interpolation == config["interpolation"]
    if config.get("crop_mode") != "squash":
        assert p.crop_fraction == config["crop_pct"]


@pytest.mark.parametrize("pool", ["max", "avgmax", "prr"])
def test_another_pooling_is_refused(pool, tmp_path):
    """What is pooled by the maximum has the arrays of what is pooled by the mean."""
    model = named("vit_tiny_patch16_224", global_pool=pool)
    timm.models.save_for_hf(model, tmp_path, safe_serialization=True)
    with pytest.raises(ValueError, match=f"global_pool|attn_pool|{pool}"):
        from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {"qk_norm": True},
        {"proj_bias": False},
        {"scale_attn_norm": True},
        {"scale_mlp_norm": True},
        {"final_norm": False},
        {"pool_include_prefix": True, "global_pool": "avg", "reg_tokens": 2},
        {"img_size": 36},  # which patches of 8 pixels do not fill
        {"global_pool": "map"},  # theirs leaves out the class token, ours does not
        {"mlp_layer": timm.layers.SwiGLU},
        {"mlp_layer": timm.layers.SwiGLUPacked},
        {"mlp_layer": timm.layers.GluMlp},
        {"block_fn": timm.models.vision_transformer.ParallelScalingBlock},
        {"block_fn": timm.models.vision_transformer.ParallelThingsBlock},
        {"norm_layer": timm.layers.RmsNorm},
        {"embed_norm_layer": timm.layers.LayerNorm},
        {"act_layer": "silu"},
    ],
    ids=lambda options: ", ".join(options),
)
def test_what_ours_has_not_is_refused(options, tmp_path):
    """Where the arrays show it without, and where only config.json does, with that."""
    model = named("vit_tiny_patch16_224", **options)
    timm.models.save_for_hf(
        model,
        tmp_path,
        safe_serialization=True,
        model_args={key: "x" for key, value in options.items() if callable(value)},
    )
    with pytest.raises(ValueError) as caught:
        from_pretrained(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "deit3_small_patch16_224", "vit_base_patch16_siglip_224"]
)
@pytest.mark.parametrize("size", [32, 48, 24, (40, 16)], ids=str)
def test_create_model_takes_our_file_at_any_size(name, size, tmp_path):
    """And resizes its positions as `position_resize="bicubic_antialias"` does."""
    timm.models.save_for_hf(named(name), tmp_path, safe_serialization=True)
    ours = from_pretrained(tmp_path)
    path = save_weights(ours, tmp_path / "ours.safetensors", "timm")
    changes = {**SIZES, "img_size": size}
    if size == 32:
        theirs = timm.create_model(name, checkpoint_path=str(path), **changes)
    else:
        source = {"file": str(path), "num_classes": 5, "input_size": (3, 32, 32)}
        theirs = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=source, **changes)
    images = images_for(theirs.eval())
    resized = from_pretrained(path, image_size=size, position_resize="bicubic_antialias")
    assert_same_stages(resized, images, stages_of(theirs, images))


@pytest.mark.parametrize("options", [{"class_token": True}, {"num_registers": 2}], ids=str)
def test_a_probe_that_reads_more_than_the_grid_is_not_written_for_them(options, tmp_path):
    """Theirs leaves out the tokens before the grid's, so that the same arrays would give other logits."""
    with pytest.raises(ValueError, match="map"):
        save_weights(small(pooling="map", **options), tmp_path / "ours.safetensors", "timm")


# Resizing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", [0, 1, 5])
@pytest.mark.parametrize(
    "old, new",
    [
        ((4, 4), (7, 7)),
        ((7, 7), (4, 4)),
        ((14, 14), (5, 3)),
        ((3, 5), (6, 4)),
        ((5, 3), (3, 5)),
        ((4, 4), (4, 8)),
        ((2, 2), (1, 9)),
    ],
    ids=str,
)
def test_positions_are_resized_as_they_do(old, new, prefix, rng):
    table = rng.standard_normal((1, prefix + old[0] * old[1], 16)).astype("float32")
    expected = resample_abs_pos_embed(torch.from_numpy(table), new, old, num_prefix_tokens=prefix)
    assert_close(resized_positions(table, old, new, "bicubic_antialias"), expected)
    expected = resample_abs_pos_embed(
        torch.from_numpy(table), new, old, num_prefix_tokens=prefix, interpolation="bilinear"
    )
    assert_close(resized_positions(table, old, new, "bilinear_antialias"), expected)


@pytest.mark.parametrize(
    "old, new",
    [
        ((8, 8), (16, 16)),
        ((16, 16), (8, 8)),
        ((8, 8), (12, 10)),
        ((16, 16), (15, 17)),
        ((32, 32), (8, 8)),
        ((6, 9), (9, 6)),
    ],
    ids=str,
)
def test_a_patch_kernel_is_resized_as_they_do(old, new, rng):
    """With the options of big_vision's FlexiViT; their own default is bicubic and smoothed."""
    kernel = rng.standard_normal((*old, 3, 4)).astype("float32")
    theirs = torch.from_numpy(np.ascontiguousarray(kernel.transpose(3, 2, 0, 1)))
    expected = resample_patch_embed(theirs, new, interpolation="bilinear", antialias=False)
    # They invert in float32.
    assert_close(resized_patch_kernel(kernel, new), expected.numpy().transpose(2, 3, 1, 0), 1e-5)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 6, 7])
@pytest.mark.parametrize("name", ["token", "hybrid"])
def test_channels_are_adapted_as_they_do(channels, name, saved, rng):
    model = made(name)
    kernel = (
        model.patch_embed.backbone.stem.conv.weight if name == "hybrid" else model.patch_embed.proj.weight
    )
    expected = adapt_input_conv(channels, kernel.detach()).numpy().transpose(2, 3, 1, 0)
    stored = np.ascontiguousarray(kernel.detach().numpy().transpose(2, 3, 1, 0))
    assert_close(adapted_channels(stored, channels), expected, 1e-7)
    ours = from_pretrained(saved(model), num_heads=3, in_channels=channels)
    first = ours.get_layer("conv_root" if name == "hybrid" else "patch_embedding")
    assert_close(first.kernel, expected, 1e-7)


# Official files -----------------------------------------------------------------------------------

OFFICIAL = {
    "token": {},
    "gap": {"class_token": False, "global_pool": "avg", "fc_norm": False},
    "bigvision_map": {"class_token": False, "global_pool": "map", "pos_embed": "learn"},
}


# timm reads the names that flax gave before Linen; ours reads either.
BEFORE_LINEN = {"LayerNorm_1/": "LayerNorm_2/", "MlpBlock_0/": "MlpBlock_3/", "Attention_0/": "Attention_1/"}


def before_linen(path, folder):
    """The file with its blocks in the names that timm reads."""
    with np.load(path) as file:
        renamed = {}
        for key in file.files:
            new = key
            if "encoderblock_" in key and not key.startswith("params/"):
                for linen, before in BEFORE_LINEN.items():
                    new = new.replace(linen, before)
            renamed[new] = file[key]
    np.savez(folder / path.name, **renamed)
    return folder / path.name


@pytest.mark.parametrize("name", OFFICIAL)
@pytest.mark.parametrize("size", [None, 48])
def test_both_read_an_official_file_alike(name, size, golden, tmp_path):
    """At its size; at another one, theirs resizes positions with pixel centres on one another."""
    path = before_linen(golden / f"{name}.npz", tmp_path)
    ours = from_pretrained(path, activation="gelu_erf")
    if size and ours.position_embedding != "learned":
        pytest.skip("nothing to resize")
    theirs = timm.models.VisionTransformer(
        img_size=size or ours.image_size,
        patch_size=ours.patch_size,
        embed_dim=ours.hidden_size,
        depth=ours.num_layers,
        num_heads=ours.num_heads,
        mlp_ratio=ours.mlp_dim / ours.hidden_size,
        num_classes=ours.num_classes or 0,
        **OFFICIAL[name],
    ).eval()
    theirs.load_pretrained(str(path))
    images = images_for(theirs)
    if size:
        # Theirs does not smooth where the grid grows or shrinks; ours has no such way.
        grid = theirs.patch_embed.grid_size
        assert grid != tuple(side // p for side, p in zip(ours.image_size, ours.patch_size))
        ours = from_pretrained(path, activation="gelu_erf", image_size=size)
        ours.get_layer("position_embedding").table.assign(theirs.pos_embed.detach().numpy())
    assert_same_stages(ours, images, stages_of(theirs, images))


def test_both_read_an_official_hybrid_alike(golden, tmp_path):
    """With the epsilons of their stem, which differ from the official ones."""
    from timm.models.resnetv2 import ResNetV2
    from timm.models.vision_transformer_hybrid import HybridEmbed, StdConv2dSame

    path = before_linen(golden / "hybrid.npz", tmp_path)
    ours = from_pretrained(path, activation="gelu_erf", resnet_form="timm")
    width = ours.resnet_width
    backbone = ResNetV2(
        layers=ours.resnet,
        channels=[4 * width * 2**i for i in range(len(ours.resnet))],
        stem_chs=width,
        num_classes=0,
        global_pool="",
        preact=False,
        stem_type="same",
        conv_layer=lambda *args, **options: StdConv2dSame(*args, eps=1e-8, **options),
    )
    theirs = timm.models.VisionTransformer(
        img_size=ours.image_size,
        patch_size=ours.patch_size,
        embed_dim=ours.hidden_size,
        depth=ours.num_layers,
        num_heads=ours.num_heads,
        mlp_ratio=ours.mlp_dim / ours.hidden_size,
        num_classes=ours.num_classes or 0,
        embed_layer=lambda **options: HybridEmbed(backbone, **options),
    ).eval()
    theirs.load_pretrained(str(path))
    images = images_for(theirs)
    assert_same_stages(ours, images, stages_of(theirs, images))


def test_labels_of_theirs_become_class_names(tmp_path):
    model = named("vit_tiny_patch16_224")
    labels = {"label_names": list("abcde"), "label_descriptions": {"a": "an animal"}}
    timm.models.save_for_hf(model, tmp_path, model_config=labels, safe_serialization=True)
    assert json.loads((tmp_path / "config.json").read_text())["label_names"] == list("abcde")
    assert from_pretrained(tmp_path).class_names == ("an animal", *"bcde")


def test_logits_do_not_depend_on_the_batch(saved):
    """One image and three, so that a mean over the wrong axis shows."""
    model = made("mean")
    ours = from_pretrained(saved(model), num_heads=3)
    for batch in (1, 3):
        images = images_for(model, batch=batch)
        with torch.no_grad():
            assert_close(ours(images), model(channels_first(images)).numpy())
