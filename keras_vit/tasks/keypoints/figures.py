"""Figures of keypoints; each function returns a matplotlib Figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.tasks.detection.figures import compared_figure
from keras_vit.tasks.keypoints.labels import UNLABELED
from keras_vit.tasks.keypoints.pictures import DRAWN

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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

    def drawn(objects, least):
        return [(points, np.asarray(points)[:, 2] > least, skeleton or ()) for points in objects]

    truth = truth if truth is None else drawn(truth, UNLABELED)
    return compared_figure(images, drawn(found, DRAWN), truth, captions, title, _draw)


def _draw(axes, image, drawn, color):
    """Draw some points of an object, and the lines between them, inside of the image."""
    points, is_drawn, skeleton = drawn
    height, width = np.shape(image)[:2]
    places = np.asarray(points, "float64")[:, :2] - 0.5  # Matplotlib has the center of the first pixel at 0.
    for ends in skeleton:
        if is_drawn[[*ends]].all():
            axes.plot(*places[[*ends]].T, color=color, lw=1)
    axes.scatter(*places[is_drawn].T, s=6, color=color, zorder=3)
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
