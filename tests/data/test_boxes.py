import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf
from made.sampling import some
from made.scenes import few_scenes

from keras_vit.data import load_dataset
from keras_vit.data.augmentation.mosaic import mosaic_augmentation
from keras_vit.data.augmentation.options import Augmentation
from keras_vit.data.batches import box_batches, evaluation_batches, training_batches
from keras_vit.data.boxes import trained, visible
from keras_vit.data.samples import Samples
from keras_vit.labels.box_rows import decode_boxes, encode_boxes
from keras_vit.preprocessing import Preprocessing
from keras_vit.preprocessing.image_files import image_bytes

SIDES = (90, 120)
CHANGES = {
    "none": {},
    "crop": {"crop_area": (0.3, 1.0)},
    "scale": {"scale_jitter": (0.4, 1.8)},
    "shift": {"shift": 0.3},
    "flip": {"flip": True},
    "all": {"scale_jitter": (0.6, 1.5), "shift": 0.1, "flip": True, "photometric": 0.5},
}


def picture(rng, count=3):
    """A black image with rectangles, each of one color channel, and its rows of boxes."""
    image, rows = np.zeros((*SIDES, 3), "uint8"), []
    for channel in range(count):
        top, left = rng.integers(0, 50, 2)
        height, width = rng.integers(20, 40, 2)
        image[top : top + height, left : left + width, channel] = 255
        sides = np.array([left, top, left + width, top + height]) / np.tile(SIDES[::-1], 2)
        rows.append((*sides, channel, 0, height * width / np.prod(SIDES)))
    return image, rows


@pytest.fixture
def samples(rng):
    made = [picture(rng) for _ in range(8)]
    return Samples(
        tuple(image_bytes(image) for image, _ in made), tuple(encode_boxes(rows) for _, rows in made)
    )


def boxes_of_pixels(image):
    """By color channel the box of its bright pixels, in pixels."""
    found = {}
    for channel in range(3):
        ys, xs = np.nonzero(image[..., channel] > 0.5)
        if len(ys):
            found[channel] = np.array([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])
    return found


@pytest.mark.parametrize("name, resize", some([*zip(CHANGES, itertools.cycle(["crop", "squash", "pad"]))], 3))
def test_boxes_move_with_the_pixels(name, resize, samples):
    """Within a pixel and a half, which resizing blurs."""
    preprocessing = Preprocessing((64, 64), resize=resize, mean=(0,) * 3, std=(1,) * 3)
    augmentation = Augmentation(**{**CHANGES[name], "photometric": 0.0})
    batches = training_batches(samples, preprocessing, 8, seed=3, steps=4, augmentation=augmentation)
    compared = 0
    for images, labels in batches.as_numpy_iterator():
        assert labels.shape == (8, 100, 7)
        for image, rows in zip(images, labels):
            found = boxes_of_pixels(image)
            for left, top, right, bottom, channel, crowd, area in rows[rows[:, 4] >= 0].tolist():
                expected = 64 * np.array([left, top, right, bottom])
                np.testing.assert_allclose(found[int(channel)], expected, atol=1.6)
                assert crowd == 0 and area == pytest.approx((right - left) * (bottom - top), rel=1e-4)
                compared += 1
    assert compared > 40


@pytest.mark.slow
def test_crowds_are_not_trained_on_but_evaluated():
    rows = [[0, 0, 0.5, 0.5, 0, 1, 0.25], [0, 0, 1, 1, 1, 0, 1.0]]
    samples = Samples((image_bytes(np.zeros((8, 8, 3), "uint8")),), (encode_boxes(rows),))
    [(_, trained)] = training_batches(samples, Preprocessing(8), 1, seed=0, steps=1)
    [(_, evaluated)] = evaluation_batches(samples, Preprocessing(8), 1)
    assert trained[0, :, 4].numpy().tolist()[:3] == [1, -1, -1]
    assert evaluated[0, :, 4].numpy().tolist()[:3] == [0, 1, -1]


def test_boxes_that_are_hardly_visible_are_left_out():
    rows = tf.constant([[-0.8, 0, 0.2, 1, 0, 0, 1], [-0.7, 0, 0.3, 1, 1, 0, 1], [2, 0, 3, 1, 2, 0, 1.0]])
    np.testing.assert_allclose(visible(rows), [[0, 0, 0.3, 1, 1, 0, 0.3]], rtol=1e-6)


@pytest.mark.slow
def test_images_without_boxes(samples):
    empty = Samples(samples.images[:3], (b"", samples.labels[1], b""))
    assert empty[0][1].shape == (0, 7)
    [(_, labels)] = training_batches(empty, Preprocessing(32), 3, seed=0, steps=1)
    assert sorted((labels[..., 4].numpy() >= 0).sum(1).tolist()) == [0, 0, 3]
    batches = [*box_batches(empty, Preprocessing(32), 2).as_numpy_iterator()]
    assert [counts.tolist() for _, _, counts, _ in batches] == [[0, 3], [0]]
    assert [boxes.shape[1] for _, boxes, _, _ in batches] == [3, 0]


def test_a_step_draws_the_boxes_that_a_batch_holds():
    rows = np.tile([[0, 0, 1, 1, 0, 0, 1.0]], (150, 1))
    rows[:, 4] = range(150)
    drawn = [trained(tf.constant(rows, tf.float32), [0, position])[:, 4].numpy() for position in (1, 1, 2)]
    assert np.array_equal(*drawn[:2]) and not np.array_equal(*drawn[1:])
    for classes in drawn:
        assert len({*classes}) == 100 and 20 < sum(classes >= 100) < 47  # of 33.3, by a deviation of 2.7
        assert [*classes] == sorted(classes)
    assert trained(tf.constant(rows[50:], tf.float32), [0, 1])[:, 4].numpy().tolist() == [*range(50, 150)]


def test_a_mosaic_draws_the_boxes_that_a_batch_holds():
    rows = np.tile([[0, 0, 1, 1, 0, 0, 1.0]], (2, 100, 1)).astype("float32")
    rows[:, :, 4] = np.arange(200).reshape(2, 100)
    rows[:, 60:] = [0, 0, 0, 0, -1, 0, 0]
    make = mosaic_augmentation((0.0, 1.0, 0.0))
    boxes = [make(tf.ones((2, 8, 8, 3)), tf.constant(rows), [0, step])[1].numpy() for step in (1, 1, 2)]
    assert np.array_equal(*boxes[:2]) and not np.array_equal(*boxes[1:])
    for left, top in boxes[0][..., :2].reshape(2, 100, 2).transpose(0, 2, 1):
        corners = collections.Counter(zip(left.tolist(), top.tolist()))
        assert len(corners) == 4 and min(corners.values()) > 10  # of 25


@pytest.mark.slow
def test_more_boxes_than_a_batch_holds_are_left_out():
    rows = np.tile([[0, 0, 1, 1, 1, 0, 1.0]], (120, 1))
    samples = Samples((image_bytes(np.zeros((8, 8, 3), "uint8")),), (encode_boxes(rows),))
    [(_, labels)] = training_batches(samples, Preprocessing(8), 1, seed=0, steps=1)
    [(_, boxes, counts, sizes)] = box_batches(samples, Preprocessing(8), 1)
    assert labels.shape == (1, 100, 7) and boxes.shape == (1, 120, 7)
    assert counts.numpy().tolist() == [120] and sizes.numpy().tolist() == [[8, 8]]


def test_the_boxes_of_scenes_are_those_of_their_masks():
    boxes, masks = (few_scenes(task).split("test") for task in ("detection", "segmentation"))
    for (image, rows), (other, mask) in zip(boxes, masks, strict=True):
        assert image == other
        for left, top, right, bottom, digit, crowd, area in rows.tolist():
            part = mask[round(32 * top) : round(32 * bottom), round(32 * left) : round(32 * right), 0]
            assert (part == digit + 1).sum() >= round(area * 32**2) > 0 and crowd == 0
            assert all((edge == digit + 1).any() for edge in (part[0], part[-1], part[:, 0], part[:, -1]))
        assert {int(row[4]) + 1 for row in rows} == {*np.unique(mask)} - {0}


def test_encoded_rows_are_equal_for_equal_rows(rng):
    rows = rng.random((4, 7)).astype("float32")
    assert encode_boxes(rows) == encode_boxes(rows.tolist())
    np.testing.assert_array_equal(decode_boxes(encode_boxes(rows)), rows)


def test_labels_that_do_not_move_are_refused(samples):
    with pytest.raises(ValueError, match="with which they move; got mixup$"):
        training_batches(samples, Preprocessing(8), 1, seed=0, steps=1, augmentation=Augmentation(mixup=0.2))


@pytest.mark.slow
@pytest.mark.parametrize("grid", [2, 3])
def test_a_mosaic_has_the_boxes_of_its_images(grid, samples):
    probabilities = tuple(float(number == grid) for number in (1, 2, 3))
    preprocessing = Preprocessing((60, 66), mean=(0,) * 3, std=(1,) * 3)
    options = {"seed": 5, "steps": 2}
    [*plain] = training_batches(samples, preprocessing, 8, **options).as_numpy_iterator()
    mosaics = training_batches(
        samples, preprocessing, 8, augmentation=Augmentation(mosaic=probabilities), **options
    )
    for (_, before), (images, after) in zip(plain, mosaics.as_numpy_iterator(), strict=True):
        assert (after[..., 4] >= 0).sum() == grid**2 * (before[..., 4] >= 0).sum()
        for image, rows in zip(images, after):
            for left, top, right, bottom, channel, _, area in rows[rows[:, 4] >= 0].tolist():
                x, y = (left + right) / 2 * 66, (top + bottom) / 2 * 60
                assert image[int(y), int(x), int(channel)] > 0.5  # The center of a rectangle has its color.
                assert area == pytest.approx((right - left) * (bottom - top), rel=1e-3)
        # The first place has the image itself, whose boxes are smaller.
        first = before[:, :3, :4] / grid
        np.testing.assert_allclose(after[:, :3, :4], first, atol=1e-5)


@pytest.mark.slow
def test_mosaics_are_drawn_by_their_probabilities(samples):
    augmentation = Augmentation(mosaic=(0.5, 0.25, 0.25))
    batches = training_batches(samples, Preprocessing(30), 8, seed=0, steps=40, augmentation=augmentation)
    counts = np.concatenate([(labels[..., 4] >= 0).sum(1) for _, labels in batches.as_numpy_iterator()])
    found = [np.mean(counts == 3 * grid**2) for grid in (1, 2, 3)]
    np.testing.assert_allclose(found, [0.5, 0.25, 0.25], atol=0.1)


def test_mosaics_need_boxes():
    digits = load_dataset("digits").split("test")
    with pytest.raises(ValueError, match="^mosaic needs boxes; got labels of the task 'single_label'$"):
        training_batches(
            digits, Preprocessing(8), 4, seed=0, steps=1, augmentation=Augmentation(mosaic=(0, 1, 0))
        )
    with pytest.raises(ValueError, match="three probabilities, of 1, 4 and 9 images, with a positive sum"):
        Augmentation(mosaic=(0, 0, 0))
