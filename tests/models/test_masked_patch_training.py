"""Training by masked patch prediction: losses, gradients, and what is learned."""

import keras
import numpy as np
import pytest
from reference.comparing import arrays, numpy, randomize
from reference.small import SMALL

from keras_vit.models.pretraining.masked_patch_predictor import MaskedPatchPredictor

pytestmark = [pytest.mark.tensorflow_only("training is"), pytest.mark.usefixtures("eager")]
ENCODER = {**SMALL, "num_classes": None}
CROSSENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
LOSSES = {"mean_color": CROSSENTROPY, "downsized": CROSSENTROPY, "pixels": keras.losses.MeanSquaredError()}


def masked(predictor, batches, seed=0):
    """Batches of images with corrupted patches, their targets and weights."""
    import tensorflow as tf

    from keras_vit.data.augmentation.masking import masked_patch_batches

    if isinstance(batches, np.ndarray):
        batches = tf.data.Dataset.from_tensors(batches)
    return masked_patch_batches(batches, predictor.patch_targets, seed=seed)


@pytest.mark.parametrize(
    "target", ["mean_color", pytest.param("downsized", marks=pytest.mark.slow), "pixels"]
)
def test_the_loss_is_the_mean_over_the_corrupted_patches(target):
    predictor = randomize(MaskedPatchPredictor({**ENCODER, "image_size": 32}, target))
    images = np.random.default_rng(0).uniform(-1, 1, (3, 32, 32, 3)).astype("float32")
    inputs, targets, weights = next(iter(masked(predictor, images)))
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


@pytest.mark.slow
@pytest.mark.parametrize("target", LOSSES)
def test_fit_predicts_better_than_from_the_position_alone(target):
    import tensorflow as tf
    from sklearn.datasets import load_digits

    images = (load_digits().images[..., np.newaxis] / 8 - 1).astype("float32")
    train, test = images[:1400], images[1400:]
    sizes = {"image_size": 8, "patch_size": 2, "hidden_size": 32, "num_layers": 1, "num_heads": 4}
    predictor = MaskedPatchPredictor({**ENCODER, **sizes, "in_channels": 1}, target)
    predictor.compile(keras.optimizers.Adam(3e-3), LOSSES[target])
    start = arrays(predictor.encoder)
    batches = tf.data.Dataset.from_tensor_slices(train).shuffle(1400, seed=0).repeat().batch(64).take(400)
    predictor.fit(masked(predictor, batches), shuffle=False, verbose=0)
    for path, weights in arrays(predictor.encoder).items():
        assert np.abs(weights - start[path]).max() > 1e-3 or path.endswith("key/bias"), path

    inputs, targets, weights = next(iter(masked(predictor, test, seed=1)))
    loss = predictor.evaluate(x=inputs, y=targets, sample_weight=weights, verbose=0)
    seen, expected = (numpy(predictor.patch_targets(images)) for images in (train, test))
    if target == "pixels":
        baseline = np.square(expected - seen.mean(axis=0)).mean()
    else:
        frequencies = np.stack([(seen == color).mean(axis=0) + 1e-4 for color in range(8)], axis=-1)
        frequencies = frequencies / frequencies.sum(axis=-1, keepdims=True)
        frequencies = np.broadcast_to(frequencies, (*expected.shape, 8))
        baseline = -np.log(np.take_along_axis(frequencies, expected[..., np.newaxis], -1)).mean()
    assert loss < 0.98 * baseline
