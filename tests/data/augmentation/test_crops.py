"""Views of images for training without labels, as functions of a seed."""

import numpy as np
import pytest
import scipy.ndimage
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from made.tables import by_table
from PIL import Image, ImageEnhance, ImageOps

from keras_vit import Preprocessing
from keras_vit.data import view_augmentation
from keras_vit.data.augmentation import crops
from keras_vit.data.augmentation.crops import gaussian_blur, random_values

pytestmark = pytest.mark.tensorflow_only("reading images is")


@pytest.fixture(scope="module")
def png():
    rng = np.random.default_rng(0)
    return tf.io.encode_png(rng.integers(0, 256, (40, 50, 3)).astype("uint8"))


def views(png, seed, **options):
    preprocessing = Preprocessing(options.pop("size", 32))
    augment = view_augmentation(preprocessing, **{"num_local": 3, "local_size": 16, **options})
    return {name: part.numpy() for name, part in augment(png, seed).items()}


def test_views_have_two_sizes_and_depend_on_the_seed_alone(png):
    first, again, other = (views(png, [3, step]) for step in (5, 5, 6))
    assert first["global_views"].shape == (2, 32, 32, 3) and first["local_views"].shape == (3, 16, 16, 3)
    for name, part in first.items():
        np.testing.assert_array_equal(part, again[name])
        assert np.abs(part - other[name]).max() > 0.1 and np.abs(part[0] - part[1]).max() > 0.1
        assert part.min() >= -1 and part.max() <= 1


@given(st.integers(0, 2**20), st.floats(0.05, 0.9))
def test_a_view_is_a_rectangle_of_its_share_of_the_image(seed, smallest):
    rows, columns = np.mgrid[:200, :200]
    image = np.stack([rows, columns, rows], -1).astype("uint8")
    area = smallest, min(smallest + 0.1, 1.0)
    options = {"num_local": 0, "flip": False, "photometric": 0.0, "size": 64}
    found = views(tf.io.encode_png(image), [seed, 0], global_area=area, **options)["global_views"]
    colors = (found + 1) / 2 * 255
    sides = [np.ptp(colors[..., axis], axis=(1, 2)) * 64 / 63 / 200 for axis in (0, 1)]
    covered = sides[0] * sides[1]
    assert ((area[0] - 0.05 < covered) & (covered < area[1] + 0.05)).all()
    assert np.diff(colors[..., 1], axis=2).min() >= 0, "not mirrored"


def test_of_probability_zero_no_value_changes():
    flat = tf.io.encode_png(np.full((20, 20, 3), (10, 200, 90), "uint8"))
    for part in views(flat, [0, 1], photometric=0.0).values():
        np.testing.assert_allclose((part + 1) / 2 * 255, np.full(part.shape, (10, 200, 90)), atol=1e-3)


@pytest.mark.parametrize("name", ["Brightness", "Contrast", "Color"])
@pytest.mark.parametrize("amount", [-0.4, 0.2])
def test_colors_change_as_by_pillow(name, amount, rng):
    change = {"Brightness": crops._brightness, "Contrast": crops._contrast, "Color": crops._saturation}[name]
    pixels = rng.integers(60, 160, (12, 9, 3)).astype("float32")
    expected = getattr(ImageEnhance, name)(Image.fromarray(pixels.astype("uint8"))).enhance(1 + amount)
    np.testing.assert_allclose(change(pixels, amount), np.asarray(expected, "float32"), atol=2.5)


def test_values_of_128_and_more_are_inverted_as_by_pillow(rng):
    pixels = rng.integers(0, 256, (6, 5, 3)).astype("float32")
    found = random_values(pixels, [0, 1], jitter=0.0, blur=0.0, solarize=1.0)
    np.testing.assert_array_equal(found, ImageOps.solarize(Image.fromarray(pixels.astype("uint8"))))


def test_a_blur_is_scipys(rng):
    pixels = np.zeros((41, 35, 3), "float32")
    pixels[12:28, 12:24] = rng.uniform(0, 255, (16, 12, 3))
    expected = scipy.ndimage.gaussian_filter(pixels, (2.0, 2.0, 0.0), truncate=8.0)
    np.testing.assert_allclose(gaussian_blur(pixels, 2.0).numpy(), expected, atol=1e-2)


@pytest.mark.parametrize("channels", [1, 3])
def test_random_values_stay_in_range_and_change(channels, rng):
    pixels = tf.constant(rng.uniform(0, 255, (8, 8, channels)), tf.float32)
    found = np.stack([random_values(pixels, [0, number], 0.8, 0.5, 0.2).numpy() for number in range(30)])
    assert found.min() >= 0 and found.max() <= 255
    unchanged = [np.array_equal(each, pixels) for each in found]
    assert 0 < sum(unchanged) < 12
    if channels == 3:
        gray = [np.allclose(each[..., 0], each[..., 2], atol=1e-3) for each in found]
        assert 1 <= sum(gray) <= 12


@by_table(
    "options, message",
    [
        ({"image_size": None}, "image_size"),
        ({"global_area": (0.0, 1.0)}, "global_area"),
        ({"local_area": (0.4, 0.2)}, "local_area"),
        ({"num_local": -1}, "num_local"),
        ({"local_size": 0}, "local_size"),
        ({"photometric": 1.5}, "photometric"),
        ({"flip": 1}, "flip"),
    ],
)
def test_invalid_arguments_are_refused(options, message):
    preprocessing = Preprocessing(options.pop("image_size", 32))
    with pytest.raises(ValueError, match=message):
        view_augmentation(preprocessing, **options)
