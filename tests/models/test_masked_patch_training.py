"""Training by masked patch prediction: losses, gradients, and what is learned."""

import os

import keras
import numpy as np
import pytest
from reference.comparing import arrays, numpy, randomise
from reference.small import SMALL

from keras_vit.models.masked_patch import MaskedPatchPredictor

pytestmark = pytest.mark.tensorflow_only("training is")
ENCODER = {**SMALL, "num_classes": None}
TARGETS = ("mean_color", "downsized", "pixels")
LOSSES = {
    "mean_color": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    "downsized": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    "pixels": keras.losses.MeanSquaredError(),
}


def made(target):
    """A predictor with random weights for 16 patches, and images for it."""
    predictor = randomise(MaskedPatchPredictor({**ENCODER, "image_size": 32}, target))
    return predictor, np.random.default_rng(0).uniform(-1, 1, (3, 32, 32, 3)).astype("float32")


def masked(predictor, images, seed=0, **options):
    """The images in one batch, with what is corrupted, to be predicted, and its weights."""
    import tensorflow as tf

    from keras_vit.data.masking import masked_patch_batches

    batches = masked_patch_batches(
        tf.data.Dataset.from_tensors(images), predictor.patch_targets, seed=seed, **options
    )
    return next(iter(batches))


@pytest.mark.parametrize("target", TARGETS)
def test_the_loss_is_the_mean_over_the_corrupted_patches(target):
    predictor, images = made(target)
    inputs, targets, weights = masked(predictor, images)
    predictor.compile(loss=LOSSES[target])
    loss = predictor.evaluate(inputs, targets, sample_weight=weights, verbose=0)
    predictions = numpy(predictor(inputs)).astype("float64")
    if target == "pixels":
        losses = np.square(predictions - numpy(targets)).mean(axis=-1)
    else:
        chosen = np.take_along_axis(predictions, numpy(targets)[..., np.newaxis], -1)[..., 0]
        losses = np.log(np.exp(predictions).sum(axis=-1)) - chosen
    corrupted = numpy(weights) > 0
    assert corrupted.sum() == 3 * 8 * losses[0, 0].size
    assert loss == pytest.approx(losses[corrupted].mean(), rel=1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_gradients_reach_every_weight_and_the_mask_token_where_it_stands(target):
    import tensorflow as tf

    predictor, images = made(target)
    inputs, targets, weights = masked(predictor, images)
    untouched = {"images": images, "sources": np.tile(np.arange(16), (3, 1))}
    for shown in (inputs, untouched):
        with tf.GradientTape() as tape:
            loss = LOSSES[target](targets, predictor(shown), weights)
        gradients = tape.gradient(loss, [weight.value for weight in predictor.trainable_weights])
        for weight, gradient in zip(predictor.trainable_weights, gradients):
            if weight.path.endswith("key/bias"):  # softmax takes it out again
                continue
            hidden = weight.path.startswith("mask_token") and shown is untouched
            assert (np.abs(tf.convert_to_tensor(gradient)).max() == 0) == hidden, weight.path


def digits():
    """Scanned digits to train on and others, as a model reads them."""
    from sklearn.datasets import load_digits

    images = (load_digits().images[..., np.newaxis] / 8 - 1).astype("float32")
    return images[:1400], images[1400:]


def fitted(target, steps):
    """A predictor trained on scanned digits, the encoder's weights before, and losses on other digits."""
    import tensorflow as tf

    from keras_vit.data.masking import masked_patch_batches

    train, test = digits()
    sizes = {"image_size": 8, "patch_size": 2, "hidden_size": 32, "num_layers": 1, "num_heads": 4}
    predictor = MaskedPatchPredictor({**ENCODER, **sizes, "in_channels": 1}, target)
    predictor.compile(keras.optimizers.Adam(3e-3), LOSSES[target])
    batches = tf.data.Dataset.from_tensor_slices(train).shuffle(1400, seed=0).repeat().batch(64).take(steps)
    inputs, targets, weights = masked(predictor, test, seed=1)
    held_out = {"x": inputs, "y": targets, "sample_weight": weights, "verbose": 0}
    start, before = arrays(predictor.encoder), predictor.evaluate(**held_out)
    predictor.fit(masked_patch_batches(batches, predictor.patch_targets, seed=0), shuffle=False, verbose=0)
    return predictor, start, before, predictor.evaluate(**held_out)


@pytest.mark.parametrize("target", TARGETS if "FULL" in os.environ else ["downsized"])
def test_fit_trains_the_encoder(target):
    predictor, start, before, after = fitted(target, steps=60)
    assert after < 0.8 * before
    for path, weights in arrays(predictor.encoder).items():
        assert np.isfinite(weights).all(), path
        assert np.abs(weights - start[path]).max() > 1e-3 or path.endswith("key/bias"), path


@pytest.mark.parametrize("target", TARGETS if "FULL" in os.environ else ["pixels"])
def test_it_predicts_better_than_the_place_alone_tells(target):
    predictor, _, _, after = fitted(target, steps=400)
    seen, expected = (numpy(predictor.patch_targets(images)) for images in digits())
    if target == "pixels":
        by_place = np.square(expected - seen.mean(axis=0)).mean()
    else:
        shares = np.stack([(seen == color).mean(axis=0) + 1e-4 for color in range(8)], axis=-1)
        shares = np.broadcast_to(shares / shares.sum(axis=-1, keepdims=True), (*expected.shape, 8))
        by_place = -np.log(np.take_along_axis(shares, expected[..., np.newaxis], -1)).mean()
    assert after < 0.98 * by_place
