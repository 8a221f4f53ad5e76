"""The points of digits in scenes."""

import numpy as np

from keras_vit.tasks.keypoints.digit_points import label_of_ink
from keras_vit.tasks.keypoints.labels import AREA, BOX_ROWS, CORNER


def test_points_are_the_center_and_the_ends_of_the_ink():
    ink = np.array([[0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]], bool)
    label = label_of_ink(ink)
    np.testing.assert_allclose(label[:BOX_ROWS, :2] * 4, [[1, 1], [3, 3]])
    assert label[CORNER, AREA] == 3 / 16
    points = label[BOX_ROWS:, :2] * 4  # by pixels from edge to edge
    np.testing.assert_allclose(points, [[11 / 6, 11 / 6], [2, 1.5], [1.5, 2.5], [1.5, 2], [2.5, 1.5]])


def test_a_mirrored_digit_has_the_mirrored_points():
    ink = np.random.default_rng(0).random((8, 8)) < 0.3
    label, mirrored = label_of_ink(ink), label_of_ink(ink[:, ::-1])
    expected = label[BOX_ROWS:][[0, 1, 2, 4, 3], :2] * (-1, 1) + (1, 0)
    np.testing.assert_allclose(mirrored[BOX_ROWS:, :2], expected)
