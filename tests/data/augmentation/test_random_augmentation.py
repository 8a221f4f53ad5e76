import dataclasses
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from made.encoded import encoded
from made.sampling import some
from made.tables import by_table
from PIL import Image

from keras_vit import Preprocessing
from keras_vit.data import Augmentation
from keras_vit.data.augmentation.random_augmentation import (
    batch_augmentation,
    image_augmentation,
    random_shift,
)
from keras_vit.labels.label_kind import LabelKind

HEIGHT, WIDTH = 60, 90
Y, X = np.mgrid[:HEIGHT, :WIDTH]
POSITIONS = np.stack([Y, X, np.full_like(X, 7)], -1).astype("uint8")  # the row in red, the column in green
PNG = tf.io.encode_png(POSITIONS).numpy()


def test_shifts_are_subpixel_up_to_their_fraction_with_black_borders():
    image = tf.constant(POSITIONS, tf.float32)
    images = tf.data.Dataset.range(300).map(lambda i: random_shift(image, [7, i], 0.1))
    shifted = np.stack([*images.as_numpy_iterator()])
    center = shifted[:, HEIGHT // 2, WIDTH // 2]
    shifts = HEIGHT // 2 - center[:, 0], WIDTH // 2 - center[:, 1]
    for each, down, right in zip(shifted, *shifts):
        y, x = Y - down, X - right
        inside = (y >= 0) & (y <= HEIGHT - 1) & (x >= 0) & (x <= WIDTH - 1)
        outside = (y <= -1) | (y >= HEIGHT) | (x <= -1) | (x >= WIDTH)
        np.testing.assert_allclose(each[inside], np.stack([y, x, 7 + 0 * x], -1)[inside], atol=1e-3)
        np.testing.assert_array_equal(each[outside], 0)
        assert inside.mean() > 0.8
    for shift, side in zip(shifts, (HEIGHT, WIDTH)):
        assert np.abs(shift).max() <= 0.1 * side + 1e-3
        assert shift.max() > 0.09 * side and shift.min() < -0.09 * side
        assert abs(shift.mean()) < 0.015 * side
        assert np.abs(shift - shift.round()).max() > 0.4
    assert abs(np.corrcoef(*shifts)[0, 1]) < 0.2
    np.testing.assert_array_equal(random_shift(image, [0, 0], 0.0), POSITIONS)


@pytest.mark.slow
def test_the_training_images_are_those_of_the_official_pipeline():
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (30, 40, 3), "uint8"))
    content = encoded(noise.resize((160, 120)), "JPEG")

    @tf.function
    def official(seed, transform):  # decode all, sample a box, crop, resize, flip, scale
        image = tf.io.decode_jpeg(content, channels=3, dct_method=transform)
        crop_seed, _, flip_seed = tf.unstack(tf.random.split(seed, 3))
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            tf.shape(image),
            tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
            crop_seed,
            min_object_covered=0.0,
            aspect_ratio_range=(0.75, 1.33),
            area_range=(0.3, 0.9),
            max_attempts=100,
        )
        image = tf.ensure_shape(tf.slice(image, begin, size), (None, None, 3))
        image = tf.image.resize(image, [48, 48])
        image = tf.image.stateless_random_flip_left_right(image, flip_seed)
        return (image - 127.5) / 127.5

    augmentation = Augmentation(crop_area=(0.3, 0.9), flip=True)
    ours = tf.function(image_augmentation(augmentation, Preprocessing(48)))
    for number in range(10):
        seed = tf.constant([4, number], tf.int64)
        image = 127.5 * ours(content, seed)
        np.testing.assert_allclose(image, 127.5 * official(seed, "INTEGER_ACCURATE"), atol=1e-3)
        # TensorFlow's default is a faster transform.
        np.testing.assert_allclose(image, 127.5 * official(seed, ""), atol=6)


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


FIELDS = ["crop_area", "shift", "flip", "layers", "randaugment", "random_erasing"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FIELDS)
def test_each_field_changes_images_as_a_function_of_the_seed(name):
    augmentation = Augmentation(**{name: getattr(EVERYTHING, name)})
    augment = tf.function(image_augmentation(augmentation, Preprocessing(24)))
    seeds = [tf.constant([7, i], tf.int64) for i in range(12)]
    images = [augment(PNG, seed).numpy() for seed in seeds]
    assert len({image.tobytes() for image in images}) >= (2 if name == "flip" else 4)
    for seed, image in zip(seeds, images):
        assert np.isfinite(image).all() and np.abs(image).max() <= 1 + 1e-6
        np.testing.assert_array_equal(augment(PNG, seed), image)


def test_the_probability_of_random_erasing_is_that_of_the_field():
    augment = tf.function(image_augmentation(Augmentation(random_erasing=0.3), Preprocessing(24)))
    whole = image_augmentation(Augmentation(), Preprocessing(24))(PNG, [0, 0]).numpy()
    images = [augment(PNG, tf.constant([1, i], tf.int64)).numpy() for i in range(400)]
    assert 90 <= sum(np.abs(image - whole).max() > 0.1 for image in images) <= 150


def solid(count):
    """Images of one color, their index, and one-hot labels."""
    indices = tf.range(count, dtype=tf.float32)
    return indices[:, None, None, None] * tf.ones((count, 16, 16, 3)), tf.eye(count)


@pytest.mark.parametrize("name, value", some([("mixup", 0.2), ("cutmix", 1.0)], 2))
def test_labels_are_mixed_as_the_images_are(name, value):
    blend = tf.function(batch_augmentation(Augmentation(**{name: value})))
    images, labels = solid(8)
    fractions = []
    for step in range(40):
        mixed, mixed_labels = blend(images, labels, tf.constant([3, step], tf.int64))
        np.testing.assert_allclose(tf.reduce_sum(mixed_labels, 1), 1, atol=1e-5)
        assert (mixed_labels.numpy() >= 0).all()
        # An image's mean is that of the indices in it, weighted by the label. CutMix's label has the area of
        # the rectangle before it is rounded to pixels.
        tolerance = 1e-4 if name == "mixup" else 7 * (2 * 17 / 256)
        means = tf.reduce_mean(mixed, (1, 2, 3))
        np.testing.assert_allclose(means, mixed_labels.numpy() @ np.arange(8), atol=tolerance)
        if name == "cutmix":
            assert all(len(np.unique(image)) <= 2 for image in mixed.numpy())
        fractions.append(np.diag(mixed_labels))
    if name == "mixup":
        # Those of fixed points of the permutation are 1; Beta(a, a) has the variance 1 / (4 (2 a + 1)).
        fractions = np.concatenate(fractions)
        fractions = fractions[fractions < 1]
        assert fractions.mean() == pytest.approx(0.5, abs=0.08)
        assert fractions.std() == pytest.approx((4 * (2 * value + 1)) ** -0.5, abs=0.05)


def test_an_augmentation_survives_json():
    config = json.loads(json.dumps(dataclasses.asdict(EVERYTHING)))
    assert Augmentation(**config) == EVERYTHING
    assert Augmentation(**config).is_exact and EVERYTHING.mixes and not Augmentation().mixes


@keras.saving.register_keras_serializable("keras_vit_tests")
class Noise(keras.Layer):
    """A layer with random numbers that do not come from its seed generators."""

    def call(self, images):
        return images + tf.random.uniform(tf.shape(images))


class Unknown(keras.Layer):
    def __init__(self, function):
        super().__init__()


def test_a_layer_with_other_random_state_is_accepted_and_reported():
    augmentation = Augmentation(flip=True, layers=(keras.layers.RandomHue(0.1), Noise()))
    assert not augmentation.is_exact
    image = image_augmentation(augmentation, Preprocessing(24))(PNG, [0, 0])
    assert image.shape == (24, 24, 3)


@by_table(
    "fields, message",
    [
        ({"scale_jitter": (2.0, 0.5)}, r"scale_jitter must be \(smallest, largest\) above 0"),
        ({"crop_area": (0.5, 1.0), "scale_jitter": (0.5, 1.0)}, "crop_area or scale_jitter; got both"),
        ({"shift": -0.1}, r"shift must be a number in \[0, 1\]; got -0.1"),
        ({"flip": 1}, "flip must be True or False; got 1"),
        ({"randaugment": (2, 10)}, r"randaugment must be \(number of layers, magnitude in \(0, 1\]\)"),
        ({"layers": keras.layers.RandomFlip()}, "layers must be a tuple of Keras layers"),
        ({"layers": ("RandomFlip",)}, "layers must be Keras layers; got 'RandomFlip'"),
        ({"layers": (keras.layers.MixUp(),)}, "set mixup or cutmix instead"),
        ({"layers": (Unknown(len),)}, "register your own .*got <Unknown .*: .*[a-z]"),
    ],
)
def test_fields_out_of_range_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Augmentation(**fields)


def test_a_layer_with_weights_is_refused():
    assert Augmentation(layers=(keras.layers.Normalization(mean=[0.0], variance=[1.0]),)).is_exact
    layer = keras.layers.BatchNormalization()
    layer.build((None, 8, 8, 3))
    with pytest.raises(ValueError, match="has weights"):
        Augmentation(layers=(layer,))


SIZE = "need a preprocessing with an image_size; got None"
GRAY = Preprocessing(24, mean=(0.5,), std=(0.5,))


@by_table(
    "fields, preprocessing, message",
    [
        ({"crop_area": (0.5, 1.0)}, Preprocessing(None), f"crop_area {SIZE}"),
        ({"scale_jitter": (0.5, 2.0)}, Preprocessing(None), f"scale_jitter {SIZE}"),
        ({"cutmix": 0.1}, Preprocessing(None), f"cutmix {SIZE}"),
        ({"randaugment": (2, 0.5)}, GRAY, "randaugment needs 3 channels; the model reads 1"),
        ({"rotate": 30}, Preprocessing(8), "^rotate is for keypoints, which turn with their image; got 30$"),
    ],
)
def test_some_changes_need_a_size_colors_or_keypoints(fields, preprocessing, message):
    with pytest.raises(ValueError, match=message):
        image_augmentation(Augmentation(**fields), preprocessing)


class Vectors(LabelKind):
    """Vectors of pixels, whose first number points to the right."""

    name, axes, moves, is_map, has_channels = "vectors", 3, True, True, True
    dtype, outside = "float32", 0.0

    def mirrored(self, values, is_mirrored):
        return tf.where(is_mirrored, values * [-1.0, 1.0], values)


def test_maps_of_vectors_are_mirrored_as_their_kind_says():
    label = tf.stack(tf.meshgrid([1.0, 2.0], [3.0, 4.0]), axis=-1)
    image = encoded(Image.new("RGB", (2, 2)), "PNG")
    augment = image_augmentation(Augmentation(flip=True), Preprocessing(2), kind=Vectors())
    found = {str(augment(image, [seed, 0], label)[1].numpy().tolist()) for seed in range(8)}
    right, left = [[1.0, 3.0], [2.0, 3.0]], [[-2.0, 3.0], [-1.0, 3.0]]
    assert found == {str([row, [[x, 4.0] for x, _ in row]]) for row in (right, left)}
