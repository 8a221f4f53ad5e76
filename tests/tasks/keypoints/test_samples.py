"""The parts of images around objects: where they are, and the points in them."""

import numpy as np
import pytest
import tensorflow as tf
from made.folders import write_keypoints

from keras_vit.data import Augmentation, load_dataset, training_batches
from keras_vit.preprocessing import Preprocessing
from keras_vit.tasks.keypoints import cropping
from keras_vit.tasks.keypoints.crops import to_image, window_of
from keras_vit.tasks.keypoints.labels import BOX_ROWS, label_of
from keras_vit.tasks.keypoints.reader import KeypointReader
from keras_vit.tasks.keypoints.samples import KeypointSamples, crop_augmentation, crop_batches

SIZE = 40, 60
PLAIN = Preprocessing((32, 24), mean=(0.0,) * 3, std=(1.0,) * 3)


def png(pixels):
    return tf.io.encode_png(tf.cast(pixels, tf.uint8))


@pytest.fixture
def ramp():
    """An image whose red is its column and whose green is its row, by pixels from 0."""
    rows, columns = np.mgrid[: SIZE[0], : SIZE[1]]
    return np.stack([columns, rows, 0 * rows], axis=2)


@pytest.mark.parametrize("box", [(10, 5, 30, 35), (4, 10, 44, 20), None])
def test_the_window_is_the_same_in_a_graph(box):
    fractions = None if box is None else np.array(box) / (SIZE[::-1] * 2)
    label = label_of([[0, 0, 0]], fractions)
    found = cropping.window_of(label, SIZE, (32, 24))
    np.testing.assert_allclose(found, window_of(box, SIZE, 24 / 32), rtol=1e-12)


def test_windows_of_several_objects_are_computed_at_once():
    boxes = np.array([[10, 5, 30, 35], [np.nan] * 4, [4, 10, 44, 20]])
    sizes = np.array([SIZE, (30, 50), SIZE])
    each = [window_of(None if np.isnan(box).any() else box, size, 0.75) for box, size in zip(boxes, sizes)]
    np.testing.assert_allclose(window_of(boxes, sizes, 0.75), each)


def test_the_pixels_of_a_window_are_those_of_its_places(ramp):
    label = label_of([[0, 0, 0]], np.array([20, 8, 35, 24]) / (SIZE[::-1] * 2))
    window = cropping.window_of(label, SIZE, PLAIN.image_size)
    pixels = cropping.cropped(tf.constant(ramp, tf.uint8), window, PLAIN).numpy()
    rows, columns = np.mgrid[:32, :24]
    places = to_image(np.stack([columns, rows], axis=2).reshape(-1, 2), window, (32, 24)) - 0.5
    np.testing.assert_allclose(pixels[..., :2].reshape(-1, 2), places, atol=2e-3)


def test_points_return_to_the_image(rng):
    """From the image to the crop by `place_of`, and back by `to_image`."""
    fractions = rng.random((5, 2))
    label = label_of(np.concatenate([fractions, np.full((5, 1), 2)], axis=1), (0.2, 0.1, 0.6, 0.9))
    window = cropping.window_of(label, SIZE, (32, 24))
    scale, offset = (numbers.numpy()[::-1] for numbers in cropping.place_of(window, SIZE, (32, 24)))
    indices = (fractions * scale + offset) * (24, 32) - 0.5
    np.testing.assert_allclose(to_image(indices, window, (32, 24)), fractions * SIZE[::-1], rtol=1e-9)


def test_trained_points_are_where_their_pixels_are(ramp):
    """Of a ramp the color at a point is the point itself, however the image is changed."""
    options = {"flip": True, "scale_jitter": (0.8, 2.0), "shift": 0.2, "rotate": 90}
    augment = crop_augmentation(Augmentation(**options), PLAIN)
    places = np.array([[25.0, 12], [30, 20], [22, 15]])
    fractions = (places + 0.5) / SIZE[::-1]
    label = label_of(
        np.concatenate([fractions, np.full((3, 1), 2)], axis=1), np.array([20, 8, 35, 24]) / (SIZE[::-1] * 2)
    )
    encoded, compared, mirrored, turned = png(ramp), 0, set(), set()
    for number in range(12):
        pixels, found = augment(encoded, [3, number], label)
        pixels, found = pixels.numpy() * 255, found.numpy()
        for place, (x, y, mark) in zip(places, found):
            column, row = x * 24 - 0.5, y * 32 - 0.5
            inside = 1 <= column <= 22 and 1 <= row <= 30
            if mark and inside:
                left, top = int(column), int(row)
                corner = pixels[top : top + 2, left : left + 2, :2]
                weights = np.outer([1 - row + top, row - top], [1 - column + left, column - left])
                np.testing.assert_allclose((corner * weights[..., np.newaxis]).sum((0, 1)), place, atol=0.05)
                compared += 1
        # In a mirrored image the columns rise against the rows, also in one that is turned.
        across = pixels[16, 13, :2] - pixels[16, 11, :2]
        down = pixels[17, 12, :2] - pixels[15, 12, :2]
        mirrored.add(bool(across[0] * down[1] - across[1] * down[0] < 0))
        turned.add(bool(abs(down[0]) > 0.5))
    assert compared > 15 and mirrored == turned == {True, False}


def test_a_point_that_is_mirrored_has_the_number_of_its_partner(ramp):
    augment = crop_augmentation(Augmentation(flip=True), PLAIN)
    label = label_of([[0.3, 0.5, 2], [0.6, 0.4, 1]], flip_index=(1, 0))
    both = {tuple(augment(png(ramp), [0, number], label)[1][:, 2].numpy()) for number in range(8)}
    assert both == {(2.0, 1.0), (1.0, 2.0)}


def test_the_same_seed_gives_the_same_crop(ramp):
    augment = crop_augmentation(Augmentation(scale_jitter=(0.5, 1.5), shift=0.1, photometric=0.5), PLAIN)
    label = label_of([[0.3, 0.5, 2]])
    first, again, other = (augment(png(ramp), [0, number], label) for number in (1, 1, 2))
    np.testing.assert_array_equal(first[0], again[0])
    assert np.abs(first[0] - other[0]).max() > 0.01 and np.abs(first[1] - other[1]).max() > 0.001


def test_batches_of_a_run_are_crops_with_points(tmp_path):
    write_keypoints(tmp_path)
    samples = load_dataset(f"folder:{tmp_path}", task="keypoints").split("train")
    augment = crop_augmentation(Augmentation(flip=True), PLAIN, samples.exif)
    batches = training_batches(samples, PLAIN, 4, seed=0, steps=2, augment=augment)
    assert [part.shape for part in next(iter(batches))] == [(4, 32, 24, 3), (4, 3, 3)]


def test_evaluation_has_each_object_once_with_what_returns_to_its_image(tmp_path):
    write_keypoints(tmp_path, size=(24, 32))
    samples = load_dataset(f"folder:{tmp_path}", task="keypoints").split("train")
    twice = KeypointSamples(samples.images[:2] * 2, samples.labels[:4], samples.reader, samples.exif)
    [(images, labels, windows, sizes, numbers)] = crop_batches(twice, PLAIN, 8).as_numpy_iterator()
    assert images.shape == (4, 32, 24, 3) and labels.shape == (4, 5, 4) and sizes.tolist() == [[24, 32]] * 4
    assert numbers[0] == numbers[2] != numbers[1] == numbers[3]  # Objects of one image have its number.
    boxes = (labels[:, :BOX_ROWS, :2] * (32, 24)).reshape(-1, 4)
    np.testing.assert_allclose(windows, window_of(boxes, sizes, 24 / 32))


def test_an_empty_split_is_refused():
    with pytest.raises(ValueError, match="^expected at least one sample; got none$"):
        crop_batches(KeypointSamples((), (), KeypointReader(("a",))), PLAIN, 4)
