"""Figures of depth maps; each function returns a matplotlib Figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize

from keras_vit.inspection.drawing import images_over_maps, set_fonts, show
from keras_vit.tasks.depth.pictures import depth_colors, depth_range

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BAR = 0.6  # inches for a scale of colors


def depth_figure(
    images: Sequence[np.ndarray] | np.ndarray,
    predicted: Sequence[Any],
    truth: Sequence[Any] | None,
    captions: Sequence[str],
    title: str,
    near_is_high: bool = False,
) -> Figure:
    """Draw images, below each the predicted depth, and below this the true one and the relative error.

    The colors of all depths are those of one range, near ones bright; errors are from white, 0, to dark, 50 %
    of the true depth or more. Pixels without a true depth are gray.

    Args:
        images: A list of (height, width, 3) in [0, 1], of any sizes.
        predicted: Depths, floats (height, width), one per image, in the unit of the truth.
        truth: The labels, likewise, NaN where there is none; or None.
        captions: One per image.
        title: The figure's title.
        near_is_high: Whether the values are inverse depths.

    Example:
        >>> depths = np.full(images.shape[1:3], 2.0)
        >>> shown = np.clip(images[:1], 0, 1)
        >>> depth_figure(shown, [1.1 * depths], [depths], ["wall"], "A wall").savefig("wall.png")
    """
    maps = {"predicted": predicted} | ({} if truth is None else {"true": truth})
    low, high = depth_range(*(predicted if truth is None else truth))

    def colors(_, depths):
        return depth_colors(depths, low, high, near_is_high) / 255

    has_truth = truth is not None
    figure, grid = images_over_maps(title, images, captions, maps, "depths", colors, spare=has_truth)
    for panels, estimate, true in zip(grid, predicted, truth) if has_truth else ():
        estimate, true = np.asarray(estimate, "float64"), np.asarray(true, "float64")
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.abs(estimate - true) / np.abs(true)
        light = np.where(np.isfinite(error), 1 - np.clip(2 * error, 0, 1), 0.5)
        show(panels[-1], light[..., np.newaxis])
        panels[-1].set_title("relative error", fontsize=8)
    _color_scale(figure, grid, low, high, near_is_high)
    return set_fonts(figure)


def _color_scale(figure, grid, low, high, near_is_high):
    """Add the scale of the colors at the right."""
    values = np.linspace(low, high, 256)
    colors = ListedColormap(depth_colors(values, low, high, near_is_high) / 255)
    figure.set_figwidth(figure.get_figwidth() + _BAR)
    scale = ScalarMappable(Normalize(low, high if high > low else low + 1), colors)
    bar = figure.colorbar(scale, ax=grid.ravel().tolist(), fraction=0.05, shrink=0.6, aspect=30)
    bar.ax.tick_params(labelsize=8)
    if not near_is_high:
        bar.ax.invert_yaxis()
