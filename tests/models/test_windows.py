"""Images of any size in windows: the same as one window where one suffices, and memory by the window."""

import functools
import gc
import tracemalloc

import numpy as np
import pytest
from made.sampling import some
from made.tables import by_table
from made.trained import photograph
from reference.comparing import assert_close, numpy, randomize
from reference.small import NEWER, SMALL

from keras_vit import ImageSegmenter, VisionTransformer, dense_features, from_pretrained
from keras_vit.models import windows

ENCODER = {**SMALL, "num_classes": None}
ANY = {**ENCODER, "image_size": (None, None), "position_embedding": "none", "rotary": "dinov3"}


@functools.cache  # Each compiles its functions once.
def encoder(any_size=False):
    return randomize(VisionTransformer(**(ANY if any_size else ENCODER)))


@functools.cache
def segmenter(any_size=False):
    return randomize(ImageSegmenter(VisionTransformer(**(ANY if any_size else ENCODER)), 5))


def photo(*shape):
    return np.random.default_rng(0).integers(0, 256, (*shape, 3)).astype("uint8")


def test_an_image_of_one_window_has_the_models_own_map():
    model, image = segmenter(), photo(16, 16)
    expected = numpy(model(model.preprocessing(image)))[0].argmax(-1)
    for whole in (False, True):
        (found,) = model.segment(image, whole=whole)
        np.testing.assert_array_equal(found, expected)


def test_windows_without_overlap_are_computed_alone():
    model, image = segmenter(), photo(32, 48)
    (found,) = model.segment(image, overlap=0.0, batch_size=2)
    for top in (0, 16):
        for left in (0, 16, 32):
            part = np.s_[top : top + 16, left : left + 16]
            np.testing.assert_array_equal(found[part], model.segment(image[part])[0])


def test_whole_images_are_computed_together_and_their_classes_resized_one_by_one(monkeypatch):
    model, images = segmenter(), [photo(20, 33), photo(40, 21), photo(9, 9)]
    logits = model.predict_on_batch(np.concatenate([model.preprocessing(image) for image in images]))
    monkeypatch.setattr(windows, "_AT_ONCE", 1)
    maps = model.segment(images, whole=True, batch_size=2)
    for image, each, found in zip(images, logits, maps, strict=True):
        expected = windows.resized_outputs(each, image.shape[:2])
        np.testing.assert_array_equal(found, expected.argmax(-1))


@pytest.mark.slow
def test_a_model_for_any_size_computes_windows_of_a_given_size():
    model, image = segmenter(any_size=True), photo(16, 32)
    (found,) = model.segment(image, window=(16, 16), overlap=0.0)
    expected = np.concatenate([model.segment(image[:, i : i + 16])[0] for i in (0, 16)], axis=1)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow  # It measures the memory of a process, which other tests share.
def test_memory_does_not_grow_with_the_image(monkeypatch, request):
    request.addfinalizer(functools.partial(gc.set_threshold, *gc.get_threshold()))
    gc.set_threshold(500)  # The tests' own is high, so that garbage of all windows would count.
    model = segmenter()
    monkeypatch.setattr(windows, "_IN_MEMORY", 2**14)
    monkeypatch.setattr(model, "predict_on_batch", lambda batch: np.zeros((*batch.shape[:3], 50), "float32"))

    def peak(height, width):
        image = np.zeros((height, width, 3), "uint8")
        gc.collect()
        tracemalloc.start()
        model.segment(image, batch_size=1)
        traced = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return traced - 16 * height * width  # in float32, and its map

    # The least of several, since other threads of the process allocate memory, too.
    small, large = (min(peak(*size) for _ in range(5)) for size in ((48, 48), (96, 160)))
    assert large < 1.2 * small


def test_windows_above_each_other_and_side_by_side_have_the_mean_of_their_logits():
    model, image = segmenter(), photo(40, 33)
    padded = np.pad(model.preprocessing.normalize(image), ((0, 0), (0, 7), (0, 0)))
    parts = [np.s_[top : top + 16, left : left + 16] for top in range(0, 25, 8) for left in range(0, 25, 8)]
    total, count = np.zeros((40, 40, 5)), np.zeros((40, 40, 1))
    for part, logits in zip(parts, numpy(model(np.stack([padded[part] for part in parts])))):
        total[part] += logits
        count[part] += 1
    expected = (total / count).argmax(-1)[:, :33]
    assert (model.segment(image, batch_size=3)[0] == expected).mean() > 0.999


def test_dense_features_are_the_tokens_of_the_blocks():
    model, image = encoder(), photo(16, 16)
    (found,) = dense_features(model, image, blocks=(0, 1))
    stages = ["encoder_block_0", "tokens"]
    grids = model.feature_extractor(stages, grid=True)(model.preprocessing(image))
    first = model.get_layer("encoder_norm")(grids["encoder_block_0"])
    assert_close(found, np.concatenate([numpy(first)[0], numpy(grids["tokens"])[0]], axis=-1))


def test_dense_features_of_a_model_of_one_size_are_those_of_the_whole_image():
    model, image = encoder(), photo(20, 33)
    dynamic = VisionTransformer(**{**ENCODER, "image_size": (None, None), "position_grid": (2, 2)})
    dynamic.set_weights(model.get_weights())
    for options in ({}, {"size": (24, 40)}, {"window": (8, 16), "overlap": 0.5}):
        computed, expected = (dense_features(each, image, **options) for each in (model, dynamic))
        assert_close(computed[0], expected[0], 1e-6)
    window = dense_features(model, image, window=(16, 16))[0]
    assert np.abs(window - dense_features(model, image)[0]).max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", NEWER)
def test_dense_features_at_the_size_of_a_model_are_its_tokens(name):
    model = randomize(
        VisionTransformer(**{**ENCODER, **NEWER[name], "num_classes": None, "image_size": (16, 24)})
    )
    image = photo(16, 24)
    grids = model.feature_extractor("tokens", grid=True)(model.preprocessing(image))
    assert_close(dense_features(model, image)[0], numpy(grids["tokens"])[0], 1e-5)


@pytest.mark.slow
def test_dense_features_of_trained_weights_at_224_pixels_are_nearly_those_of_stored_positions(trained_folder):
    """Their mean cosine was 0.996 for this photograph, and 0.74 in windows of 224 pixels."""
    image = photograph("cat")
    dynamic, model = (from_pretrained(trained_folder, image_size=size) for size in ((None, None), 224))
    expected = normalized(dense_features(dynamic, image)[0])
    assert (normalized(dense_features(model, image)[0]) * expected).sum(-1).mean() > 0.99
    assert (normalized(dense_features(model, image, window=224)[0]) * expected).sum(-1).mean() < 0.85


def normalized(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def test_dense_features_without_overlap_are_those_of_each_window():
    model, image = encoder(), photo(16, 32)
    (computed,) = dense_features(model, image, window=16, overlap=0.0)
    halves = dense_features(model, [image[:, :16], image[:, 16:]])
    assert_close(computed, np.concatenate(halves, axis=1))


def test_dense_features_of_a_model_with_relative_positions_come_from_windows_of_its_size():
    model, image = VisionTransformer(**{**ENCODER, "relative_positions": True}), photo(16, 32)
    (computed,) = dense_features(model, image, overlap=0.0)
    halves = dense_features(model, [image[:, :16], image[:, 16:]])
    assert_close(computed, np.concatenate(halves, axis=1))
    with pytest.raises(ValueError, match="the windows of this model have its size"):
        dense_features(model, image, window=(8, 8))


@pytest.mark.parametrize("size, grid", some([(None, (3, 5)), ((32, 16), (4, 2))], 2))
def test_a_model_for_any_size_computes_the_whole_image(size, grid):
    model = encoder(any_size=True)
    assert dense_features(model, photo(20, 33), size=size)[0].shape == (*grid, 12)


@by_table(
    "compute, any_size, options, message",
    [
        (ImageSegmenter.segment, False, {"window": 16}, r"its size \(16, 16\); got window=\(16, 16\)"),
        (ImageSegmenter.segment, True, {"window": (12, 16)}, "expected a window divisible by"),
        (ImageSegmenter.segment, True, {"whole": True}, "whole=True"),
        (ImageSegmenter.segment, False, {"overlap": 1.0}, r"overlap must be a number in \[0, 1\); got 1.0"),
        (ImageSegmenter.segment, False, {"batch_size": 0}, "batch_size must be a positive int; got 0"),
        (dense_features, False, {"overlap": 1.0}, r"overlap must be a number in \[0, 1\); got 1.0"),
        (dense_features, False, {"batch_size": 0}, "batch_size must be a positive int; got 0"),
    ],
)
def test_wrong_options_are_refused(compute, any_size, options, message):
    with pytest.raises(ValueError, match=message):
        compute(segmenter(any_size), photo(32, 32), **options)


def test_nan_is_refused():
    model = ImageSegmenter(VisionTransformer(**ENCODER), 5)
    model.get_layer("head").bias.assign([np.nan] * 5)
    for whole in (False, True):
        with pytest.raises(ValueError, match="the model computes NaN or infinity"):
            model.segment(photo(16, 16), whole=whole)
