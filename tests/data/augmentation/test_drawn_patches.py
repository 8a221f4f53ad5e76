"""Patch sizes that are drawn for each batch: functions of the seed and the step alone."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data.augmentation.drawn_patches import drawn_patch_batches
from keras_vit.layers import extract_patches

SIZES = (2, 3, 6)
IMAGES = np.random.default_rng(0).random((4, 12, 18, 2), "float32")


def drawn(seed, first_step=0, images=IMAGES, steps=60):
    batches = tf.data.Dataset.from_tensors((images, np.arange(len(images)))).repeat(steps)
    return [*drawn_patch_batches(batches, SIZES, seed=seed, first_step=first_step)]


def sides(batches):
    return [round((patches.shape[-1] / 2) ** 0.5) for patches, _ in batches]


def test_patches_are_those_of_the_images_and_labels_are_passed_on():
    for patches, labels in drawn(0, steps=9):
        (side,) = sides([(patches, labels)])
        np.testing.assert_array_equal(patches, extract_patches(IMAGES, side))
        np.testing.assert_array_equal(labels, np.arange(4))


def test_the_size_is_a_function_of_the_seed_and_the_step():
    whole = sides(drawn(1))
    assert sides(drawn(1, first_step=20, steps=40)) == whole[20:]
    assert sides(drawn(1, images=IMAGES[:1])) == whole  # of another worker
    assert sides(drawn(2)) != whole


def test_all_sizes_are_drawn_equally_often():
    counts = np.unique(sides(drawn(3, images=IMAGES[:1], steps=300)), return_counts=True)
    assert counts[0].tolist() == [*SIZES]
    np.testing.assert_allclose(counts[1], 100, atol=5 * (300 * 2 / 9) ** 0.5)


def test_the_size_of_a_batch_stays_known():
    batches = tf.data.Dataset.from_tensors((IMAGES,))
    (spec,) = drawn_patch_batches(batches, SIZES, seed=0).element_spec
    assert spec.shape.as_list() == [4, None, None, None]
    with pytest.raises(tf.errors.InvalidArgumentError):
        [*drawn_patch_batches(batches, (5,), seed=0)]
