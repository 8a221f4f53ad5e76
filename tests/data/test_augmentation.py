import dataclasses
import io
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit import Preprocessing
from keras_vit.data.augmentation import (
    Augmentation,
    batch_augmentation,
    image_augmentation,
    random_crop,
    random_flip,
    random_shift,
)

HEIGHT, WIDTH = 60, 90


def places():
    """An image whose red is the row and whose green is the column."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    return np.stack([y, x, np.full_like(x, 7)], -1).astype("uint8")


PNG = tf.io.encode_png(places()).numpy()


@pytest.fixture(scope="module")
def crops():
    """800 crops of at least a quarter, each as float32 (48, 48, 3), that hold the places they show."""
    preprocessing = Preprocessing(48)
    seeds = tf.data.Dataset.range(800)
    images = seeds.map(lambda i: random_crop(PNG, [5, i], preprocessing, (0.25, 1.0)))
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
    crop = random_crop(PNG, [0, 0], Preprocessing(size))
    assert crop.shape == (*size, 3) and crop.dtype == tf.float32


def test_the_whole_area_is_the_whole_image():
    square = places()[:, :HEIGHT]
    crop = random_crop(tf.io.encode_png(square), [0, 0], Preprocessing((HEIGHT, HEIGHT)), (1.0, 1.0))
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
    "crop": lambda seed: random_crop(PNG, seed, Preprocessing(24)),
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


def drawn_rectangle(shape, seed):
    return tf.image.stateless_sample_distorted_bounding_box(
        shape,
        tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        seed,
        min_object_covered=0.0,
        aspect_ratio_range=(0.75, 1.33),
        area_range=(0.05, 1.0),
        max_attempts=100,
    )


@pytest.mark.parametrize("kind", ["RGB JPEG", "L JPEG", "CMYK JPEG", "RGB PNG", "L PNG"])
def test_the_training_images_are_those_of_the_official_pipeline(kind):
    mode, name = kind.split()
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (30, 40, 3), "uint8")
    Image.fromarray(noise).resize((160, 120)).convert(mode).save(file, name)
    encoded = file.getvalue()

    @tf.function
    def official(seed, transform):  # decode whole, draw, cut, resize, flip, scale
        if name == "JPEG":
            image = tf.io.decode_jpeg(encoded, channels=3, dct_method=transform)
        else:
            image = tf.io.decode_png(encoded, channels=3)
        crop_seed, _, flip_seed = tf.unstack(tf.random.split(seed, 3))
        begin, size, _ = drawn_rectangle(tf.shape(image), crop_seed)
        image = tf.ensure_shape(tf.slice(image, begin, size), (None, None, 3))
        image = tf.image.resize(image, [48, 48])
        image = tf.image.stateless_random_flip_left_right(image, flip_seed)
        return (image - 127.5) / 127.5

    augmentation = Augmentation(crop_area=(0.05, 1.0), flip=True)
    ours = tf.function(image_augmentation(augmentation, Preprocessing(48)))
    for number in range(40):
        seed = tf.constant([4, number], tf.int64)
        image = 127.5 * ours(encoded, seed)
        np.testing.assert_allclose(image, 127.5 * official(seed, "INTEGER_ACCURATE"), atol=1e-3)
        np.testing.assert_allclose(
            image, 127.5 * official(seed, ""), atol=6
        )  # the default is a fast transform


EVERYTHING = Augmentation(
    crop_area=(0.3, 1.0),
    shift=0.1,
    flip=True,
    randaugment=(2, 0.5),
    layers=(keras.layers.RandomHue(0.4), keras.layers.RandomRotation(0.1)),
    random_erasing=0.3,
    mixup=0.2,
    cutmix=1.0,
)


@pytest.mark.parametrize("name", ["randaugment", "layers", "random_erasing"])
def test_each_field_changes_images_as_the_seed_says(name):
    augmentation = Augmentation(**{name: getattr(EVERYTHING, name)})
    augment = tf.function(image_augmentation(augmentation, Preprocessing(24)))
    seeds = [tf.constant([7, i], tf.int64) for i in range(12)]
    images = [augment(PNG, seed).numpy() for seed in seeds]
    assert len({image.tobytes() for image in images}) >= 4
    for seed, image in zip(seeds, images):
        assert np.isfinite(image).all() and np.abs(image).max() <= 1 + 1e-6
        np.testing.assert_array_equal(augment(PNG, seed), image)


def test_as_many_images_are_erased_as_asked_for():
    augment = tf.function(image_augmentation(Augmentation(random_erasing=0.3), Preprocessing(24)))
    whole = image_augmentation(Augmentation(), Preprocessing(24))(PNG, [0, 0]).numpy()
    images = [augment(PNG, tf.constant([1, i], tf.int64)).numpy() for i in range(400)]
    erased = [np.abs(image - whole).max() > 0.1 for image in images]
    assert 90 <= sum(erased) <= 150


def test_half_precision_elsewhere_leaves_pixels_alone():
    before = keras.config.dtype_policy()
    plain = image_augmentation(EVERYTHING, Preprocessing(24))(PNG, [0, 3])
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        mixed = image_augmentation(EVERYTHING, Preprocessing(24))(PNG, [0, 3])
        blends = [batch_augmentation(Augmentation(**one)) for one in ({"mixup": 1.0}, {"cutmix": 1.0})]
        blended = [blend(tf.ones((4, 8, 8, 3)) / 3, tf.eye(4), [0, 1])[0] for blend in blends]
    finally:
        keras.config.set_dtype_policy(before)
    np.testing.assert_array_equal(mixed, plain)
    for images in blended:
        assert images.dtype == tf.float32
        np.testing.assert_allclose(images, 1 / 3, atol=1e-6)


def solid(count):
    """Images of one colour, their number, and labels that say which they are."""
    numbers = tf.range(count, dtype=tf.float32)
    return numbers[:, None, None, None] * tf.ones((count, 16, 16, 3)), tf.eye(count)


@pytest.mark.parametrize("name, value", [("mixup", 0.2), ("mixup", 1.0), ("cutmix", 0.5), ("cutmix", 1.0)])
def test_labels_are_mixed_as_the_images_are(name, value):
    blend = tf.function(batch_augmentation(Augmentation(**{name: value})))
    images, labels = solid(8)
    shares = []
    for step in range(40):
        mixed, mixed_labels = blend(images, labels, tf.constant([3, step], tf.int64))
        np.testing.assert_allclose(tf.reduce_sum(mixed_labels, 1), 1, atol=1e-5)
        assert (mixed_labels.numpy() >= 0).all()
        # An image's mean is the mean of the numbers in it, of which the label gives the shares; CutMix's
        # label counts the rectangle's area, its pixels are whole.
        means = tf.reduce_mean(mixed, (1, 2, 3))
        slack = 1e-4 if name == "mixup" else 7 * (2 * 17 / 256)
        np.testing.assert_allclose(means, mixed_labels.numpy() @ np.arange(8), atol=slack)
        if name == "cutmix":
            assert all(len(np.unique(image)) <= 2 for image in mixed.numpy())
        shares.append(np.diag(mixed_labels))
    # Of a fixed point of the permutation the share is 1; else Beta(a, a) has variance 1 / (4 (2 a + 1)).
    shares = np.concatenate(shares)
    shares = shares[shares < 1]
    if name == "mixup":
        assert shares.mean() == pytest.approx(0.5, abs=0.08)
        assert shares.std() == pytest.approx((4 * (2 * value + 1)) ** -0.5, abs=0.05)


def test_where_both_are_on_each_batch_gets_one_of_them_with_even_chances():
    blend = tf.function(batch_augmentation(Augmentation(mixup=1.0, cutmix=1.0)))
    images, labels = solid(8)
    blended = 0
    for step in range(200):
        mixed, _ = blend(images, labels, tf.constant([3, step], tf.int64))
        blended += bool((mixed.numpy() % 1).any())  # CutMix keeps whole numbers
    assert 75 <= blended <= 125


def test_class_numbers_cannot_be_mixed():
    blend = batch_augmentation(Augmentation(mixup=0.2))
    for labels in (tf.range(8), tf.range(8.0), tf.ones((8, 3), tf.int32)):
        with pytest.raises(
            ValueError, match=r"mixing needs float labels \(batch, classes\); got (int|float)32"
        ):
            blend(solid(8)[0], labels, [0, 0])


def test_an_augmentation_survives_json():
    config = json.loads(json.dumps(dataclasses.asdict(EVERYTHING)))
    assert Augmentation(**config) == EVERYTHING
    assert Augmentation(**config).is_exact and EVERYTHING.mixes and not Augmentation().mixes


@keras.saving.register_keras_serializable("keras_vit_tests")
class Noise(keras.Layer):
    """Draws where the seed does not reach."""

    def call(self, images):
        return images + tf.random.uniform(tf.shape(images))


class Unknown(keras.Layer):
    def __init__(self, function):
        super().__init__()


@pytest.mark.parametrize("given", ["layer", "configuration"])
def test_a_layer_that_draws_elsewhere_is_taken_and_told(given):
    layer = Noise() if given == "layer" else keras.saving.serialize_keras_object(Noise())
    augmentation = Augmentation(flip=True, layers=(keras.layers.RandomHue(0.1), layer))
    assert not augmentation.is_exact
    image = image_augmentation(augmentation, Preprocessing(24))(PNG, [0, 0])
    assert image.shape == (24, 24, 3)


@pytest.mark.parametrize(
    "fields, message",
    [
        (
            {"crop_area": (0.5, 0.1)},
            r"crop_area must be \(smallest, largest\) in \(0, 1\] or None; got \(0.5, 0.1\)",
        ),
        ({"crop_area": 0.5}, "crop_area must be"),
        ({"shift": -0.1}, r"shift must be a number in \[0, 1\]; got -0.1"),
        ({"mixup": 1.5}, r"mixup must be a number in \[0, 1\]; got 1.5"),
        ({"cutmix": True}, "cutmix must be a number"),
        ({"random_erasing": "0.5"}, "random_erasing must be a number"),
        ({"flip": 1}, "flip must be True or False; got 1"),
        ({"randaugment": (2, 10)}, r"randaugment must be \(number of layers, magnitude in \(0, 1\]\)"),
        ({"randaugment": (0, 0.5)}, "randaugment must be"),
        ({"layers": keras.layers.RandomFlip()}, "layers must be a tuple of Keras layers"),
        ({"layers": ("RandomFlip",)}, "layers must be Keras layers; got 'RandomFlip'"),
        ({"layers": ({"class_name": "Nothing"},)}, "layers must be Keras layers"),
        ({"layers": (keras.layers.MixUp(),)}, "set mixup or cutmix instead"),
        ({"layers": (keras.layers.CutMix(),)}, "set mixup or cutmix instead"),
        ({"layers": (Unknown(len),)}, "register your own"),
    ],
)
def test_what_cannot_be_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Augmentation(**fields)


def test_a_layer_with_weights_is_refused():
    layer = keras.layers.Normalization(mean=[0.0], variance=[1.0])
    assert Augmentation(layers=(layer,)).is_exact
    layer = keras.layers.BatchNormalization()
    layer.build((None, 8, 8, 3))
    with pytest.raises(ValueError, match="has weights"):
        Augmentation(layers=(layer,))


def test_grey_images_have_no_colours_to_change():
    with pytest.raises(ValueError, match=r"randaugment changes colours, but the model reads 1 channel"):
        image_augmentation(EVERYTHING, Preprocessing(24, mean=(0.5,), std=(0.5,)))
