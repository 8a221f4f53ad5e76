import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from reference.comparing import assert_close

from keras_vit import Preprocessing
from keras_vit.preprocessing import as_pixels, read_image

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype("uint8")


def bilinear(image, size):
    """Half-pixel centres, no smoothing: each output point between its four neighbours."""
    image = image.astype("float64")
    for axis, new in enumerate(size):
        old = image.shape[axis]
        at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
        low = np.floor(at).astype(int)
        high, share = np.minimum(low + 1, old - 1), at - low
        share = share.reshape([-1 if a == axis else 1 for a in range(3)])
        image = image.take(low, axis) * (1 - share) + image.take(high, axis) * share
    return image


def test_pixels_become_minus_one_to_one_as_the_official_models_want():
    output = Preprocessing(None)(PIXELS)
    assert output.dtype == "float32"
    assert_close(output[0], (PIXELS - 127.5) / 127.5, 1e-6)


@pytest.mark.parametrize("size", [(7, 9), (40, 60), (20, 10), (33, 30)])
def test_squash_resizes_straight_to_the_size_without_smoothing(size):
    expected = (bilinear(PIXELS, size) - 127.5) / 127.5
    assert_close(Preprocessing(size)(PIXELS)[0], expected, 1e-5)


def test_smoothing_can_be_asked_for():
    plain, smooth = (Preprocessing(5, antialias=a)(PIXELS) for a in (False, True))
    assert smooth.std() < 0.6 * plain.std()


def test_mean_and_deviation_are_per_channel_and_of_pixels_up_to_one():
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    output = Preprocessing(None, mean=mean, std=std)(PIXELS)
    assert_close(output[0], (PIXELS / 255 - mean) / std, 1e-5)


def test_colors_are_the_way_back_and_no_more_than_black_and_white(rng):
    images = rng.random((2, 8, 8, 3), "float32")
    preprocessing = Preprocessing(8, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    x = preprocessing(images)
    np.testing.assert_allclose(preprocessing.colors(x), images, atol=1e-6)
    np.testing.assert_array_equal(preprocessing.colors(np.full_like(x, 9)), 1)
    np.testing.assert_array_equal(preprocessing.colors(np.full_like(x, -9)), 0)


@pytest.mark.parametrize("channels", [1, 2])
def test_colors_of_grey_or_of_bands_are_grey(channels, rng):
    images = rng.random((2, 8, 8, channels), "float32")
    preprocessing = Preprocessing(8, mean=(0.5, 0.3)[:channels], std=(0.2, 0.4)[:channels])
    expected = np.repeat(images.mean(axis=-1, keepdims=True), 3, axis=-1)
    x = preprocessing(images)
    np.testing.assert_allclose(preprocessing.colors(x), expected, atol=1e-6)
    np.testing.assert_allclose(preprocessing.colors(x[0]), expected[0], atol=1e-6)


def test_crop_takes_the_centre_of_the_resized_image():
    """20×30 with 16 as half of the shorter side: resized to 32×48, from which the middle is cut."""
    output = Preprocessing(16, resize="crop", crop_fraction=0.5)(PIXELS)
    expected = bilinear(PIXELS, (32, 48))[8:24, 16:32]
    assert_close(output[0], (expected - 127.5) / 127.5, 1e-5)


@given(
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.tuples(st.integers(1, 600), st.integers(1, 600)),
    st.floats(0.1, 1),
)
def test_the_crop_lies_inside_the_resized_image_at_its_centre(size, image, fraction):
    enlarged, top, left = Preprocessing(size, resize="crop", crop_fraction=fraction).crop_window(*image)
    for side, start, wanted in zip(enlarged, (top, left), size):
        assert 0 <= start <= side - wanted
        assert abs(start - (side - wanted) / 2) <= 0.5


def test_one_image_and_lists_of_any_sizes_are_batches(tmp_path):
    prepare = Preprocessing(8)
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    mixed = prepare([PIXELS, tmp_path / "a.png", str(tmp_path / "a.png"), PIXELS[:10], PIXELS / 255.0])
    assert mixed.shape == (5, 8, 8, 3)
    for same in (1, 2, 4):
        np.testing.assert_allclose(mixed[same], mixed[0], atol=1e-6)
    assert prepare(PIXELS).shape == (1, 8, 8, 3)
    assert prepare(tmp_path / "a.png").shape == (1, 8, 8, 3)
    assert prepare(np.stack([PIXELS] * 2)).shape == (2, 8, 8, 3)


def test_no_images_are_an_empty_batch():
    assert Preprocessing(8)([]).shape == (0, 8, 8, 3)
    assert Preprocessing(8)(np.zeros((0, 5, 5, 3), "uint8")).shape == (0, 8, 8, 3)


def test_batches_are_the_same_in_parts():
    images = [PIXELS[i : i + 10] for i in range(5)]
    parts = [*Preprocessing(8).batches(images, 2)]
    assert [len(part) for part in parts] == [2, 2, 1]
    np.testing.assert_array_equal(np.concatenate(parts), Preprocessing(8)(images))


@pytest.mark.parametrize(
    "name", ["grey.png", "palette.gif", "alpha.png", "photo.jpg", "plain.bmp", "new.webp"]
)
def test_image_files_of_every_kind_are_read_as_rgb(name, tmp_path):
    image = Image.fromarray(PIXELS)
    modes = {"grey": "L", "palette": "P", "alpha": "RGBA"}
    image = image.convert(modes.get(name.split(".")[0], "RGB"))
    image.save(tmp_path / name)
    read = read_image(tmp_path / name)
    assert read.shape == (20, 30, 3)
    assert read.dtype == "uint8"
    reference = np.asarray(image.convert("RGB")).astype(int)
    lossy = name in ("photo.jpg", "new.webp")
    assert np.abs(read - reference).mean() <= (60 if lossy else 0)


def test_channels_are_repeated_dropped_or_mixed_to_the_models():
    grey = np.arange(6, dtype="uint8").reshape(2, 3)
    for image in (grey, grey[..., np.newaxis]):
        assert_close(as_pixels(image, 3), np.repeat(grey[..., np.newaxis], 3, -1), 0)
    alpha = np.concatenate([PIXELS, PIXELS[..., :1]], -1)
    assert_close(as_pixels(alpha, 3), PIXELS, 0)
    assert_close(as_pixels(PIXELS, 1)[..., 0], PIXELS @ [0.299, 0.587, 0.114], 1e-6)
    with pytest.raises(ValueError, match="the model reads 4 channels; got an image with 3"):
        as_pixels(PIXELS, 4)


def test_floats_up_to_one_are_pixels_up_to_255():
    assert_close(as_pixels(PIXELS / 255, 3), PIXELS, 1e-6)


@pytest.mark.parametrize(
    "image, message",
    [
        (PIXELS.astype("float32"), r"float images must be in \[0, 1\]; got values from 0 to 255"),
        (np.full((2, 2, 3), np.nan), "float images must be in"),
        (-(PIXELS / 255), "float images must be in"),
        (PIXELS.astype("int64"), "uint8 or float in .*; got int64"),
        (np.zeros((2, 2), bool), "uint8 or float in .*; got bool"),
        (np.zeros((0, 4, 3), "uint8"), r"got \(0, 4, 3\)"),
        (np.zeros(5, "uint8"), "of rank 1"),
        (np.zeros((1, 2, 3, 4, 5), "uint8"), "of rank 5"),
        ([np.zeros((1, 2, 3, 3), "uint8")], r"must have the shape .*got \(1, 2, 3, 3\)"),
        (7, "got int of rank 0"),
    ],
)
def test_what_is_no_image_is_refused_in_one_line(image, message):
    with pytest.raises(ValueError, match=message) as caught:
        Preprocessing(8)(image)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_images_are_named(tmp_path):
    (tmp_path / "notes.png").write_text("hello")
    Image.fromarray(PIXELS).save(tmp_path / "whole.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "whole.png").read_bytes()[:600])
    for name, message in (
        ("notes.png", "not a readable image: .*notes.png"),
        ("half.png", "not a readable image: .*half.png"),
        ("none.png", "no such image file: .*none.png"),
        ("", "not a readable image"),
    ):
        with pytest.raises(ValueError, match=message):
            Preprocessing(8)(tmp_path / name)


def test_images_of_several_sizes_need_a_size():
    with pytest.raises(ValueError, match=r"one size; got \[\(10, 30, 3\), \(20, 30, 3\)\]"):
        Preprocessing(None)([PIXELS, PIXELS[:10]])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"image_size": 0}, "image_size must be .*; got 0"),
        ({"image_size": (4,)}, r"image_size must be .*; got \(4,\)"),
        ({"image_size": (4, None)}, "image_size must be"),
        ({"resize": "pad"}, "resize 'pad' is unknown; choose one of .*squash.*crop"),
        ({"interpolation": "lanczos3"}, "interpolation 'lanczos3' is unknown"),
        ({"crop_fraction": 0}, r"crop_fraction must be in \(0, 1\]; got 0"),
        ({"crop_fraction": 1.1}, r"crop_fraction must be in \(0, 1\]; got 1.1"),
        ({"mean": (0.5,)}, "mean and std need one number per channel"),
        ({"std": (1, 0, 1)}, "std positive"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing(**{"image_size": 8, **options})


def test_its_configuration_makes_the_same_again():
    made = Preprocessing((8, 9), "crop", 0.9, "bicubic", True, (0.1, 0.2, 0.3), (1, 2, 3))
    again = Preprocessing(**json.loads(json.dumps(made.get_config())))
    assert again == made
    assert hash(again) == hash(made)
    assert {f.name for f in dataclasses.fields(made)} == {*made.get_config()}


def test_it_cannot_be_changed_by_accident():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Preprocessing(8).resize = "crop"


def test_of_16_bits_the_upper_8_are_kept(tmp_path):
    ramp = np.arange(0, 65536, 257, dtype="uint16").reshape(16, 16)
    Image.fromarray(ramp).save(tmp_path / "deep.png")
    np.testing.assert_array_equal(read_image(tmp_path / "deep.png")[..., 0], ramp >> 8)


def test_an_image_of_six_channels_is_one_image():
    six = Preprocessing(8, mean=(0.5,) * 6, std=(0.5,) * 6)
    assert six(np.zeros((20, 30, 6), "uint8")).shape == (1, 8, 8, 6)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"image_size": 32.0}, "image_size must be a positive int, .* got 32.0"),
        ({"image_size": 32, "mean": 0.5, "std": 0.5}, "mean and std need one number per channel.* got 0.5"),
    ],
)
def test_a_value_of_another_kind_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing(**arguments)
