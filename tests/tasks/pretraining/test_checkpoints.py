"""Masked autoencoders in files; tests/peers/test_masked_autoencoder.py compares them with transformers'."""

import json

import numpy as np
import pytest
from made.sampling import some
from made.tables import by_table
from reference.comparing import arrays, assert_same_arrays, randomize
from safetensors.numpy import load_file, save_file

from keras_vit import MaskedAutoencoder, VisionTransformer, from_pretrained, save_weights

ENCODER = {"image_size": 16, "patch_size": 8, "hidden_size": 24, "num_layers": 1, "mlp_dim": 20}
ENCODER |= {"num_heads": 3, "activation": "gelu_erf"}
DECODER = {"decoder_hidden_size": 16, "decoder_num_layers": 2, "decoder_mlp_dim": 12}


def made(encoder=(), **options):
    model = MaskedAutoencoder({**ENCODER, **dict(encoder)}, **DECODER, **options)
    return randomize(model)


@pytest.fixture(scope="module")
def model():
    return made()


@pytest.mark.parametrize("layout, name", some([("huggingface", "mae"), ("timm", "mae.safetensors")], 2))
def test_what_is_written_is_read(layout, name, model, tmp_path):
    save_weights(model, tmp_path / name, layout)
    again = from_pretrained(tmp_path / name, kind="pretrainer")
    assert type(again) is MaskedAutoencoder and again.get_config()["decoder_mlp_dim"] == 12
    assert again.normalize_targets and again.mask_fraction == 0.75
    assert_same_arrays(arrays(again), arrays(model))
    assert type(from_pretrained(tmp_path / name)) is VisionTransformer


@pytest.mark.slow
def test_a_keras_file_and_a_run_hold_all_of_it(model, tmp_path):
    model.save(tmp_path / "pretrainer.keras")
    for source in (tmp_path, tmp_path / "pretrainer.keras"):
        assert_same_arrays(arrays(from_pretrained(source, kind="pretrainer")), arrays(model))
    assert type(from_pretrained(tmp_path / "pretrainer.keras")) is VisionTransformer
    with pytest.raises(ValueError, match="is loaded as it is; got other options"):
        from_pretrained(tmp_path, kind="pretrainer", image_size=32)
    with pytest.raises(ValueError, match="loaded as it is; got other options"):
        from_pretrained(tmp_path, kind="pretrainer", pooling="gap")
    model.encoder.save(tmp_path / "encoder.keras")
    with pytest.raises(ValueError, match="holds a VisionTransformer; expected one trained without labels"):
        from_pretrained(tmp_path / "encoder.keras", kind="pretrainer")


def test_a_norm_after_the_pooling_is_new(model, tmp_path):
    model.encoder.save(tmp_path / "model.keras")
    options = {"pooling": "gap", "class_token": True, "norm_after_pooling": True, "num_classes": 3}
    tuned = from_pretrained(tmp_path / "model.keras", **options)
    assert {"pooled_norm/gamma", "pooled_norm/beta", "head/kernel"} <= {*tuned.initial_weights}
    np.testing.assert_array_equal(arrays(tuned)["pooled_norm/gamma"], 1)
    found = arrays(tuned)["class_token/token"]
    np.testing.assert_array_equal(found, arrays(model)["class_token/token"])


@pytest.mark.slow
@by_table(
    "encoder, options, layout, message",
    [
        ({}, {}, "vit_jax", "cannot express this model: .*activation|the decoder of a masked autoencoder"),
        ({"activation": "gelu_tanh"}, {}, "vit_jax", "the decoder of a masked autoencoder"),
        ({}, {"decoder_num_heads": 4}, "timm", r"decoder_num_heads=4 \(supported: 16\)"),
        ({}, {"mask_fraction": 0.5}, "timm", r"mask_fraction=0.5 \(supported: 0.75\)"),
        ({"class_token": False, "pooling": "gap"}, {}, "huggingface", "without a class token; .*'ijepa'"),
    ],
)
def test_what_a_layout_cannot_express_is_refused(encoder, options, layout, message, tmp_path):
    name = {"vit_jax": "mae.npz", "timm": "mae.safetensors", "huggingface": "mae"}[layout]
    with pytest.raises(ValueError, match=message):
        save_weights(made(encoder, **options), tmp_path / name, layout)


def without(part):
    return lambda state: {key: array for key, array in state.items() if part not in key}


def moved(state):
    return {**state, "decoder.decoder_pos_embed": state["decoder.decoder_pos_embed"] + 1}


@by_table(
    "change, message",
    [
        (without("decoder_layers.0."), "2 axes of .* decoder_block_0/mlp/dense_0/kernel; got no such array"),
        (without("decoder."), "holds no decoder of a masked autoencoder"),
        (moved, "expected MAE's sines and cosines of the grid in decoder.decoder_pos_embed"),
        ({"decoder_num_attention_heads": 0}, "num_heads must be .*; got 0"),
        ({"decoder_num_attention_heads": 5}, "5"),
        ({"mask_ratio": "most"}, "mask_fraction must be .*; got 'most'"),
    ],
)
def test_a_damaged_file_is_refused(change, message, model, tmp_path):
    file = save_weights(model, tmp_path / "mae", "huggingface")
    file.with_suffix(".json").unlink()  # The weights' digest is of what it says.
    if callable(change):
        save_file(change(load_file(file)), file)
    else:
        config = json.loads((tmp_path / "mae" / "config.json").read_text())
        (tmp_path / "mae" / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ValueError, match=message):
        from_pretrained(tmp_path / "mae", kind="pretrainer")
