"""Points from heat maps."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import gaussian_filter

RADIUS, SIGMA = 5, 0.8  # of the blur before the refinement, in pixels; the authors' sigma for 11 pixels is 2
LEAST, MOST = 1e-3, 50.0  # of the values whose logarithms are taken
EPSILON = np.finfo("float32").eps  # keeps the matrix of a flat map regular


def decoded(heat_maps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The points of heat maps, with a precision below a pixel, and their scores.

    The pixel of the largest value is moved by a Newton step of the logarithm of the blurred map, whose
    maximum is that of a Gaussian wherever its center lies.

    Args:
        heat_maps: (objects, height, width, points).

    Returns:
        (places, scores): float64 (objects, points, 2), x and y in pixels of the maps, of which the center of
        the first one is at 0; and float64 (objects, points), the largest values.

    Example:
        >>> from keras_vit.tasks.keypoints.loss import heat_maps
        >>> maps = np.asarray(heat_maps(np.array([[[0.4, 0.7, 2]]]), (64, 48)))
        >>> places, scores = decoded(maps)
        >>> expected = (np.array([0.4, 0.7]) * (192, 256) - 0.5) * (47 / 191, 63 / 255)
        >>> bool(np.abs(places[0, 0] - expected).max() < 0.01), scores.round(2).tolist()
        (True, [[0.99]])

    Source: Zhang et al. 2020 (DARK, arXiv 1910.06278) and Huang et al. 2020 (UDP, arXiv 1911.07524);
    `post_dark_unbiased_data_processing` of transformers' `image_processing_vitpose.py`.
    """
    maps = np.moveaxis(np.asarray(heat_maps, "float32"), -1, 1)
    objects, points, height, width = maps.shape
    flat = maps.reshape(objects, points, height * width)
    best, scores = flat.argmax(axis=2), flat.max(axis=2).astype("float64")
    rows, columns = np.divmod(best, width)
    blurred = gaussian_filter(maps, (0, 0, SIGMA, SIGMA), radius=(0, 0, RADIUS, RADIUS))
    logs = np.log(np.clip(blurred.astype("float64"), LEAST, MOST))
    logs = np.pad(logs, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    number, point = np.ogrid[:objects, :points]

    def at(down, right):
        return logs[number, point, rows + 1 + down, columns + 1 + right]

    center = at(0, 0)
    right, down = (at(0, 1) - at(0, -1)) / 2, (at(1, 0) - at(-1, 0)) / 2
    across, along = (
        after - 2 * center + before + EPSILON
        for after, before in ((at(0, 1), at(0, -1)), (at(1, 0), at(-1, 0)))
    )
    mixed = (at(1, 1) - at(0, 1) - at(1, 0) + 2 * center - at(0, -1) - at(-1, 0) + at(-1, -1)) / 2
    determinant = across * along - mixed**2
    steps = np.stack([along * right - mixed * down, across * down - mixed * right], axis=-1)
    is_regular = determinant[..., np.newaxis] != 0
    steps = np.divide(steps, determinant[..., np.newaxis], out=np.zeros_like(steps), where=is_regular)
    return np.stack([columns, rows], axis=-1) - steps, scores
