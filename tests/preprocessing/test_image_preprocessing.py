import dataclasses
import itertools
import json
import tracemalloc

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made.sampling import some
from made.tables import by_table
from PIL import Image
from reference.comparing import assert_close

from keras_vit import Preprocessing
from keras_vit.preprocessing import image_resizing
from keras_vit.preprocessing.inputs import as_pixels

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype("uint8")
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def bilinear(image, size):
    """Half-pixel centers, no antialiasing: each output pixel between its four neighbors."""
    image = image.astype("float64")
    for axis, new in enumerate(size):
        old = image.shape[axis]
        at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
        low = np.floor(at).astype(int)
        high, fraction = np.minimum(low + 1, old - 1), at - low
        fraction = fraction.reshape([-1 if a == axis else 1 for a in range(3)])
        image = image.take(low, axis) * (1 - fraction) + image.take(high, axis) * fraction
    return image


@by_table(
    "preprocessing, expected",
    [
        (Preprocessing(None), (PIXELS - 127.5) / 127.5),
        (Preprocessing((7, 9)), (bilinear(PIXELS, (7, 9)) - 127.5) / 127.5),
        (Preprocessing((40, 61)), (bilinear(PIXELS, (40, 61)) - 127.5) / 127.5),
        (Preprocessing(None, **IMAGENET), (PIXELS / 255 - IMAGENET["mean"]) / IMAGENET["std"]),
    ],
    ids=["own size", "smaller", "larger", "mean and std"],
)
def test_images_are_resized_and_scaled_by_the_definitions(preprocessing, expected):
    output = preprocessing(PIXELS)
    assert output.dtype == "float32"
    assert_close(output[0], expected, 1e-5)


@pytest.mark.parametrize("height, width", [(53, 90), (90, 53)])
def test_big_visions_evaluation_crop(height, width, rng):
    """`resize_small(32)|central_crop(28)`: the shorter side to 32, the aspect ratio kept, then the center."""
    image = rng.integers(0, 256, (height, width, 3)).astype("uint8")
    small = bilinear(image, [round(side * 32 / min(height, width)) for side in (height, width)])
    top, left = ((side - 28) // 2 for side in small.shape[:2])
    expected = small[top : top + 28, left : left + 28] / 127.5 - 1
    assert_close(Preprocessing(28, resize="crop", crop_fraction=28 / 32)(image)[0], expected, 1e-5)


@by_table(
    "image, antialias, expected",
    [
        ((345, 500), True, (224, 324)),  # of 324.6
        ((500, 345), False, (325, 224)),
        ((224, 337), True, (224, 337)),
    ],
)
def test_the_longer_side_before_a_crop_is_rounded_down_with_antialias(image, antialias, expected):
    """`int(size * long / short)` of torchvision and transformers."""
    prepare = Preprocessing(224, resize="crop", antialias=antialias)
    assert prepare.crop_window(*image)[0] == expected
    if keras.backend.backend() == "tensorflow":  # whose graphs have images of unknown sizes
        size, *_ = prepare.crop_window(*map(keras.ops.convert_to_tensor, image))
        assert tuple(map(int, size)) == expected


@by_table(
    "width, down, even", [(36, 2, 2), (37, 2, 2), (38, 3, 3), (39, 3, 4), (41, 4, 4), (43, 5, 6), (32, 0, 0)]
)
def test_half_a_pixel_in_the_corner_of_a_crop_is_rounded_as_asked(width, down, even):
    """`rest // 2` of big_vision and transformers, and `round(rest / 2)` of torchvision."""
    for rounding, expected in {"down": down, "even": even}.items():
        prepare = Preprocessing(32, resize="crop", antialias=True, crop_rounding=rounding)
        assert prepare.crop_window(32, width) == ((32, width), 0, expected)
        assert prepare.crop_window(width, 32) == ((width, 32), expected, 0)
        if keras.backend.backend() == "tensorflow":
            _, top, left = prepare.crop_window(*map(keras.ops.convert_to_tensor, (32, width)))
            assert (int(top), int(left)) == (0, expected)


@pytest.mark.parametrize("height, width", [(53, 90), (90, 53)])
def test_timms_squash_with_a_crop_percentage(height, width, rng):
    """`Resize((32, 48))`, whatever the aspect ratio, then `CenterCrop((28, 42))`."""
    image = rng.integers(0, 256, (height, width, 3)).astype("uint8")
    expected = bilinear(image, (32, 48))[2:30, 3:45] / 127.5 - 1
    prepare = Preprocessing((28, 42), resize="squash_crop", crop_fraction=0.875)
    assert_close(prepare(image)[0], expected, 1e-5)
    corner, size = prepare.window(height, width)
    np.testing.assert_allclose([corner, size], [[2 / 32, 3 / 48], [28 / 32, 42 / 48]])


@pytest.mark.parametrize("height, width, padded", [(53, 90, (68, 90)), (90, 53, (90, 120))])
def test_owlv2s_padding_is_black_below_and_at_the_right(height, width, padded, rng):
    """To the aspect ratio of the input, before the image is resized and normalized."""
    image = rng.integers(0, 256, (height, width, 3)).astype("uint8")
    whole = np.zeros((*padded, 3), "uint8")
    whole[:height, :width] = image
    prepare = Preprocessing((30, 40), resize="pad")
    assert_close(prepare(image)[0], bilinear(whole, (30, 40)) / 127.5 - 1, 1e-5)
    corner, size = prepare.window(height, width)
    np.testing.assert_allclose(size * (height, width), padded)
    np.testing.assert_array_equal(corner, 0)


@pytest.mark.parametrize("channels", [1, 3])
def test_colors_invert_the_scaling_within_black_and_white_and_are_gray_without_three_channels(channels, rng):
    images = rng.random((2, 8, 8, channels), "float32")
    preprocessing = Preprocessing(8, mean=(0.5, 0.4, 0.3)[:channels], std=(0.2, 0.3, 0.4)[:channels])
    expected = images if channels == 3 else np.repeat(images.mean(axis=-1, keepdims=True), 3, axis=-1)
    x = preprocessing(images)
    np.testing.assert_allclose(preprocessing.colors(x), expected, atol=1e-6)
    np.testing.assert_allclose(preprocessing.colors(x[0]), expected[0], atol=1e-6)
    np.testing.assert_array_equal(preprocessing.colors(np.full_like(x, 9)), 1)
    np.testing.assert_array_equal(preprocessing.colors(np.full_like(x, -9)), 0)


@pytest.mark.parametrize(
    "shape, size", some([((300, 5200), (20, 37)), ((101, 3), (20, 37)), ((3, 101), (24, 24))], 2)
)
def test_of_a_long_image_only_the_crop_is_resized_to_the_same_pixels(shape, size, rng, monkeypatch):
    image = rng.integers(0, 256, (*shape, 3)).astype("uint8")
    on_tensorflow = keras.backend.backend() == "tensorflow"
    # JAX chooses another of two pixels that are equally near.
    kinds = image_resizing.INTERPOLATIONS if on_tensorflow else ("bilinear", "bicubic")
    for interpolation, antialias in itertools.product(kinds, (False, True)):
        prepare = Preprocessing(size, "crop", 0.875, interpolation, antialias, mean=(0,) * 3, std=(1,) * 3)
        part = prepare(image) * 255
        with monkeypatch.context() as patched:
            patched.setattr(image_resizing, "MAX_ENLARGEMENT", np.inf)
            whole = prepare(image) * 255
        tolerance = 1e-3 if on_tensorflow else 0.5
        np.testing.assert_allclose(part, whole, atol=tolerance)


@pytest.mark.parametrize(
    "kind, antialias", [("bilinear", 0), ("bilinear", 1), ("bicubic", 0), ("bicubic", 1), ("nearest", 0)]
)
def test_without_tensorflow_arrays_are_resized_to_the_same_pixels(kind, antialias, rng, monkeypatch):
    sizes = [(300, 500), (20, 700), (5, 7)]
    images = [rng.integers(0, 256, (*size, 3)).astype("uint8") for size in sizes] + [rng.random((9, 40, 3))]
    for prepare in (
        Preprocessing((24, 37), interpolation=kind, antialias=bool(antialias), mean=(0,) * 3, std=(1,) * 3),
        Preprocessing((24, 37), "crop", 0.8, kind, bool(antialias), mean=(0,) * 3, std=(1,) * 3),
    ):
        expected = prepare(images)
        with monkeypatch.context() as patched:
            patched.setattr(image_resizing, "is_imported", lambda package: False)
            found = prepare(images)
        assert found.dtype == expected.dtype == "float32"
        np.testing.assert_allclose(found, expected, rtol=0, atol=4e-6)


def test_a_long_image_takes_no_more_memory_than_its_pixels(tmp_path):
    Image.fromarray(np.zeros((1, 60_000), "uint8")).save(tmp_path / "long.png")
    prepare = Preprocessing(224, "crop", 0.875, "bicubic", antialias=True)
    tracemalloc.start()
    prepare(tmp_path / "long.png")
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


def sides(most):
    return st.tuples(st.integers(1, most), st.integers(1, most))


@given(sides(40), sides(600), st.floats(0.1, 1))
def test_the_crop_is_the_center_of_the_resized_image(size, image, fraction):
    enlarged, top, left = Preprocessing(size, resize="crop", crop_fraction=fraction).crop_window(*image)
    for side, start, kept in zip(enlarged, (top, left), size):
        assert 0 <= start <= side - kept
        assert abs(start - (side - kept) / 2) <= 0.5


def test_arrays_paths_and_lists_of_both_are_batches(tmp_path):
    prepare = Preprocessing(8)
    path = tmp_path / "a.png"
    Image.fromarray(PIXELS).save(path)
    mixed = prepare([PIXELS, path, str(path), PIXELS[:10], PIXELS / 255.0])
    assert mixed.shape == (5, 8, 8, 3)
    for same in (1, 2, 4):
        np.testing.assert_allclose(mixed[same], mixed[0], atol=1e-6)
    twice = np.stack([PIXELS] * 2)
    for images, count in ((PIXELS, 1), (path, 1), (twice, 2), ([], 0), (twice[:0], 0)):
        assert prepare(images).shape == (count, 8, 8, 3)
    parts = [*prepare.batches([PIXELS, path, PIXELS[:10]], 2)]
    assert [len(part) for part in parts] == [2, 1]
    np.testing.assert_array_equal(np.concatenate(parts), prepare([PIXELS, path, PIXELS[:10]]))


@pytest.mark.parametrize("channels, counts", [(1, (2, 3, 33)), (3, (1, 2, 33))])
def test_a_batch_of_gray_images_needs_no_channel_axis(channels, counts):
    half = (0.5,) * channels
    prepare = Preprocessing(8, mean=half, std=half)
    for count in counts:
        assert prepare(np.zeros((count, 28, 20), "uint8")).shape == (count, 8, 8, channels)
    # The last batch of these is (3, 28, 20), which alone could have its channels first.
    assert [len(x) for x in prepare.batches(np.zeros((35, 28, 20), "uint8"), 32)] == [32, 3]
    assert prepare(np.zeros((60, 8, 8), "uint8")).shape == (60, 8, 8, channels)
    assert prepare(np.zeros((28, 28, 3), "uint8")).shape == (1, 8, 8, channels)


def test_channels_are_repeated_dropped_or_mixed_to_the_models():
    gray = np.arange(6, dtype="uint8").reshape(2, 3)
    for image in (gray, gray[..., np.newaxis]):
        assert_close(as_pixels(image, 3), np.repeat(gray[..., np.newaxis], 3, -1), 0)
    alpha = np.concatenate([PIXELS, PIXELS[..., :1]], -1)
    assert_close(as_pixels(alpha, 3), PIXELS, 0)
    assert_close(as_pixels(PIXELS, 1)[..., 0], PIXELS @ [0.299, 0.587, 0.114], 1e-6)
    assert_close(as_pixels(PIXELS / 255, 3), PIXELS, 1e-6)
    with pytest.raises(ValueError, match="the model reads 4 channels; got an image with 3"):
        as_pixels(PIXELS, 4)


@by_table(
    "image, message",
    [
        (PIXELS.astype("float32"), r"float images must be in \[0, 1\] .*; got values from 0 to 255"),
        (np.full((2, 2, 3), np.nan), "float images must be in"),
        (PIXELS.astype("int64"), "uint8 or float in .*; got int64"),
        (np.zeros((0, 4, 3), "uint8"), r"got \(0, 4, 3\)"),
        ([np.zeros((1, 2, 3, 3), "uint8")], r"must have the shape .*got \(1, 2, 3, 3\)"),
        (np.zeros((2, 3, 64, 64), "uint8"), r"of the shape \(3, 64, 64\) \(put the channels last"),
    ],
)
def test_what_is_not_an_image_is_refused_in_one_line(image, message):
    with pytest.raises(ValueError, match=message) as caught:
        Preprocessing(8)(image)
    assert "\n" not in str(caught.value)


def test_images_of_several_sizes_need_a_size():
    with pytest.raises(ValueError, match=r"one size; got \[\(10, 30, 3\), \(20, 30, 3\)\]"):
        Preprocessing(None)([PIXELS, PIXELS[:10]])


@by_table(
    "options, message",
    [
        ({"image_size": 0}, "image_size must be a positive int, .*; got 0"),
        ({"image_size": (4, None)}, "image_size must be"),
        ({"interpolation": "lanczos3"}, "interpolation must be one of .*; got 'lanczos3'"),
        *[({"crop_fraction": x}, r"crop_fraction must be .*\(0, 1\]; got") for x in (0, 1.1)],
        *[({"mean": (0, x, 0)}, "that float32 represents") for x in (np.nan, 1e-320, 10**400)],
        ({"image_size": 10**9}, "at most 89478485 pixels; got"),
        ({"resize": "crop", "crop_fraction": 1e-9}, "at most 89478485 pixels; got .* 1e-09"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing(**{"image_size": 8, **options})


@pytest.mark.parametrize(
    "made, has_fixed_shape",
    [
        (Preprocessing((8, 9), "crop", 0.9, "bicubic", True, (0.1, 0.2, 0.3), (1, 2, 3)), True),
        (Preprocessing(None, patch_size=(8, 4), max_num_patches=12), True),
        (Preprocessing(None), False),
    ],
    ids=str,
)
def test_its_configuration_rebuilds_it_and_it_is_frozen(made, has_fixed_shape):
    again = Preprocessing(**json.loads(json.dumps(made.get_config())))
    assert again == made and hash(again) == hash(made) and made.has_fixed_shape == has_fixed_shape
    assert {f.name for f in dataclasses.fields(made)} == {*made.get_config()}
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.resize = "squash"
