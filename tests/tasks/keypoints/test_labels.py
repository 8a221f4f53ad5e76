"""Keypoints as labels: how they are stored, described, and move with their image."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import Augmentation, training_batches
from keras_vit.labels import label_kind
from keras_vit.preprocessing import Preprocessing
from keras_vit.tasks.keypoints import points
from keras_vit.tasks.keypoints.labels import BOX_ROWS, decode, encode, label_of
from keras_vit.tasks.keypoints.reader import KeypointReader
from keras_vit.tasks.keypoints.samples import KeypointSamples

KIND = label_kind("keypoints")
LABEL = label_of(
    [[0.25, 0.5, 2], [0.75, 0.25, 1], [0.9, 0.9, 0]], (0.125, 0.25, 0.875, 0.75), 0.3, flip_index=(1, 0, 2)
)


def test_a_label_is_the_same_after_it_is_stored():
    np.testing.assert_array_equal(decode(encode(LABEL)), LABEL)
    assert LABEL[-1].tolist() == [0, 0, 0, 2]  # without a label


def test_an_object_without_an_area_has_a_part_of_its_box():
    assert label_of([[0, 0, 1]], (0, 0, 0.5, 0.5))[0, 2] == pytest.approx(0.53 / 4)


def test_points_outside_of_the_image_have_no_label():
    moved = points.visible(points.moved(LABEL, [1.0, 2.0], [0.0, -0.5])).numpy()
    np.testing.assert_allclose(moved[BOX_ROWS:, :3], [[0, 0.5, 2], [1, 0.25, 1], [0, 0, 0]])
    np.testing.assert_allclose(moved[0, :3], [-0.25, 0.25, 0.6])


def test_a_mirrored_label_exchanges_left_and_right():
    mirrored = points.mirrored(LABEL, tf.constant(True)).numpy()
    np.testing.assert_allclose(mirrored[BOX_ROWS:, :3], [[0.25, 0.25, 1], [0.75, 0.5, 2], [0, 0, 0]])
    np.testing.assert_allclose(mirrored[:BOX_ROWS, :2], LABEL[:BOX_ROWS, :2])  # It is in the middle.
    np.testing.assert_allclose(points.mirrored(mirrored, tf.constant(True)), LABEL)
    np.testing.assert_array_equal(points.mirrored(LABEL, tf.constant(False)), LABEL)


def test_points_follow_their_pixels_through_every_change_of_an_image():
    """The augmentation of the package, without crops around objects: a bright pixel at a point of its own."""
    pixels = np.zeros((16, 16, 3), "uint8")
    pixels[4, 11] = 255
    image = tf.io.encode_png(pixels).numpy()
    label = encode(label_of([[11.5 / 16, 4.5 / 16, 2]]))
    samples = KeypointSamples((image,) * 8, (label,) * 8, KeypointReader(("a",)), exif=False)
    prepare = Preprocessing(16, mean=(0.0,) * 3, std=(1.0,) * 3)
    augmentation = Augmentation(flip=True, crop_area=(0.5, 1.0))
    batches = training_batches(samples, prepare, 8, seed=0, steps=4, augmentation=augmentation)
    compared = 0
    for images, labels in batches.as_numpy_iterator():
        for own, (point,) in zip(images[..., 0], labels):
            if point[2] > 0:
                weights = own / own.sum()
                center = [(weights.sum(axis) * (np.arange(16) + 0.5)).sum() / 16 for axis in (0, 1)]
                np.testing.assert_allclose(point[:2], center, atol=0.05)
                compared += 1
    assert compared > 12


def test_labels_of_another_number_of_points_are_refused():
    KIND.check(np.zeros((2, 3, 3)), 3)
    with pytest.raises(ValueError, match=r"^expected 4 keypoints \(x, y, visibility\) per sample.*\(3, 3\)$"):
        KIND.check(np.zeros((2, 3, 3)), 4)
    with pytest.raises(ValueError, match="^expected keypoints, which a table cannot hold; got '1'$"):
        KIND.parse("1")
