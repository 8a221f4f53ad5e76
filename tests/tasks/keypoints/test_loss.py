"""Targets of heat maps, and the loss by visibility."""

import keras
import numpy as np
import pytest

from keras_vit.tasks.keypoints.crops import to_image
from keras_vit.tasks.keypoints.loss import KeypointLoss, heat_maps


def test_a_target_is_a_gaussian_at_the_point_itself():
    """By the definition, pixel by pixel: the first and last pixels of a map and of the input coincide."""
    place = np.array([77.3, 101.9])  # by pixels of an input of 192 × 256, of which the first one is at 0
    points = np.append((place + 0.5) / (192, 256), 2)[np.newaxis, np.newaxis]
    found = np.asarray(heat_maps(points, (64, 48)))[0, :, :, 0]
    x, y = place * (47 / 191, 63 / 255)
    rows, columns = np.mgrid[:64, :48]
    np.testing.assert_allclose(found, np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / 8), atol=1e-6)


def test_a_target_is_where_a_decoded_point_is():
    window = np.array([10.0, 20, 95.5, 127.5])
    point = to_image(np.array([[20.0, 30.0]]), window, (64, 48))[0]  # of pixel (20, 30) of the map
    fraction = ((point - 0.5 - window[:2]) / window[2:] * (191, 255) + 0.5) / (192, 256)
    maps = np.asarray(heat_maps(np.append(fraction, 2)[np.newaxis, np.newaxis], (64, 48)))
    assert np.unravel_index(maps.argmax(), maps.shape) == (0, 30, 20, 0) and maps.max() == pytest.approx(1)


def test_points_without_a_label_do_not_count(rng):
    points = rng.random((2, 3, 3)).astype("float32")
    points[..., 2] = [[2, 0, 1], [0, 0, 2]]
    outputs = rng.random((2, 8, 6, 3)).astype("float32")
    targets = np.asarray(heat_maps(points, (8, 6), sigma=2 * 6 / 48))
    errors = ((outputs - targets) ** 2).mean(axis=(1, 2))
    expected = (errors * (points[..., 2] > 0)).sum(axis=1) / 3
    loss = KeypointLoss(reduction=None)
    np.testing.assert_allclose(loss(points, outputs), expected, rtol=1e-5)
    assert float(KeypointLoss()(points, outputs)) == pytest.approx(expected.mean(), rel=1e-5)
    changed = outputs.copy()
    changed[:, :, :, 1] += 5.0
    np.testing.assert_allclose(loss(points, changed), expected, rtol=1e-5)


def test_sigma_scales_with_the_width_of_the_maps():
    points = np.array([[[0.5, 0.5, 2]]], "float32")
    narrow, wide = (np.asarray(heat_maps(points, (9, 9), sigma=sigma)) for sigma in (1.0, 2.0))
    assert float(KeypointLoss(sigma=2.0 * 48 / 9)(points, wide)) == pytest.approx(0, abs=1e-12)
    assert float(KeypointLoss(sigma=1.0 * 48 / 9)(points, narrow)) == pytest.approx(0, abs=1e-12)


def test_a_loss_is_the_same_after_it_is_stored():
    stored = keras.saving.serialize_keras_object(KeypointLoss(sigma=1.5, stride=2))
    loss = keras.saving.deserialize_keras_object(stored)
    assert (loss.sigma, loss.stride) == (1.5, 2)


@pytest.mark.parametrize("shape", [(2, 4, 3), (2, 3, 2)])
def test_labels_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"^expected labels of 3 keypoints \(x, y, visibility\).*; got"):
        KeypointLoss()(np.zeros(shape, "float32"), np.zeros((2, 8, 6, 3), "float32"))
