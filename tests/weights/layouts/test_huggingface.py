import json

import numpy as np
import pytest
from made.sampling import some
from made.tables import by_table
from reference.comparing import arrays, assert_close
from reference.goldens import stored
from reference.small import images_for, one_block
from safetensors.numpy import load_file

from keras_vit import from_pretrained, save_weights
from keras_vit.weights.catalogue import find
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.layouts.heads import merged_heads
from keras_vit.weights.metadata import read_metadata

huggingface = LAYOUTS["huggingface"]


def state_dict(model):
    return huggingface.write(merged_heads(arrays(model)), model.get_config())


def test_a_pooler_is_skipped_if_there_is_a_classifier(golden):
    """ViTForImageClassification ignores it; some of its files have one."""
    file = stored(golden, "hf_vit")
    shapes = {"weight": (24, 24), "bias": 24}
    poolers = {f"vit.pooler.dense.{leaf}": np.ones(shape) for leaf, shape in shapes.items()}
    mapped = huggingface.read(file | poolers)
    assert (mapped.unknown, {*mapped.skipped}) == ([], {*poolers})
    assert mapped.arrays.keys() == mapped.keys.keys() == huggingface.read(file).arrays.keys()
    alone = {key: array for key, array in (file | poolers).items() if not key.startswith("classifier")}
    assert {*huggingface.read(alone).arrays} >= {"pre_logits/kernel", "pre_logits/bias"}


# Models without a configuration, and in transformers' form; tests/peers/test_transformers.py has every type

ERF, NO_HEAD = {"activation": "gelu_erf"}, {"num_classes": None}
SCALED = {"layer_scale": 0.1, "norm_epsilon": 1e-6, **ERF}
DINOV3 = {
    **{"rotary": {"kind": "dinov3", "base": 50.0}, "position_embedding": "none", "num_registers": 2},
    **{"layer_scale": 1e-5, "norm_epsilon": 1e-5, **NO_HEAD},
}
SILU = {"gated_mlp": True, "activation": "silu"}
CLIP = {"pre_norm": True, "norm_after_pooling": True, "norm_epsilon": 1e-5, "activation": "quick_gelu"}
SIZES = {"hidden_size": 12, "mlp_dim": 24, "num_heads": 3}
REGISTERS = {**SCALED, **NO_HEAD, "num_registers": 3, "prefix_positions": False, "qkv_bias": False}
MODELS = {  # options of small models
    "ijepa": {**ERF, "pooling": "gap"},
    "dinov2, gated": {**SCALED, **SILU, **NO_HEAD, "mlp_dim": 16},
    "dinov3, gated": {**DINOV3, **SILU, "linear_bias": False},
    "siglip": {**NO_HEAD, "pooling": "map", "class_token": False, "image_size": 19},
}


def made(name):
    return one_block(**{**SIZES, **MODELS[name]})


@pytest.mark.parametrize("name", some(["dinov3, gated", "dinov2, gated", "ijepa", "siglip"], 2))
def test_a_file_without_configuration_is_read_or_refused(name, tmp_path):
    model = made(name)
    path = save_weights(model, tmp_path / "saved", "huggingface").rename(tmp_path / "alone.safetensors")
    if name == "ijepa":
        with pytest.raises(ValueError, match="the epsilon is unknown; put the config.json next to the file"):
            from_pretrained(path, num_heads=3)
        return
    again = from_pretrained(path, num_heads=3, image_size=model.image_size)
    expected = {name: getattr(model, name) for name in ("activation", "norm_epsilon", "pooling", "gated_mlp")}
    assert {name: getattr(again, name) for name in expected} == expected
    if name == "dinov3, gated":
        assert again.rotary["base"] == 100


def test_the_position_of_the_class_token_is_added_if_registers_have_none(tmp_path):
    model = one_block(**{**SIZES, **REGISTERS, "prefix_positions": True})
    file = load_file(save_weights(model, tmp_path / "saved", "huggingface"))
    table, registers = (arrays(model)[n] for n in ("position_embedding/table", "register_tokens/token"))
    assert file["embeddings.position_embeddings"].shape == (1, 1 + 4, 12)
    np.testing.assert_array_equal(file["embeddings.register_tokens"], registers + table[:, 1:4])
    again = from_pretrained(tmp_path / "saved")
    assert not again.prefix_positions
    images = images_for(model)
    assert_close(again(images), model(images))


def test_the_last_norm_of_clip_moves_behind_the_pooling(tmp_path):
    model = one_block(**{**CLIP, **NO_HEAD, "norm_after_pooling": False})
    save_weights(model, tmp_path / "saved", "huggingface")
    again, images = from_pretrained(tmp_path / "saved"), images_for(model)
    assert again.norm_after_pooling
    assert_close(again(images), model(images))


def test_clips_projection_has_no_bias(tmp_path):
    model = one_block(**CLIP)
    with pytest.raises(ValueError, match="cannot express this model: a head with a bias"):
        save_weights(model, tmp_path / "saved", "huggingface")
    assert not [*tmp_path.iterdir()]


def test_a_siglip_2_for_any_size_is_described_as_in_the_catalogue(tmp_path):
    """Its config.json has only what defaults do not say."""
    row = find("google/siglip2-base-patch16-naflex")
    config = {"model_type": "siglip2", "vision_config": {"model_type": "siglip2_vision_model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    options, _ = read_metadata(tmp_path / "model.safetensors", huggingface)
    assert {row.image_size, options["image_size"]} == {(256, 256)}
    assert {**row.preprocessing, "resize": "squash"} == {"resize": "squash", **options["preprocessing"]}


def test_the_pooler_of_a_model_without_a_class_token_is_refused(golden):
    keys = {"pre_logits/kernel": "pooler.dense.weight", "head/kernel": "classifier.weight"}
    with pytest.raises(ValueError, match="pooler.dense.weight would read the first patch"):
        huggingface.implied(keys, {"norm_epsilon": 1e-6})


@by_table(
    "names, expected",
    [
        (("encoder_block_0/attention/position_bias/table",), "bilinear_half_pixel"),
        (("position_embedding/table",), "bicubic"),
        (("position_embedding/table", "encoder_block_0/attention/position_bias/table"), None),
    ],
)
def test_absolute_positions_of_beit_are_resized_by_another_method(names, expected):
    keys = {"encoder_block_0/attention_scale/gamma": "encoder.layer.0.lambda_1"}
    keys |= {name: f"their {name}" for name in names}
    if expected:
        assert huggingface.implied(keys, {})["position_interpolation"] == expected
        return
    with pytest.raises(ValueError, match="got both, their position_embedding.* and their encoder_block_0"):
        huggingface.implied(keys, {})


TEXT = ("text_model.encoder.layers.0.mlp.fc1.weight", "text_projection.weight", "logit_scale", "logit_bias")
OTHERS = {  # arrays of the authors that a VisionTransformer does not use
    "ijepa": ("decoder.mask_token", "decoder.decoder_pos_embed", "decoder.decoder_layers.0.mlp.fc1.weight"),
    "dinov2, gated": ("embeddings.mask_token",),
    "siglip": (*TEXT, "text_model.embeddings.position_ids", "vision_model.embeddings.position_ids"),
}


def test_the_mask_token_of_beit_is_left_out():
    keys = ["encoder.layer.0.lambda_1", "beit.embeddings.mask_token"]
    assert huggingface.skipped_keys(keys) == keys[1:]


@pytest.mark.parametrize("name", OTHERS)
def test_what_a_file_holds_beside_the_model_is_left_out(name):
    """The decoder of a masked autoencoder, the token of masked patches, and the text tower."""
    keys = [*state_dict(made(name)), *OTHERS[name], "decoder.0.weight", "qformer.weight"]
    assert {*huggingface.skipped_keys(keys)} == {*OTHERS[name]}
