import numpy as np
import pytest

from keras_vit.labels import label_kind
from keras_vit.tasks.depth.labels import cropped

DEPTH = label_kind("depth")
NORMALS = np.float32([[[0, 0, 1], [0, 1, 0]]])


def test_depths_are_divided_by_the_zoom_and_several_channels_are_not():
    assert DEPTH.zoomed(np.float32([[[3], [np.nan]]]), 2).tolist()[0][0] == [1.5]
    np.testing.assert_array_equal(DEPTH.zoomed(NORMALS, 2), NORMALS)


def test_labels_have_a_channel_for_each_output():
    DEPTH.check(np.zeros((2, 4, 5, 3), "float32"), 3)
    for shape in ((2, 4, 5), (2, 4, 5, 1)):
        with pytest.raises(ValueError, match=r"expected depth maps \(height, width, 3\) per sample"):
            DEPTH.check(np.zeros(shape, "float32"), 3)


def test_a_label_in_words_has_the_range_of_each_channel():
    assert DEPTH.format(NORMALS, "xyz") == "x 0 to 0, y 0 to 1, z 0 to 1"
    assert DEPTH.format(np.full((2, 2, 1), np.nan), ["depth"]) == "none"
    with pytest.raises(ValueError, match="expected a depth map, which a table cannot hold; got '1'"):
        DEPTH.parse("1")


@pytest.mark.parametrize(
    ("crop", "size", "rows", "columns"),
    [
        ("nyu_eigen", (480, 640), (45, 471), (41, 601)),
        ("kitti_garg", (375, 1242), (153, 371), (44, 1197)),
        ("kitti_eigen", (375, 1242), (124, 342), (44, 1197)),
    ],
)
def test_crops_are_those_of_the_published_evaluations(crop, size, rows, columns):
    counted = np.isfinite(cropped(np.ones(size), crop))
    expected = np.zeros(size, bool)
    expected[slice(*rows), slice(*columns)] = True
    np.testing.assert_array_equal(counted, expected)
