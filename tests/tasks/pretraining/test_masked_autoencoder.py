"""Masked autoencoders: what encoder and decoder read, the loss, training, and files."""

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made.sampling import some
from made.tables import by_table
from reference.comparing import (
    arrays,
    assert_close,
    assert_same_arrays,
    numpy,
    randomize,
    without_initial_values,
)
from reference.small import ENCODERS, NEWER, SMALL

from keras_vit import MaskedAutoencoder, VisionTransformer
from keras_vit.training import SGD

ON_JAX = keras.backend.backend() == "jax"
ENCODER = {**SMALL, "num_classes": None, "image_size": 32, "num_layers": 1}
DECODER = {"decoder_hidden_size": 16, "decoder_num_layers": 1, "decoder_num_heads": 2}
KINDS = {name: options for name, options in ENCODERS.items() if name not in ("any_size", "DINOv3")}
KINDS["no_positions"] = {"position_embedding": "none"}


def made(encoder=(), **options):
    """A masked autoencoder with random weights around a small encoder."""
    with without_initial_values():
        model = MaskedAutoencoder({**ENCODER, **dict(encoder)}, **{**DECODER, **options})
    return randomize(model)


def inputs_for(model, batch=3, seed=0):
    rng, encoder = np.random.default_rng(seed), model.encoder
    images = rng.uniform(-1, 1, (batch, *encoder.image_size, encoder.in_channels)).astype("float32")
    order = np.argsort(rng.random((batch, model.num_patches)), axis=1).astype("int32")
    return {"images": images, "order": order}


@pytest.fixture(scope="module")
def model():
    return made()


# What is computed ---------------------------------------------------------------------------------


@given(seed=st.integers(0, 1000))
def test_predictions_depend_on_the_visible_patches_alone_in_any_order(model, seed):
    inputs, rng = inputs_for(model, seed=seed), np.random.default_rng(seed)
    order, visible = inputs["order"], model.num_visible
    groups = [rng.permuted(part, axis=1) for part in (order[:, :visible], order[:, visible:])]
    hidden = inputs["images"].reshape(3, 4, 8, 4, 8, 3).copy()
    for image, masked in zip(hidden, order[:, visible:]):
        image[masked // 4, :, masked % 4] = rng.uniform(-1, 1, (len(masked), 8, 8, 3))
    changed = {"images": hidden.reshape(3, 32, 32, 3), "order": np.concatenate(groups, axis=1)}
    expected = model.predict_on_batch(inputs)
    assert_close(model.predict_on_batch(changed), expected, 1e-5)
    other = {**inputs, "order": order[:, ::-1]}
    assert np.abs(model.predict_on_batch(other) - expected).max() > 0.1


@pytest.mark.parametrize("kind", some(KINDS, 3))
def test_without_attention_the_tokens_are_the_encoders_of_the_visible_patches(kind):
    model = made(KINDS[kind])
    inputs, prefix = inputs_for(model, 2), model.encoder.num_prefix_tokens
    out = model.encoder.get_layer("encoder_block_0").attention.out
    for weight in out.weights:
        weight.assign(0 * weight.value)
    read = keras.Model(model.input, model.get_layer("decoder_embedding").input)
    expected = numpy(model.encoder.feature_extractor("tokens")(inputs["images"])["tokens"])
    visible = inputs["order"][:, : model.num_visible, np.newaxis]
    patches = np.take_along_axis(expected[:, prefix:], visible, axis=1)
    assert_close(read(inputs), np.concatenate([expected[:, :prefix], patches], axis=1), 1e-5)


@by_table(
    "patches, fraction, visible", [(16, 0.75, 4), (16, 0.9, 1), (16, 0.99, 1), (16, 1e-20, 15), (4, 0.5, 2)]
)
def test_the_fraction_determines_the_visible_patches(patches, fraction, visible):
    size = 8 * int(patches**0.5)
    model = MaskedAutoencoder({**ENCODER, "image_size": size}, **DECODER, mask_fraction=fraction)
    assert (model.num_patches, model.num_visible) == (patches, visible)


def test_normalized_targets_have_mean_0_and_variance_1(rng):
    images = rng.uniform(-1, 1, (2, 32, 32, 3)).astype("float32")
    plain, normal = (
        numpy(made(normalize_targets=value).patch_targets(images)).astype("float64")
        for value in (False, True)
    )
    np.testing.assert_array_equal(plain[:, 1], images[:, :8, 8:16].reshape(2, -1))
    expected = (plain - plain.mean(-1, keepdims=True)) / np.sqrt(plain.var(-1, ddof=1, keepdims=True) + 1e-6)
    assert_close(normal, expected, 1e-5)


def test_targets_of_patches_of_one_value_are_finite():
    model = made({"image_size": 4, "patch_size": 1, "in_channels": 1})
    targets = numpy(model.patch_targets(np.ones((1, 4, 4, 1), "float32")))
    np.testing.assert_array_equal(targets, 0)


# The loss -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize_targets, weights", some([(True, None), (False, [1.0, 0.0, 3.0])], 2))
def test_the_loss_is_the_mean_over_the_masked_patches(normalize_targets, weights):
    model = made(normalize_targets=normalize_targets)
    inputs = inputs_for(model)
    losses = np.square(numpy(model(inputs)) - numpy(model.patch_targets(inputs["images"]))).mean(axis=-1)
    masked = np.take_along_axis(losses, inputs["order"][:, model.num_visible :], axis=1)
    model.compile(SGD(0.1), run_eagerly=not ON_JAX)
    given = None if weights is None else np.array(weights, "float32")
    found = model.evaluate(inputs, np.zeros(3), sample_weight=given, verbose=0)
    assert found == pytest.approx(np.average(masked.mean(axis=1), weights=weights), rel=1e-5)


def test_mixed_precision_computes_the_decoder_in_16_bits():
    model = made({"dtype": "mixed_bfloat16"})
    assert model.get_layer("decoder_block_0").compute_dtype == "bfloat16"


@pytest.mark.slow
def test_fit_predicts_better_than_the_mean_image():
    from sklearn.datasets import load_digits

    images = (load_digits().images[..., np.newaxis] / 8 - 1).astype("float32")
    keras.utils.set_random_seed(0)
    encoder = VisionTransformer(8, 2, 64, num_layers=2, mlp_dim=128, num_heads=4, in_channels=1)
    model = MaskedAutoencoder(encoder, 48, 1, 4, mask_fraction=0.5, normalize_targets=False)
    model.compile(keras.optimizers.Adam(2e-3))
    for epoch in range(40):
        order = inputs_for(model, 1400, seed=epoch)["order"]
        model.fit({"images": images[:1400], "order": order}, batch_size=32, verbose=0)
    order = inputs_for(model, len(images) - 1400)["order"]
    loss = model.evaluate({"images": images[1400:], "order": order}, verbose=0)
    assert loss < 0.7 * np.square(images[1400:] - images[:1400].mean(axis=0)).mean()


# Pictures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize_targets", [True, False])
def test_right_predictions_reconstruct_the_image(normalize_targets, monkeypatch):
    model = made({"image_size": (16, 24), "patch_size": (4, 8)}, normalize_targets=normalize_targets)
    images = inputs_for(model)["images"]
    monkeypatch.setattr(model, "predict_on_batch", lambda x: numpy(model.patch_targets(x["images"])))
    found = model.reconstruct(images, seed=1)
    np.testing.assert_array_equal(found["image"], model.encoder.preprocessing.colors(images))
    np.testing.assert_allclose(found["prediction"], found["image"], atol=1e-5)
    gray = (found["visible patches"] == 0.5).all(axis=-1)
    assert gray.mean() == pytest.approx(1 - model.num_visible / model.num_patches)
    np.testing.assert_array_equal(found["visible patches"][~gray], found["image"][~gray])
    again = model.reconstruct(images, seed=2)["visible patches"]
    assert (again != found["visible patches"]).any()


# The encoder --------------------------------------------------------------------------------------


def test_the_encoder_is_shared_and_becomes_a_classifier(model):
    encoder = VisionTransformer(**ENCODER)
    assert MaskedAutoencoder(encoder, **DECODER).encoder is encoder
    classifier = model.to_vision_transformer(pooling="gap", norm_after_pooling=True, num_classes=7)
    assert classifier.class_token and classifier.output_shape == (None, 7)
    found, expected = arrays(classifier), arrays(model.encoder)
    for path in expected.keys() & found.keys():
        np.testing.assert_array_equal(found[path], expected[path])
    assert expected.keys() - found.keys() == {"encoder_norm/gamma", "encoder_norm/beta"}
    np.testing.assert_array_equal(found["pooled_norm/gamma"], 1)
    assert not numpy(classifier.get_layer("head").kernel).any(), "its head is new"
    classifier.get_layer("patch_embedding").bias.assign(np.full(12, 7))
    assert_same_arrays(arrays(model.encoder), expected)  # of which the classifier has copies


# Messages -----------------------------------------------------------------------------------------


@by_table(
    "encoder, options, message",
    [
        ({"num_classes": 5}, {}, "without layers after its tokens; got {'num_classes': 5}"),
        ({"image_size": (None, None), "position_grid": (4, 4)}, {}, r"one image size; got .*\(None, None\)"),
        (NEWER["DINOv3-S"], {}, "positions are added to its tokens; got rotary="),
        ({"relative_positions": True, "position_embedding": "none"}, {}, "got relative_positions=True"),
        ({"image_size": 8}, {}, "two patches or more; got 1"),
        ({"causal": True, "class_token": False, "pooling": "gap"}, {}, "all patches; got causal=True"),
        ({}, {"mask_fraction": 1.0}, r"mask_fraction must be a number in \(0, 1\); got 1.0"),
        ({}, {"decoder_num_layers": 0}, "decoder_num_layers must be .*; got 0"),
        ({}, {"decoder_num_heads": 3}, "decoder_num_heads that divides decoder_hidden_size .*; got 3"),
        ({}, {"decoder_hidden_size": 10, "decoder_num_heads": 2}, "in multiples of 4, at least 8; got 10"),
        ({}, {"normalize_targets": "yes"}, "normalize_targets must be .*; got 'yes'"),
    ],
)
def test_what_cannot_be_trained_is_refused(encoder, options, message):
    with pytest.raises(ValueError, match=message):
        MaskedAutoencoder({**ENCODER, **encoder}, **{**DECODER, **options})
