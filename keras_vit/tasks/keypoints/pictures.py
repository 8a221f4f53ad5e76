"""Pictures with keypoints drawn into them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from keras_vit.inspection.class_colors import class_colors
from keras_vit.tasks.keypoints.labels import UNLABELED

DRAWN = 0.2  # the least score of a point in a picture


def skeleton_overlay(
    image: np.ndarray,
    points: np.ndarray,
    skeleton: Sequence[tuple[int, int]] | None = None,
    least: float = DRAWN,
) -> np.ndarray:
    """An image with points of objects, and lines between those that the skeleton connects.

    Each point has a color and a white edge, and a line has the color of its second point.

    Args:
        image: uint8 (height, width, 3).
        points: (objects, points, 3): x and y in pixels of the image, and a score or a visibility.
        skeleton: Pairs of numbers of points; None for points alone.
        least: The score above which a point is drawn.

    Returns:
        uint8 (height, width, 3).

    Example:
        >>> points = np.array([[[2.5, 2.5, 0.9], [12.5, 2.5, 0.8], [8.5, 9.5, 0.1]]])
        >>> drawn = skeleton_overlay(np.zeros((12, 16, 3), "uint8"), points, [(0, 1), (1, 2)])
        >>> drawn[2, 2].tolist(), drawn[2, 8].tolist(), drawn[9, 8].tolist()
        ([128, 0, 0], [0, 128, 0], [0, 0, 0])
    """
    points = np.asarray(points, "float64")
    height, width = image.shape[:2]
    # Far outside of the picture Pillow's integers overflow.
    places = np.clip(points[..., :2] - 0.5, -max(height, width), 2 * max(height, width))
    picture, radius = Image.fromarray(image), max(2, round(max(height, width) / 100))
    draw = ImageDraw.Draw(picture)
    colors = [*map(tuple, point_colors(points.shape[1]).tolist())]
    for own, scores in zip(places.tolist(), points[..., 2]):
        for first, second in skeleton or ():
            if min(scores[first], scores[second]) > least:
                draw.line([*own[first], *own[second]], fill=colors[second], width=radius // 2)
        for (x, y), score, color in zip(own, scores, colors):
            if score > least:
                draw.ellipse((x - radius, y - radius, x + radius, y + radius), color, "white")
    return np.asarray(picture)


class Poses(NamedTuple):
    """The points of the objects in an image, as they are drawn.

    Attributes:
        points, skeleton, least: As for `skeleton_overlay`.
    """

    points: np.ndarray
    skeleton: Sequence[tuple[int, int]] | None = None
    least: float = DRAWN

    def overlay(self, image):
        """The `skeleton_overlay` of an image, uint8 (height, width, 3)."""
        return skeleton_overlay(image, *self)

    def enlarged(self, factor):
        """The same objects in an image that is larger by a factor.

        >>> Poses(np.array([[[2.5, 1.5, 0.9]]])).enlarged(2).points.tolist()
        [[[5.0, 3.0, 0.9]]]
        """
        return self._replace(points=self.points * (factor, factor, 1))


def point_colors(count):
    """The color of each point: uint8 (count, 3).

    >>> point_colors(2).tolist()
    [[128, 0, 0], [0, 128, 0]]
    """
    return class_colors(count + 1)[1:]  # Class 0 there is black, the background of masks.


def labeled(image, points):
    """An image in [0, 1] with the points of a batch's label.

    >>> labeled(np.zeros((8, 8, 3)), np.array([[0.5, 0.5, 2]]))[3, 3].round(2).tolist()
    [0.5, 0.0, 0.0]
    """
    height, width = image.shape[:2]
    pixels = np.round(image * 255).astype("uint8")
    return skeleton_overlay(pixels, (points * (width, height, 1))[np.newaxis], least=UNLABELED) / 255
