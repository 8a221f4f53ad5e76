import numpy as np
import pytest

from keras_vit.inspection.panels import cosine_limits, evenly, fitted, relative, tiled


@pytest.mark.parametrize(
    "text, width, lines, wanted",
    [
        ("tiger", 5, 1, "tiger"),
        ("tiger", 4, 1, "tig…"),
        ("great white shark", 11, 2, "great white\nshark"),
        ("great white shark", 10, 2, "great\nwhite sha…"),
        ("great white shark", 8, 2, "great\nwhite s…"),
        ("great white shark", 6, 3, "great\nwhite\nshark"),
        ("path/to_the/file", 9, 2, "path/to_\nthe/file"),
        ("unbreakable", 6, 2, "unbrea\nkable"),
        ("abc", 0, 2, "a\nb…"),
        ("", 5, 2, ""),
    ],
)
def test_words_are_wrapped_and_cut(text, width, lines, wanted):
    assert fitted(text, width, lines, len) == wanted


@pytest.mark.parametrize("count, most, columns", [(1, 6, 1), (6, 6, 6), (7, 6, 4), (13, 5, 5), (25, 7, 7)])
def test_rows_are_about_equally_long(count, most, columns):
    assert evenly(count, most) == columns


def test_tiles_stand_side_by_side_with_gaps():
    similarity = np.arange(36.0).reshape(2, 3, 2, 3)
    picture = tiled(similarity, 1, 1)
    assert picture.shape == (5, 11)
    np.testing.assert_array_equal(picture[3:, 4:7], similarity[1, 1])
    assert np.isnan(picture[2]).all() and np.isnan(picture[:, [3, 7]]).all()
    np.testing.assert_array_equal(tiled(similarity, 2, 1)[:, 4:], similarity[0, 2])


def test_limits_are_the_same_for_all_that_is_compared():
    shown, limits = relative([[[0.5, 0.5]], [[0.0, 1.0]]])
    np.testing.assert_array_equal(shown, [[[1, 1]], [[0, 2]]])
    assert limits == (0, 2)
    assert cosine_limits(np.array([-0.21, 1, np.nan])) == (-0.3, 1)
    assert cosine_limits(np.ones(3)) == (0.9, 1)
