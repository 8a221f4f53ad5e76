"""Figures of keypoints; each function returns a matplotlib Figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.inspection.drawing import check_shapes, image_grid, set_fonts, show, wrapped
from keras_vit.tasks.keypoints.labels import UNLABELED
from keras_vit.tasks.keypoints.pictures import DRAWN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOUND, TRUE = "#ff7f0e", "#2ca02c"  # the colors of predicted and of true points


def keypoint_figure(
    images: Sequence[np.ndarray] | np.ndarray,
    found: Sequence[Any],
    truth: Sequence[Any] | None,
    captions: Sequence[str],
    title: str,
    skeleton: Sequence[tuple[int, int]] | None = None,
) -> Figure:
    """Draw images with predicted points, and below each with the true ones.

    Args:
        images: A list of (height, width, 3) in [0, 1], of any sizes.
        found: For each image (points, 3): x and y in pixels of the image, and the score; points of a score of
            0.2 or less are left out.
        truth: For each image (points, 3): x, y and visibility; or None.
        captions: One per image.
        title: The figure's title.
        skeleton: Pairs of numbers of points between which a line is drawn; None for points alone.

    Example:
        >>> shown, points = np.clip(images[:1], 0, 1), [[[5.0, 9.0, 0.8], [20.0, 11.0, 0.9]]]
        >>> keypoint_figure(shown, points, None, ["photo"], "Eyes", [(0, 1)]).savefig("eyes.png")
    """
    for values in (captions, found, *([] if truth is None else [truth])):
        check_shapes(images=(np.zeros(len(images)), "n"), values=(np.zeros(len(values)), "n"))
    figure, grid = image_grid(title, images[0], len(images), rows=1 if truth is None else 2, words=2)
    for number, (panels, image, caption) in enumerate(zip(grid, images, captions)):
        show(panels[0], image)
        _draw(panels[0], image, found[number], skeleton, DRAWN, FOUND)
        panels[0].set_title(wrapped(caption, 20, lines=2), fontsize=9)
        if truth is not None:
            show(panels[1], image)
            _draw(panels[1], image, truth[number], skeleton, UNLABELED, TRUE)
            panels[1].set_title("true", fontsize=8)
    return set_fonts(figure)


def _draw(axes, image, points, skeleton, least, color):
    """Draw the points of an object above a score, inside of the image."""
    height, width = np.shape(image)[:2]
    points = np.asarray(points, "float64")
    places = points[:, :2] - 0.5  # Matplotlib has the center of the first pixel at 0.
    is_drawn = points[:, 2] > least
    for ends in skeleton or ():
        if is_drawn[[*ends]].all():
            axes.plot(*places[[*ends]].T, color=color, lw=1)
    axes.scatter(*places[is_drawn].T, s=6, color=color, zorder=3)
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
