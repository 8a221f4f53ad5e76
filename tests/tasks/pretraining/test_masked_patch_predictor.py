import keras
import numpy as np
import pytest
from made.sampling import some
from made.tables import by_table
from reference.comparing import assert_close, numpy, randomize
from reference.small import ENCODERS, HYBRID, NO_TRANSFORMER, SMALL

from keras_vit import Preprocessing, VisionTransformer
from keras_vit.models.vit.geometry import patch_pixels
from keras_vit.tasks.pretraining.masked_patch_predictor import MaskedPatchPredictor, patch_targets

ENCODER = {**SMALL, "num_classes": None}
KINDS = {
    **ENCODERS,
    "distillation": {"distillation": True, "layer_scale": 0.1},
    "other_grid": {"position_grid": (3, 3)},
}

every_kind = pytest.mark.parametrize("kind", some(KINDS, 4))
KINDS_AND_TARGETS = [
    *[("rectangle", "mean_color"), ("registers", "downsized"), ("hybrid", "pixels")],
    *[(kind, "pixels") for kind in KINDS if kind != "hybrid"],
]
few_kinds_and_targets = pytest.mark.parametrize("kind, target", some(KINDS_AND_TARGETS, 5))


def random_predictor(target="mean_color", **options):
    """A predictor with random weights around a small encoder, changed by the options."""
    return randomize(MaskedPatchPredictor(VisionTransformer(**{**ENCODER, **options}), target))


def inputs_for(predictor, batch=2, sources=None):
    """Random images, by default with nothing corrupted."""
    encoder, rng = predictor.encoder, np.random.default_rng(0)
    size = [side or 16 for side in encoder.image_size]
    images = rng.uniform(-1, 1, (batch, *size, encoder.in_channels)).astype("float32")
    rows, columns = (side // p for side, p in zip(size, patch_pixels(encoder)))
    own = np.tile(np.arange(rows * columns, dtype="int32"), (batch, 1))
    return {"images": images, "sources": own if sources is None else np.array(sources, "int32")}


# Corrupted inputs ---------------------------------------------------------------------------------


@every_kind
def test_without_corruption_predictions_come_from_the_encoders_tokens(kind):
    predictor = random_predictor(**KINDS[kind])
    encoder = predictor.encoder
    inputs = inputs_for(predictor)
    tokens = numpy(encoder.feature_extractor("tokens")(inputs["images"])["tokens"])
    tokens = tokens[:, encoder.num_prefix_tokens :]
    assert tokens.shape[1] == inputs["sources"].shape[1]
    read = keras.Model(predictor.input, predictor.get_layer("prediction").input)
    assert_close(read(inputs), tokens, 1e-6)
    kernel, bias = (numpy(w) for w in predictor.get_layer("prediction").weights)
    assert_close(predictor(inputs), tokens @ kernel + bias, 1e-5)


def with_patches_from(images, sources):
    """The images with their 8×8 patches, two per row, copied from their sources."""
    copied = images.copy()
    for image, row in enumerate(sources):
        for patch, source in enumerate(row):
            (i, j), (k, m) = ((8 * (p // 2), 8 * (p % 2)) for p in (patch, source))
            copied[image, i : i + 8, j : j + 8] = images[image, k : k + 8, m : m + 8]
    return copied


@pytest.mark.parametrize("kind", some(["class_token", "sincos2d", "any_size"], 3))
def test_the_vector_of_another_patch_has_the_effect_of_its_pixels(kind):
    predictor = random_predictor(**KINDS[kind])
    sources = [[2, 1, 2, 0], [3, 3, 1, 3]]
    inputs = inputs_for(predictor)
    moved = inputs | {"images": with_patches_from(inputs["images"], sources)}
    corrupted = numpy(predictor(inputs | {"sources": np.array(sources, "int32")}))
    assert_close(predictor(moved), corrupted, 1e-5)
    assert np.abs(corrupted - numpy(predictor(inputs))).max() > 0.1


def test_the_mask_token_hides_the_patch_and_keeps_its_position():
    predictor = random_predictor()
    inputs = inputs_for(predictor, sources=[[0, -1, 2, -1]] * 2)
    expected = numpy(predictor(inputs))
    other = inputs["images"].copy()
    other[:, :, 8:] = 0.5  # patches 1 and 3
    assert_close(predictor(inputs | {"images": other}), expected, 1e-6)
    assert np.abs(expected[:, 1] - expected[:, 3]).max() > 0.1
    # A patch whose vector equals the token, here by the bias, has the same effect.
    (token,) = predictor.get_layer("mask_token").weights
    predictor.encoder.get_layer("patch_embedding").bias.assign(numpy(token)[0, 0])
    black = inputs["images"].copy()
    black[:, :, 8:] = 0
    assert_close(predictor(inputs_for(predictor) | {"images": black}), numpy(predictor(inputs)), 1e-5)


# Targets ------------------------------------------------------------------------------------------


def expected_colors(images, patch, side, preprocessing):
    """Repeat each pixel so that the parts of a patch have whole pixels, and average them."""
    pixels = images.astype("float64") * preprocessing.std + preprocessing.mean
    found = []
    for image in pixels:
        for i in range(0, image.shape[0], patch[0]):
            for j in range(0, image.shape[1], patch[1]):
                fine = image[i : i + patch[0], j : j + patch[1]].repeat(side, 0).repeat(side, 1)
                for y in range(side):
                    for x in range(side):
                        ys, xs = (slice(at * size, (at + 1) * size) for at, size in zip((y, x), patch))
                        levels = [min(int(mean * 8), 7) for mean in fine[ys, xs].mean(axis=(0, 1))]
                        found.append(int("".join(map(str, levels)), 8))
    return np.array(found).reshape(len(images), -1, side * side)


@pytest.mark.parametrize("patch", [(8, 4), (6, 10), (1, 1)])
@pytest.mark.parametrize("channels", [1, 3])
def test_colors_equal_a_computation_patch_by_patch(patch, channels, rng):
    mean, std = ((0.4, 0.5, 0.6)[:channels], (0.2, 0.3, 0.25)[:channels])
    preprocessing = Preprocessing(None, mean=mean, std=std)
    colors = rng.uniform(0, 0.8, (2, 2, 3, channels)).repeat(patch[0], 1).repeat(patch[1], 2)
    colors += rng.uniform(0, 0.2, colors.shape)
    colors[0, : patch[0], : patch[1]] = 1.0  # white belongs to the highest level
    colors[1, : patch[0], : patch[1]] = 0.0
    images = ((colors - mean) / std).astype("float32")
    for target, side in (("mean_color", 1), ("downsized", 4)):
        expected = expected_colors(images, patch, side, preprocessing)
        expected = expected[..., 0] if side == 1 else expected
        targets = patch_targets(images, patch, target, preprocessing)
        assert keras.backend.standardize_dtype(targets.dtype) == "int32"
        np.testing.assert_array_equal(numpy(targets), expected)
        assert expected.max() == 8**channels - 1
        assert len(np.unique(expected)) > 4
    pixels = numpy(patch_targets(images, patch, "pixels", preprocessing))
    np.testing.assert_array_equal(pixels[:, 1], images[:, : patch[0], patch[1] : 2 * patch[1]].reshape(2, -1))


@few_kinds_and_targets
def test_there_is_a_prediction_for_each_target(kind, target):
    predictor = MaskedPatchPredictor({**ENCODER, **KINDS[kind]}, target)
    inputs = inputs_for(predictor)
    targets = numpy(predictor.patch_targets(inputs["images"]))
    output = predictor(inputs)
    assert output.shape == (*targets.shape, 512) if target != "pixels" else targets.shape
    assert targets.shape[1] == inputs["sources"].shape[1]
    assert not numpy(output).any(), "it starts at zero"
    preprocessing = predictor.encoder.preprocessing
    expected = patch_targets(inputs["images"], patch_pixels(predictor.encoder), target, preprocessing)
    np.testing.assert_array_equal(targets, numpy(expected))


# Training -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.tensorflow_only("training is")
def test_fit_predicts_better_than_from_the_position_alone(eager_once):
    import tensorflow as tf
    from sklearn.datasets import load_digits

    from keras_vit.data.augmentation.masking import masked_patch_batches

    train, test = np.split((load_digits().images[..., np.newaxis] / 8 - 1).astype("float32"), [1400])
    sizes = {"image_size": 8, "patch_size": 2, "hidden_size": 32, "num_layers": 1, "num_heads": 4}
    predictor = MaskedPatchPredictor({**ENCODER, **sizes, "in_channels": 1}, "pixels")
    predictor.compile(keras.optimizers.Adam(1e-2), "mse")
    batches = tf.data.Dataset.from_tensor_slices(train).shuffle(1400, seed=0).repeat().batch(64).take(400)
    predictor.fit(masked_patch_batches(batches, predictor.patch_targets, seed=0), shuffle=False, verbose=0)
    batches = tf.data.Dataset.from_tensors(test)
    loss = predictor.evaluate(masked_patch_batches(batches, predictor.patch_targets, seed=1), verbose=0)
    seen, expected = (numpy(predictor.patch_targets(images)) for images in (train, test))
    assert loss < 0.98 * np.square(expected - seen.mean(axis=0)).mean()


# The encoder --------------------------------------------------------------------------------------


def test_the_given_encoder_is_shared():
    encoder = VisionTransformer(**ENCODER)
    predictor = MaskedPatchPredictor(encoder)
    assert predictor.encoder is encoder
    own = {id(weight) for weight in predictor.weights} - {id(weight) for weight in encoder.weights}
    assert len(predictor.weights) == len(encoder.weights) + 3 == len({*map(id, predictor.weights)})
    assert own == {id(w) for part in ("mask_token", "prediction") for w in predictor.get_layer(part).weights}


@pytest.mark.parametrize("changes", [{"num_layers": 1}, {"patch_size": 4}, {"class_token": False}])
def test_an_encoder_whose_weights_do_not_fit_is_refused(changes):
    predictor = random_predictor(pooling="gap", class_token=True)
    with pytest.raises(ValueError, match="."):
        predictor.to_vision_transformer(**changes)


@by_table(
    "options, message",
    [
        ({"num_classes": 5}, "without layers after its tokens; got {'num_classes': 5}"),
        ({"representation_size": 6}, "got {'representation_size': 6}"),
        ({"pooling": "map"}, "got {'pooling': 'map'}"),
        ({"norm_after_pooling": True, "pooling": "gap"}, "got {'norm_after_pooling': True}"),
        (NO_TRANSFORMER, "got one with num_layers=None"),
        ({**HYBRID, "resnet": (1,), "image_size": 18}, r"region of \(4, 4\); got \(18, 18\)"),
    ],
)
def test_an_encoder_that_cannot_predict_patches_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MaskedPatchPredictor(VisionTransformer(**{**ENCODER, **options}))
    with pytest.raises(ValueError, match="target must be one of 'mean_color', .*; got 'color'"):
        patch_targets(np.zeros((1, 8, 8, 3)), 4, "color", Preprocessing(None))
