"""timm's models and ours compute the same from the same files, in both directions."""

import numpy as np
import pytest
from peers.packages import timm, torch
from peers.timm_models import NAMES, SIZES, made, options_of, stages_of
from peers.torch_models import assert_same_stages, images_of, randomized
from peers.transformers_inputs import smooth
from PIL import Image
from reference.comparing import assert_close
from safetensors.torch import load_file, save_file
from timm.data import create_transform, resolve_model_data_config
from timm.layers.pos_embed_rel import resize_rel_pos_bias_table
from timm.models import adapt_input_conv

from keras_vit import from_pretrained, save_weights
from keras_vit.weights.array_resizing import adapted_channels, resized_relative_positions
from keras_vit.weights.push import write_repository


def images_for(model):
    return images_of(*model.patch_embed.img_size, 1 if model.in_chans == 1 else 3)


# One model, in both directions --------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_theirs_is_loaded_and_written_with_the_same_arrays(name, tmp_path):
    """Bit-identical, so that they load it."""
    model = made(name)
    images, before = images_for(model), model.state_dict()
    save_file(before, tmp_path / "theirs.safetensors")
    ours = from_pretrained(tmp_path / "theirs.safetensors", **options_of(name))
    assert_same_stages(ours, images, stages_of(model, images))
    if name != "no positions":  # which cannot be saved
        written = load_file(save_weights(ours, tmp_path / "ours.safetensors", "timm"))
        torch.testing.assert_close(written, dict(before), rtol=0, atol=0)


# Models by name, with timm's own configuration ----------------------------------------------------

TINY = "vit_tiny_patch16_224"
NAMED = (  # names and options; test_timm_architectures.py compares all names
    ("vit_base_patch16_clip_quickgelu_224", {}),
    ("deit_tiny_distilled_patch16_224", {}),
    (TINY, {"act_layer": "gelu_tanh"}),
    (TINY, {"act_layer": "silu"}),
    (TINY, {"img_size": (16, 40)}),
    (TINY, {"img_size": 36}),  # which the patches do not divide
    (TINY, {"in_chans": 1, "num_classes": 0}),
    (TINY, {"global_pool": "avg", "fc_norm": False}),
    (TINY, {"global_pool": "avg", "class_token": False, "qkv_bias": False}),
    (TINY, {"global_pool": "map"}),  # leaves the class token out
    (TINY, {"global_pool": "map", "pool_include_prefix": True, "reg_tokens": 2}),
    (TINY, {"qk_norm": True}),
    (TINY, {"proj_bias": False}),
    (TINY, {"scale_attn_norm": True, "scale_mlp_norm": True}),
    (TINY, {"final_norm": False}),
    (TINY, {"norm_layer": "rmsnorm"}),
)


def named(name, **options):
    return randomized(timm.create_model(name, **{**SIZES, **options}))


@pytest.mark.parametrize("name, options", NAMED)
def test_a_folder_as_they_publish_it_is_loaded(name, options, tmp_path):
    """Without arguments: options are read from the arrays, or from config.json where only it shows them."""
    model = named(name, **options)
    timm.models.save_for_hf(model, tmp_path, safe_serialization=True)
    images = images_for(model)
    ours = from_pretrained(tmp_path)
    assert_same_stages(ours, images, stages_of(model, images))
    found, expected = ours.preprocessing, model.pretrained_cfg
    assert found.interpolation == expected["interpolation"]
    if model.in_chans == 3:
        assert (found.mean, found.std) == (tuple(expected["mean"]), tuple(expected["std"]))
    assert found.crop_fraction == expected["crop_pct"]


@pytest.mark.parametrize("mode, crop", [("center", 32 / 41), ("center", 32 / 43), ("squash", 32 / 43)])
def test_an_image_is_preprocessed_as_timm_does(mode, crop, tmp_path):
    """By ours from their config.json, and by them from ours; torchvision rounds 4.5 to 4, but 5.5 to 6."""
    images = {"input_size": (3, 32, 32), "crop_pct": crop, "crop_mode": mode}
    theirs = named(TINY, img_size=32, pretrained_cfg_overlay=images)
    timm.models.save_for_hf(theirs, tmp_path / "theirs", safe_serialization=True)
    ours = from_pretrained(tmp_path / "theirs")
    write_repository(ours, tmp_path / "ours", "me/it", "timm")
    again = timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True)

    image = smooth(9, 12, 90, 119)  # since theirs are cut off at the bounds of a byte
    computed = ours.preprocessing(image)[0]
    for model in (theirs, again):
        transform = create_transform(**resolve_model_data_config(model))
        expected = transform(Image.fromarray(image)).numpy().transpose(1, 2, 0)
        # Pillow rounds to integers after the resize of each side.
        assert np.abs(computed - expected).max() <= 1.5 / 255 / min(ours.preprocessing.std)


# Models of timm's class Eva, as we write them
EVA = (
    ("vit_small_patch16_dinov3", {}),
    ("vit_small_plus_patch16_dinov3_qkvb", {"swiglu_align_to": 0}),
    ("eva02_tiny_patch14_224", {}),
    ("eva02_base_patch16_clip_224", {}),
    ("eva02_enormous_patch14_clip_224", {}),
    ("vit_small_patch16_rope_mixed_ape_224", {}),
    ("vit_base_patch16_rope_224", {"qkv_bias": True}),
    ("vit_pe_core_base_patch16_224", {"num_heads": 4, "embed_dim": 32}),
    ("vit_pe_spatial_base_patch16_512", {}),
    ("vit_base_patch16_sapiens2", {"num_heads": 4, "embed_dim": 32, "num_kv_heads": (2, 4)}),
)


@pytest.mark.parametrize("name, options", EVA, ids=lambda value: value if isinstance(value, str) else "")
def test_timm_rebuilds_our_eva_model_from_config_json(name, options, tmp_path):
    """Every array has its place, and the outputs are equal."""
    sizes = {"num_heads": 3, "embed_dim": 24, **options}
    model = named(name, **sizes)
    timm.models.save_for_hf(model, tmp_path / "theirs", safe_serialization=True)
    size = SIZES["img_size"]  # which config.json does not say of models for any size
    ours = from_pretrained(tmp_path / "theirs", image_size=size, num_heads=sizes["num_heads"])
    write_repository(ours, tmp_path / "ours", "a/b", "timm")
    rebuilt = timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True).eval()
    assert type(rebuilt) is timm.models.eva.Eva
    images = images_for(model)
    assert_same_stages(ours, images, stages_of(rebuilt, images))
    assert_same_stages(from_pretrained(tmp_path / "ours"), images, stages_of(model, images))


# Resizing -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::UserWarning")  # of timm's interpolation
@pytest.mark.parametrize("old, new", [(14, (24, 24)), (14, (10, 30)), (24, (14, 14))], ids=str)
def test_relative_positions_are_resized_as_timm_does(old, new, rng):
    table = rng.standard_normal(((2 * old - 1) ** 2 + 3, 4)).astype("float32")
    shape = ((2 * new[0] - 1) * (2 * new[1] - 1) + 3, 4)
    expected = resize_rel_pos_bias_table(torch.from_numpy(table), new, shape)
    assert_close(resized_relative_positions(table, (old, old), new), expected, 1e-5)


@pytest.mark.parametrize("channels", [1, 2, 7])
def test_channels_are_adapted_as_timm_does(channels, rng):
    kernel = rng.standard_normal((4, 3, 8, 8)).astype("float32")
    expected = adapt_input_conv(channels, torch.from_numpy(kernel)).numpy()
    adapted = adapted_channels(kernel.transpose(2, 3, 1, 0), channels)
    assert_close(adapted, expected.transpose(2, 3, 1, 0), 1e-7)
