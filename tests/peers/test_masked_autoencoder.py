"""Masked autoencoders of transformers, and files with the names of MAE's authors."""

import functools
import json

import keras
import numpy as np
import pytest
from peers.packages import torch, transformers
from peers.torch_models import assert_same_gradients, channels_first, images_of, randomized, read_whole
from reference.comparing import assert_close, numpy
from safetensors.torch import load_file
from transformers.models.vit_mae import modeling_vit_mae

from keras_vit import MaskedAutoencoder, from_pretrained, save_weights

SIZES = {
    **{"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40},
    **{"image_size": 32, "patch_size": 8},
    **{"decoder_hidden_size": 16, "decoder_num_hidden_layers": 2, "decoder_num_attention_heads": 4},
    "decoder_intermediate_size": 20,
}
CHANGES = {
    "default": {},
    "normalized": {"norm_pix_loss": True, "mask_ratio": 0.6},
    "no biases": {"qkv_bias": False, "layer_norm_eps": 1e-6},
    "gray": {"num_channels": 1, "hidden_act": "gelu_pytorch_tanh"},
}


def with_random_weights(**changes):
    """transformers' model with random weights, but MAE's positions, which a new one of theirs lacks."""
    theirs = transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**{**SIZES, **changes}))
    table = theirs.decoder.decoder_pos_embed
    rows, columns = modeling_vit_mae.build_2d_sinusoidal_position_embedding(
        4, 4, table.shape[-1], cls_token=True
    ).tensor_split(2, dim=-1)
    randomized(theirs)
    table.data = torch.cat([columns, rows], dim=-1)[None]
    return theirs


def made(name, folder):
    """transformers' model in a folder, and ours from it."""
    theirs = with_random_weights(**CHANGES[name])
    theirs.save_pretrained(folder)
    return theirs, from_pretrained(folder, kind="pretrainer")


def inputs_for(ours):
    encoder = ours.encoder
    images = images_of(*encoder.image_size, encoder.in_channels)
    noise = np.random.default_rng(2).random((2, ours.num_patches)).astype("float32")
    return {"images": images, "order": np.argsort(noise, axis=1).astype("int32")}, noise


def run(theirs, inputs, noise):
    return theirs(channels_first(inputs["images"]), noise=torch.tensor(noise))


@pytest.mark.parametrize("name", CHANGES)
def test_a_model_is_read_and_written_with_equal_outputs(name, tmp_path):
    theirs, ours = made(name, tmp_path / "theirs")
    inputs, noise = inputs_for(ours)
    with torch.no_grad():
        expected = run(theirs, inputs, noise)
        tokens = theirs.vit(channels_first(inputs["images"]), noise=torch.tensor(noise)).last_hidden_state
    read = keras.Model(ours.input, ours.get_layer("decoder_embedding").input)
    assert_close(read(inputs), tokens.numpy())
    predicted = ours(inputs)
    assert_close(predicted, expected.logits.numpy())
    assert_close(ours.compute_loss(inputs, y_pred=predicted), expected.loss.numpy())

    save_weights(ours, tmp_path / "ours", "huggingface")
    again = read_whole(transformers.ViTMAEForPreTraining, tmp_path / "ours")
    for key, array in theirs.state_dict().items():
        exact = "decoder_pos_embed" not in key  # which is computed again
        torch.testing.assert_close(again.state_dict()[key], array, rtol=0, atol=0 if exact else 2e-6)
    with torch.no_grad():
        assert_close(predicted, run(again, inputs, noise).logits.numpy())
    found, expected = (json.loads((tmp_path / of / "config.json").read_text()) for of in ("ours", "theirs"))
    assert all(found[key] == value for key, value in {**SIZES, **CHANGES[name]}.items())
    assert found["architectures"] == expected["architectures"]


def test_the_gradients_are_theirs(tmp_path):
    theirs, ours = made("normalized", tmp_path / "theirs")
    inputs, noise = inputs_for(ours)
    loss = run(theirs, inputs, noise).loss

    def load():
        theirs.decoder.decoder_pos_embed.data = with_random_weights().decoder.decoder_pos_embed.data
        theirs.save_pretrained(tmp_path / "gradients")
        return from_pretrained(tmp_path / "gradients", kind="pretrainer")

    def our_loss():
        return ours.compute_loss(inputs, y_pred=ours(inputs, training=True))

    assert_same_gradients(ours, our_loss, theirs, loss, load, fixed=["position_embedding/table"])


def test_fixed_positions_of_the_encoder_are_written_as_a_table(tmp_path):
    encoder = {"image_size": 32, "patch_size": 8, "hidden_size": 24, "num_layers": 1, "mlp_dim": 40}
    encoder |= {"num_heads": 3, "position_embedding": "sincos2d", "activation": "gelu_erf"}
    ours = MaskedAutoencoder(encoder, 16, 1, 2)
    save_weights(ours, tmp_path / "ours", "huggingface")
    theirs = transformers.ViTMAEForPreTraining.from_pretrained(tmp_path / "ours")
    inputs, noise = inputs_for(ours)
    with torch.no_grad():
        assert_close(ours(inputs), run(theirs, inputs, noise).logits.numpy())


def test_a_file_with_the_authors_names_is_read_and_written(tmp_path):
    theirs = with_random_weights(decoder_hidden_size=32, decoder_num_attention_heads=16)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = from_pretrained(tmp_path / "theirs", kind="pretrainer", norm_epsilon=1e-6)
    ours.normalize_targets = True  # as the authors train
    file = save_weights(ours, tmp_path / "mae.safetensors", "timm")
    state = load_file(file)
    outside = {key for key in state if "blocks." not in key}
    layers = ("patch_embed.proj", "norm", "decoder_embed", "decoder_norm", "decoder_pred")
    assert outside == {
        *("cls_token", "pos_embed", "mask_token", "decoder_pos_embed"),
        *(f"{layer}.{leaf}" for layer in layers for leaf in ("weight", "bias")),
    }
    timm = pytest.importorskip("timm.models.vision_transformer", reason="timm is not installed")
    norm = functools.partial(torch.nn.LayerNorm, eps=1e-6)
    block = timm.Block(32, 16, 20 / 32, qkv_bias=True, norm_layer=norm)
    start = "decoder_blocks.1."
    block.load_state_dict({k.removeprefix(start): v for k, v in state.items() if k.startswith(start)})
    tokens = np.random.default_rng(0).normal(size=(2, 17, 32)).astype("float32")
    with torch.no_grad():
        expected = block.eval()(torch.tensor(tokens)).numpy()
    assert_close(ours.get_layer("decoder_block_1")(tokens), expected)

    torch.save({"model": state, "epoch": 1}, tmp_path / "authors.pth")
    again = from_pretrained(tmp_path / "authors.pth", kind="pretrainer", num_heads=3)
    assert again.get_config()["decoder_num_heads"] == 16 and again.normalize_targets
    inputs, _ = inputs_for(ours)
    assert_close(again(inputs), numpy(ours(inputs)), 1e-6)
    assert from_pretrained(tmp_path / "authors.pth", num_heads=3).num_layers == 2  # the encoder alone
