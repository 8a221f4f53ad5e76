import json

import keras
import numpy as np
import pytest
from made.sampling import some_on_jax
from reference.comparing import assert_close, numpy, randomise
from reference.small import HYBRID, NO_TRANSFORMER, SMALL

from keras_vit import Preprocessing, VisionTransformer
from keras_vit.models.masked_patch import MaskedPatchPredictor, patch_pixels, patch_targets

ENCODER = {**SMALL, "num_classes": None}
KINDS = {  # encoders that differ in what stands around the patches' tokens
    "class_token": {},
    "gap": {"pooling": "gap"},
    "registers": {"num_registers": 2, "prefix_positions": False},
    "distillation": {"distillation": True, "layer_scale": 0.1},
    "sincos2d": {"position_embedding": "sincos2d"},
    "rectangle": {"image_size": (16, 24), "patch_size": (4, 8)},
    "other_grid": {"position_grid": (3, 3)},
    "any_size": {"image_size": (None, None), "position_grid": (3, 3)},
    "clip": {"pre_norm": True, "activation": "quick_gelu"},
    "hybrid": {**HYBRID, "resnet": (1,), "image_size": 16},
}
TARGETS = ("mean_color", "downsized", "pixels")

every_kind = pytest.mark.parametrize("kind", some_on_jax(KINDS, 4))
KINDS_AND_TARGETS = [
    *[(kind, "pixels") for kind in KINDS],
    *[("rectangle", "mean_color"), ("registers", "downsized")],
]
every_kind_and_target = pytest.mark.parametrize("kind, target", some_on_jax(KINDS_AND_TARGETS, 5))
every_target = pytest.mark.parametrize("target", TARGETS)


def made(target="mean_color", **options):
    """A predictor with random weights around a small encoder, changed by the options."""
    return randomise(MaskedPatchPredictor(VisionTransformer(**{**ENCODER, **options}), target))


def inputs_for(predictor, batch=2, sources=None):
    """Random images, by default with nothing corrupted."""
    encoder, rng = predictor.encoder, np.random.default_rng(0)
    size = [side or 16 for side in encoder.image_size]
    images = rng.uniform(-1, 1, (batch, *size, encoder.in_channels)).astype("float32")
    rows, columns = (side // p for side, p in zip(size, patch_pixels(encoder)))
    own = np.tile(np.arange(rows * columns, dtype="int32"), (batch, 1))
    return {"images": images, "sources": own if sources is None else np.array(sources, "int32")}


# What is predicted from ---------------------------------------------------------------------------


@every_kind
def test_without_corruption_it_reads_the_encoders_tokens(kind):
    predictor = made(**KINDS[kind])
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
    """The images with their 8×8 patches, two in a row, copied in pixels."""
    moved = images.copy()
    for image, row in enumerate(sources):
        for place, source in enumerate(row):
            (i, j), (k, m) = ((8 * (p // 2), 8 * (p % 2)) for p in (place, source))
            moved[image, i : i + 8, j : j + 8] = images[image, k : k + 8, m : m + 8]
    return moved


@pytest.mark.parametrize("kind", ["class_token", "gap", "registers", "sincos2d", "any_size"])
def test_another_patchs_vector_is_as_another_patchs_pixels(kind):
    predictor = made(**KINDS[kind])
    sources = [[2, 1, 2, 0], [3, 3, 1, 3]]
    inputs = inputs_for(predictor)
    moved = inputs | {"images": with_patches_from(inputs["images"], sources)}
    corrupted = numpy(predictor(inputs | {"sources": np.array(sources, "int32")}))
    assert_close(predictor(moved), corrupted, 1e-5)
    assert np.abs(corrupted - numpy(predictor(inputs))).max() > 0.1


def test_the_mask_token_hides_the_patch_and_keeps_its_position():
    predictor = made()
    inputs = inputs_for(predictor, sources=[[0, -1, 2, -1]] * 2)
    expected = numpy(predictor(inputs))
    other = inputs["images"].copy()
    other[:, :, 8:] = 0.5  # patches 1 and 3
    assert_close(predictor(inputs | {"images": other}), expected, 1e-6)
    assert np.abs(expected[:, 1] - expected[:, 3]).max() > 0.1
    # The same as a patch whose vector is the token: here of black pixels, by the bias alone.
    embedding, (token,) = (
        predictor.encoder.get_layer("patch_embedding"),
        predictor.get_layer("mask_token").weights,
    )
    embedding.bias.assign(numpy(token)[0, 0])
    black = inputs["images"].copy()
    black[:, :, 8:] = 0
    assert_close(predictor(inputs_for(predictor) | {"images": black}), numpy(predictor(inputs)), 1e-5)


# What is predicted --------------------------------------------------------------------------------


def colors_by_hand(images, patch, cells, preprocessing):
    """Patch by patch: each pixel is repeated so that it divides into the cells, which are averaged."""
    pixels = images.astype("float64") * preprocessing.std + preprocessing.mean
    found = []
    for image in pixels:
        for i in range(0, image.shape[0], patch[0]):
            for j in range(0, image.shape[1], patch[1]):
                fine = image[i : i + patch[0], j : j + patch[1]].repeat(cells, 0).repeat(cells, 1)
                for y in range(cells):
                    for x in range(cells):
                        ys, xs = (slice(at * side, (at + 1) * side) for at, side in zip((y, x), patch))
                        levels = [min(int(mean * 8), 7) for mean in fine[ys, xs].mean(axis=(0, 1))]
                        found.append(int("".join(map(str, levels)), 8))
    return np.array(found).reshape(len(images), -1, cells * cells)


PATCHES = [pytest.param(patch) for patch in [(16, 16), (8, 4), (6, 10), (2, 3), (1, 1)]]


@pytest.mark.parametrize("patch", some_on_jax(PATCHES, 2))
@pytest.mark.parametrize("channels", [1, 3])
def test_colors_are_those_of_a_computation_patch_by_patch(patch, channels, rng):
    mean, std = ((0.4, 0.5, 0.6)[:channels], (0.2, 0.3, 0.25)[:channels])
    preprocessing = Preprocessing(None, mean=mean, std=std)
    colors = rng.uniform(0, 0.8, (2, 2, 3, channels)).repeat(patch[0], 1).repeat(patch[1], 2)
    colors += rng.uniform(0, 0.2, colors.shape)
    colors[0, : patch[0], : patch[1]] = 1.0  # white belongs to the highest level
    colors[1, : patch[0], : patch[1]] = 0.0
    images = ((colors - mean) / std).astype("float32")
    for target, cells in (("mean_color", 1), ("downsized", 4)):
        expected = colors_by_hand(images, patch, cells, preprocessing)
        expected = expected[..., 0] if cells == 1 else expected
        targets = patch_targets(images, patch, target, preprocessing)
        assert keras.backend.standardize_dtype(targets.dtype) == "int32"
        np.testing.assert_array_equal(numpy(targets), expected)
        assert expected.max() == 8**channels - 1
        assert len(np.unique(expected)) > 4


def test_pixels_are_those_of_each_patch(rng):
    images = rng.uniform(-1, 1, (2, 8, 12, 3)).astype("float32")
    targets = numpy(patch_targets(images, (4, 6), "pixels", Preprocessing(None)))
    patches = [images[:, i : i + 4, j : j + 6].reshape(2, -1) for i in (0, 4) for j in (0, 6)]
    np.testing.assert_array_equal(targets, np.stack(patches, axis=1))


@every_kind_and_target
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


@pytest.mark.tensorflow_only("shapes are the same on every backend")
def test_a_hybrids_patch_covers_what_the_stem_sees():
    predictor = MaskedPatchPredictor(
        {**ENCODER, **HYBRID, "resnet": (1, 1), "image_size": (16, 32)}, "pixels"
    )
    assert patch_pixels(predictor.encoder) == (8, 8)
    assert predictor.output_shape == (None, 8, 8 * 8 * 3)


def test_grey_images_have_fewer_colors():
    predictor = MaskedPatchPredictor({**ENCODER, "in_channels": 1})
    assert predictor.output_shape == (None, 4, 8)


# As a Keras model ---------------------------------------------------------------------------------


@every_kind_and_target
def test_a_saved_file_is_the_same_model(kind, target, tmp_path):
    predictor = made(target, **KINDS[kind])
    predictor.encoder.get_layer("encoder_block_0").trainable = False
    predictor.save(tmp_path / "predictor.keras")
    loaded = keras.saving.load_model(tmp_path / "predictor.keras", safe_mode=True)
    assert type(loaded) is MaskedPatchPredictor
    assert loaded.get_config() == predictor.get_config()
    assert not loaded.encoder.get_layer("encoder_block_0").trainable
    assert len(loaded.trainable_weights) == len(predictor.trainable_weights) < len(predictor.weights)
    inputs = inputs_for(predictor, sources=inputs_for(predictor)["sources"] // 2 - 1)
    assert_close(loaded(inputs), numpy(predictor(inputs)), 1e-6)
    assert_close(loaded.encoder(inputs["images"]), numpy(predictor.encoder(inputs["images"])), 1e-6)


def test_the_configuration_makes_the_same_again():
    predictor = MaskedPatchPredictor(ENCODER, "downsized", dtype="mixed_bfloat16", name="made")
    config = json.loads(json.dumps(predictor.get_config()))
    again = MaskedPatchPredictor.from_config(config)
    assert json.loads(json.dumps(again.get_config())) == config
    assert (again.name, again.target, again.dtype_policy.name) == ("made", "downsized", "mixed_bfloat16")
    assert again.encoder.dtype_policy.name == "mixed_bfloat16"
    output = again(inputs_for(again))
    assert keras.backend.standardize_dtype(output.dtype) == "float32"


def test_half_precision_predicts_nearly_the_same():
    exact = made()
    half = made(dtype=keras.DTypePolicy("mixed_bfloat16"))
    inputs = inputs_for(exact, sources=[[-1, 1, 0, 3]] * 2)
    assert half.get_layer("mask_token").compute_dtype == "bfloat16"
    assert_close(half(inputs), numpy(exact(inputs)), 0.1)


@every_kind_and_target
def test_no_images_are_a_batch_too(kind, target):
    predictor = made(target, **KINDS[kind])
    inputs = inputs_for(predictor)
    expected = predictor(inputs).shape
    empty = {name: x[:0] for name, x in inputs.items()}
    assert tuple(predictor(empty).shape) == (0, *expected[1:])
    assert tuple(predictor.patch_targets(empty["images"]).shape)[0] == 0


# The encoder --------------------------------------------------------------------------------------


@every_kind
def test_the_encoder_becomes_a_classifier_with_its_weights(kind):
    predictor = made(**KINDS[kind])
    images = inputs_for(predictor)["images"]
    model = predictor.to_vision_transformer(num_classes=7, class_names=[*"abcdefg"], dropout_rate=0.1)
    assert model.output_shape == (None, 7)
    assert not numpy(model(images)).any(), "its head is new"
    weights = {weight.path: numpy(weight) for weight in model.weights}
    for weight in predictor.encoder.weights:
        np.testing.assert_array_equal(weights[weight.path], numpy(weight))
    tokens = [numpy(m.feature_extractor("tokens")(images)["tokens"]) for m in (model, predictor.encoder)]
    np.testing.assert_array_equal(*tokens)
    model.get_layer("patch_embedding").kernel.assign(0 * model.get_layer("patch_embedding").kernel)
    assert numpy(predictor.encoder.get_layer("patch_embedding").kernel).any(), "a copy"


def test_the_classifier_may_pool_in_its_own_way():
    predictor = made(pooling=None)
    model = predictor.to_vision_transformer(num_classes=3, pooling="map", representation_size=6)
    assert (model.pooling, model.class_token, model.output_shape) == ("map", False, (None, 3))


def test_the_encoder_is_the_model_that_was_given():
    encoder = VisionTransformer(**ENCODER)
    predictor = MaskedPatchPredictor(encoder)
    assert predictor.encoder is encoder
    own = {id(weight) for weight in predictor.weights} - {id(weight) for weight in encoder.weights}
    assert len(predictor.weights) == len(encoder.weights) + 3 == len({*map(id, predictor.weights)})
    assert own == {id(w) for part in ("mask_token", "prediction") for w in predictor.get_layer(part).weights}


@pytest.mark.parametrize("changes", [{"num_layers": 1}, {"patch_size": 4}, {"class_token": False}])
def test_an_encoder_whose_weights_do_not_fit_is_refused(changes):
    predictor = made(pooling="gap", class_token=True)
    with pytest.raises(ValueError, match="."):
        predictor.to_vision_transformer(**changes)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_classes": 5}, "nothing behind its tokens; got {'num_classes': 5}"),
        ({"representation_size": 6}, "got {'representation_size': 6}"),
        ({"pooling": "map"}, "got {'pooling': 'map'}"),
        ({"norm_after_pooling": True, "pooling": "gap"}, "got {'norm_after_pooling': True}"),
        (NO_TRANSFORMER, "got an encoder with num_layers=None"),
        ({**HYBRID, "resnet": (1,), "image_size": 18}, r"\(18, 18\) is not divisible .* \(4, 4\) pixels"),
    ],
)
def test_an_encoder_that_cannot_predict_patches_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MaskedPatchPredictor(VisionTransformer(**{**ENCODER, **options}))


def test_an_unknown_target_is_refused():
    with pytest.raises(ValueError, match="target 'colour' is unknown; choose one of .'mean_color'"):
        MaskedPatchPredictor(ENCODER, "colour")
    with pytest.raises(ValueError, match="target 'colour' is unknown"):
        patch_targets(np.zeros((1, 8, 8, 3)), 4, "colour", Preprocessing(None))
