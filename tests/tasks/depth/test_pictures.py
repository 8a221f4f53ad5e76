"""Colors of depth maps, their scale, and PNG files with 16 bits."""

import io

import numpy as np
import pytest
from matplotlib import colormaps
from PIL import Image

from keras_vit.tasks.depth.figures import depth_figure
from keras_vit.tasks.depth.pictures import (
    LARGEST,
    UNKNOWN,
    depth_colors,
    depth_png,
    depth_range,
    legend_picture,
    png_scale,
)


def test_colors_are_those_of_inferno_with_near_ones_bright():
    depths = np.linspace(2, 5, 256)
    expected = 255 * colormaps["inferno"].reversed()(np.linspace(0, 1, 256))[:, :3]
    assert np.abs(depth_colors(depths, 2, 5) - expected).max() < 12
    luminance = depth_colors(depths, 2, 5) @ [0.299, 0.587, 0.114]
    assert (np.diff(luminance) <= 1).all()
    np.testing.assert_array_equal(
        depth_colors(depths, 2, 5)[::-1], depth_colors(depths, 2, 5, near_is_high=True)
    )


def test_values_beyond_the_range_have_its_colors_and_unknown_ones_are_gray():
    found = depth_colors(np.array([0.0, 2.0, 5.0, 9.0, np.nan, np.inf]), 2, 5)
    assert found[0].tolist() == found[1].tolist() and found[2].tolist() == found[3].tolist()
    assert found[4].tolist() == found[5].tolist() == [*UNKNOWN]
    assert depth_range(np.full(3, np.nan)) == (0.0, 1.0)
    assert (depth_colors(np.full((2, 3), np.nan)) == UNKNOWN).all()
    assert depth_colors(np.full((2, 3), 7.0)).shape == (2, 3, 3)  # of one value


def test_a_png_file_has_the_values_to_half_its_scale(rng):
    values = rng.uniform(0.001, 10, (7, 9))
    values[0, 0] = np.nan
    scale = png_scale(10)
    with Image.open(io.BytesIO(depth_png(values, scale))) as image:
        numbers = np.asarray(image)
    assert numbers.dtype == np.uint16 and numbers[0, 0] == 0 and numbers.max() <= LARGEST
    np.testing.assert_allclose(numbers * scale, np.nan_to_num(values), atol=0.5001 * scale)
    assert png_scale(0) > 0


@pytest.mark.parametrize("size", [(3, 5), (200, 120)])
def test_a_legend_is_beside_the_colors(size, rng):
    values = rng.uniform(1, 4, size)
    found = legend_picture(values)
    low, high = depth_range(values)
    np.testing.assert_array_equal(found[: size[0], : size[1]], depth_colors(values, low, high))
    assert len(found) >= size[0] and found.shape[1] > size[1] + 14
    bar = found[:, size[1] + 14]
    assert bar[0].tolist() == [0, 0, 4] and bar[-1].tolist() == [252, 255, 164]  # far above near


@pytest.mark.parametrize("has_truth", [False, True])
def test_figures_have_a_panel_for_each_map_and_the_error(has_truth, rng):
    images = rng.uniform(size=(2, 8, 12, 3))
    truth = rng.uniform(1, 5, (2, 8, 12))
    truth[0, 0, 0] = np.nan
    figure = depth_figure(images, truth * 1.25, truth if has_truth else None, ["a", "b"], "Two")
    shown = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    assert len(shown) == (8 if has_truth else 4)
    if has_truth:
        errors = [each for each in shown if np.ptp(np.asarray(each), axis=-1).max() == 0]
        values = np.sort(np.unique(np.concatenate([np.ravel(each) for each in errors])))
        np.testing.assert_allclose(values, 0.5, atol=1e-6)  # 25 % wrong, and unknown
