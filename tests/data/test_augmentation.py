import numpy as np
import pytest
import tensorflow as tf

from keras_vit import Preprocessing
from keras_vit.data.augmentation import random_crop, random_flip, random_shift

HEIGHT, WIDTH = 60, 90


def places():
    """An image whose red is the row and whose green is the column."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    return np.stack([y, x, np.full_like(x, 7)], -1).astype("uint8")


@pytest.fixture(scope="module")
def crops():
    """800 crops of at least a quarter, each as float32 (48, 48, 3), that hold the places they show."""
    preprocessing = Preprocessing(48)
    seeds = tf.data.Dataset.range(800)
    images = seeds.map(lambda i: random_crop(tf.constant(places()), [5, i], preprocessing, (0.25, 1.0)))
    return np.stack([*images.as_numpy_iterator()])


def rectangles(crops):
    """Height and width in the image of what each crop shows, from the change along its sides."""
    inner = crops[:, 12:36, 12:36]  # away from the border, where resizing repeats pixels
    height = (inner[:, -1, 0, 0] - inner[:, 0, 0, 0]) * 48 / 23
    width = (inner[:, 0, -1, 1] - inner[:, 0, 0, 1]) * 48 / 23
    return height, width


def test_a_crop_shows_a_rectangle_of_the_image(crops):
    rows, columns, blue = np.moveaxis(crops, -1, 0)
    np.testing.assert_allclose(rows, np.broadcast_to(rows[:, :, :1], rows.shape), atol=1e-3)
    np.testing.assert_allclose(columns, np.broadcast_to(columns[:, :1], columns.shape), atol=1e-3)
    assert (np.diff(rows[:, :, 0]) >= -1e-3).all() and (np.diff(columns[:, 0]) >= -1e-3).all()
    np.testing.assert_allclose(blue, 7, atol=1e-4)
    assert rows.min() >= 0 and rows.max() <= HEIGHT - 1
    assert columns.min() >= 0 and columns.max() <= WIDTH - 1


def test_area_and_aspect_stay_in_their_bounds_and_use_them(crops):
    height, width = rectangles(crops)
    area, aspect = height * width / (HEIGHT * WIDTH), width / height
    assert area.min() >= 0.25 * 0.93 and area.max() <= 1.0
    assert aspect.min() >= 0.75 * 0.95 and aspect.max() <= 1.33 * 1.05
    assert area.min() < 0.3 and area.max() > 0.8
    assert aspect.min() < 0.8 and aspect.max() > 1.25


def test_crops_come_from_everywhere(crops):
    top, left = crops[:, 0, 0, 0], crops[:, 0, 0, 1]
    assert top.min() < 2 and left.min() < 2
    assert top.max() > HEIGHT / 4 and left.max() > WIDTH / 4


@pytest.mark.parametrize("size", [(24, 24), (16, 40)])
def test_a_crop_has_the_models_size(size):
    crop = random_crop(places(), [0, 0], Preprocessing(size))
    assert crop.shape == (*size, 3) and crop.dtype == tf.float32


def test_the_whole_area_is_the_whole_image():
    square = places()[:, :HEIGHT]
    crop = random_crop(square, [0, 0], Preprocessing((HEIGHT, HEIGHT)), (1.0, 1.0))
    np.testing.assert_allclose(crop, square, atol=1e-4)


@pytest.fixture(scope="module")
def shifted():
    """The places moved by up to a tenth of each side, 300 times."""
    image = tf.constant(places(), tf.float32)
    images = tf.data.Dataset.range(300).map(lambda i: random_shift(image, [7, i], 0.1))
    return np.stack([*images.as_numpy_iterator()])


def shifts(shifted):
    """How far down and right each image was moved, from the places in its middle."""
    middle = shifted[:, HEIGHT // 2, WIDTH // 2]
    return HEIGHT // 2 - middle[:, 0], WIDTH // 2 - middle[:, 1]


def test_a_shift_moves_the_whole_image_and_fills_up_with_black(shifted):
    for image, down, right in zip(shifted, *shifts(shifted)):
        y, x = np.mgrid[:HEIGHT, :WIDTH] - np.reshape([down, right], (2, 1, 1))
        inside = (y >= 0) & (y <= HEIGHT - 1) & (x >= 0) & (x <= WIDTH - 1)
        outside = (y <= -1) | (y >= HEIGHT) | (x <= -1) | (x >= WIDTH)
        np.testing.assert_allclose(image[inside], np.stack([y, x, 7 + 0 * x], -1)[inside], atol=1e-3)
        np.testing.assert_array_equal(image[outside], 0)
        assert inside.mean() > 0.8


def test_shifts_stay_in_their_bounds_and_use_them_to_fractions_of_a_pixel(shifted):
    for moved, side in zip(shifts(shifted), (HEIGHT, WIDTH)):
        assert np.abs(moved).max() <= 0.1 * side + 1e-3
        assert moved.max() > 0.09 * side and moved.min() < -0.09 * side
        assert abs(moved.mean()) < 0.015 * side
        assert np.abs(moved - moved.round()).max() > 0.4
    down, right = shifts(shifted)
    assert abs(np.corrcoef(down, right)[0, 1]) < 0.2


def test_a_shift_of_nothing_leaves_the_image():
    np.testing.assert_array_equal(random_shift(tf.constant(places(), tf.float32), [0, 0], 0.0), places())


DRAWS = {
    "crop": lambda seed: random_crop(places(), seed, Preprocessing(24)),
    "shift": lambda seed: random_shift(tf.constant(places(), tf.float32), seed, 0.2),
    "flip": lambda seed: random_flip(places(), seed),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_the_same_seed_draws_the_same_and_others_draw_others(draw):
    drawn = [draw([1, i]).numpy() for i in range(12)]
    for i, image in enumerate(drawn):
        np.testing.assert_array_equal(draw([1, i]), image)
    assert any((image != drawn[0]).any() for image in drawn)


def test_half_of_all_seeds_mirror_the_image():
    image = places()
    flips = tf.data.Dataset.range(1000).map(lambda i: random_flip(tf.constant(image), [3, i]))
    mirrored = 0
    for flipped in flips.as_numpy_iterator():
        is_mirrored = flipped[0, 0, 1] == WIDTH - 1
        np.testing.assert_array_equal(flipped, image[:, ::-1] if is_mirrored else image)
        mirrored += is_mirrored
    assert 440 <= mirrored <= 560
