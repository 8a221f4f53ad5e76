import json

import numpy as np
import pytest
from made.sampling import some
from made.tables import by_table
from reference.small import DECODER, SMALL, one_block

from keras_vit import MaskedAutoencoder, from_pretrained
from keras_vit.weights import pretraining, save_weights
from keras_vit.weights.array_files import load_arrays, write_arrays
from keras_vit.weights.catalogue import CATALOGUE, find
from keras_vit.weights.checkpoint import _metadata_of_row, read_checkpoint
from keras_vit.weights.layouts.huggingface_type_table import TYPES

NAMES = {
    "vit_base_patch16_224.augreg_in21k": "supervised",
    "vit_base_patch16_224.orig_in21k": "supervised",
    "google/vit-base-patch16-224-in21k": "supervised",
    "deit3_small_patch16_224.fb_in22k_ft_in1k": "supervised",
    "vit_base_patch16_224_miil.in21k": "supervised",
    "vit_base_patch16_clip_224.openai_ft_in12k": "supervised",
    "beit_base_patch16_224.in22k_ft_in22k": "supervised",
    "eva02_base_patch14_448.mim_in22k_ft_in22k_in1k": "supervised",
    "vit_so400m_patch14_siglip_gap_378.webli_ft_in1k": "supervised",
    "eva02_base_patch14_224.mim_in22k": "self_supervised",
    "hf://timm/beit3_base_patch16_224.pt": "self_supervised",
    "vit_base_patch16_224.mae": "self_supervised",
    "vit_small_patch16_224.dino": "self_supervised",
    "vit_small_patch14_dinov2.lvd142m": "self_supervised",
    "facebook/dinov3-vits16-pretrain-lvd1689m": "self_supervised",
    "vit_base_patch16_clip_224.openai": "image_text",
    "google/siglip2-base-patch16-naflex": "image_text",
    "aimv2_large_patch14_224.apple_pt": "image_text",
    "vit_huge_patch16_radio_v4.c_radio": "image_text",
    "vit_pe_core_small_patch16_384.fb": "image_text",
}


@by_table("name", NAMES)
def test_a_published_name_says_what_the_weights_learned_from(name):
    assert _metadata_of_row(find(name))["pretraining"] == NAMES[name]


def test_every_row_of_the_catalogue_says_it():
    learned_from = {row.name: pretraining.of_name(row.source) for row in CATALOGUE.values()}
    assert {*learned_from.values()} == {"supervised", "self_supervised", "image_text"}
    with_classes = {row.name for row in CATALOGUE.values() if row.class_names}
    assert {learned_from[name] for name in with_classes} == {"supervised"}


@by_table("name", sorted(TYPES.keys() - {"vit"}))
def test_every_model_type_but_vit_has_an_answer_without_a_head(name):
    kind = TYPES[name]
    assert kind.head or pretraining.of_type(name, False)


@by_table(
    "kind, expected",
    [
        ("vit", "unknown"),
        ("vit_mae", "self_supervised"),
        ("vit_msn", "self_supervised"),
        ("deit", "supervised"),
    ],
)
def test_the_model_type_of_transformers_says_it(kind, expected, tmp_path):
    model = one_block(num_classes=None, norm_epsilon=1e-6 if kind == "vit_msn" else 1e-12)
    file = save_weights(model, tmp_path / "model", "huggingface")
    file.with_suffix(".json").unlink()
    config = file.with_name("config.json")
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_type": kind}))
    assert from_pretrained(file).pretraining == expected


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"num_classes": None, "layer_scale": 1.0}, "self_supervised"),  # dinov2
        ({"num_classes": None}, "unknown"),
        ({}, "supervised"),
    ],
)
def test_without_a_configuration_the_keys_of_transformers_say_it(options, expected, tmp_path):
    dinov2 = {"norm_epsilon": 1e-6, "mlp_dim": 48} if "layer_scale" in options else {"norm_epsilon": 1e-12}
    model = one_block(**dinov2, **options)
    file = save_weights(model, tmp_path / "model", "huggingface")
    for name in ("config.json", "model.json"):
        file.with_name(name).unlink()
    found = read_checkpoint(file, num_heads=3)
    assert found.arguments["pretraining"] == expected


def with_keys(path, model, **arrays):
    """The file of a model in timm's layout without metadata, and further arrays."""
    save_weights(model, path, layout="timm")
    path.with_suffix(".json").unlink()
    write_arrays({**load_arrays(path), **arrays}, path)
    return path


@by_table(
    "options, arrays, expected",
    [
        ({"num_classes": None}, {}, "unknown"),
        ({"num_classes": None}, {"mask_token": np.zeros((1, 12), "float32")}, "self_supervised"),  # DINOv2
        ({}, {}, "supervised"),
        ({"pre_norm": True, "norm_epsilon": 1e-5}, {}, "unknown"),  # a CLIP's projection, or classes
        ({"num_classes": None, "pooling": "map"}, {}, "image_text"),  # SigLIP
    ],
)
def test_the_keys_of_timm_say_it(options, arrays, expected, tmp_path):
    file = with_keys(tmp_path / "a.safetensors", one_block(**options), **arrays)
    found = read_checkpoint(file, num_heads=3, activation="gelu_erf")
    assert found.arguments["pretraining"] == expected


@pytest.mark.parametrize(
    "name, expected",
    [
        ("vit_small_patch14_dinov2.lvd142m", "self_supervised"),
        ("vit_small_patch16_224.augreg_in21k", "supervised"),
        ("vit_small_patch16_224", "unknown"),
    ],
)
def test_the_tag_of_timm_says_it(name, expected, tmp_path):
    file = with_keys(tmp_path / "model.safetensors", one_block(num_classes=None))
    architecture, _, tag = name.partition(".")
    config = {"architecture": architecture, "num_features": 12, "model_args": {"num_heads": 3}}
    config["pretrained_cfg"] = {"tag": tag} if tag else {}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_checkpoint(file, activation="gelu_erf").arguments["pretraining"] == expected


@pytest.mark.parametrize(
    "layout, end", some([("vit_jax", ".npz"), ("big_vision", ".npz"), ("timm", ".safetensors")], 3)
)
def test_files_keep_what_a_model_knows(layout, end, tmp_path):
    options = {"pooling": "gap"} if layout == "big_vision" else {}
    model = one_block(num_classes=None, pretraining="self_supervised", **options)
    save_weights(model, tmp_path / f"a{end}", layout=layout)
    assert from_pretrained(tmp_path / f"a{end}").pretraining == "self_supervised"
    model.save(tmp_path / "a.keras")
    assert from_pretrained(tmp_path / "a.keras", num_classes=2).pretraining == "self_supervised"
    save_weights(one_block(**options), tmp_path / f"b{end}", layout=layout)
    assert from_pretrained(tmp_path / f"b{end}").pretraining is None


def test_an_argument_says_it_of_weights_that_do_not(tmp_path):
    one_block(num_classes=None).save(tmp_path / "a.keras")
    assert from_pretrained(tmp_path / "a.keras", pretraining="image_text").pretraining == "image_text"


def test_a_masked_autoencoder_of_its_authors_learned_from_images(tmp_path):
    model = MaskedAutoencoder(
        one_block(num_classes=None, pooling="gap", class_token=True),
        **{**DECODER, "decoder_hidden_size": 32, "decoder_num_heads": 16},
    )
    save_weights(model, tmp_path / "mae.safetensors", layout="timm")
    (tmp_path / "mae.json").unlink(missing_ok=True)
    found = read_checkpoint(tmp_path / "mae.safetensors", num_heads=SMALL["num_heads"])
    assert found.arguments["pretraining"] == "self_supervised"
