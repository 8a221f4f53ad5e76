"""Pictures of dense features: their first principal components as colors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.rules import integer

_CUT = 1.0  # percent of the positions at each end of a component that have its first or last color
_ROUNDING = 1e-5  # the part of a feature's size below which components are errors of float32


def feature_pca(
    features: np.ndarray | Sequence[np.ndarray],
    count: int = 3,
    masks: np.ndarray | Sequence[np.ndarray] | None = None,
) -> Any:
    """The first principal components of dense features, scaled to [0, 1].

    With three components these are the pictures by which the authors of DINO show what patches have in
    common. Images that are given together have common components, so that equal parts have equal colors.

    Args:
        features: A list of arrays (rows, columns, channels), as from `keras_vit.dense_features`, or one
            array.
        count: Number of components.
        masks: bool arrays (rows, columns), or one for one array: the positions whose components are
            computed, as of `foreground`. All others are 1, which is white. None for all positions.

    Returns:
        A list of float32 arrays (rows, columns, count), or one array for one. Components that are errors of
        rounding alone, as the second of two positions, are 0.

    Raises:
        ValueError: for arrays of other shapes, masks that match no features or have no position, or more
            components than channels.

    Example:
        >>> features = keras_vit.dense_features(model, np.zeros((2, 40, 50, 3), "uint8"))
        >>> [picture.shape for picture in feature_pca(features)]
        [(5, 7, 3), (5, 7, 3)]
        >>> feature_pca(features[0], masks=foreground(features[0])).shape
        (5, 7, 3)

    Source: Oquab et al. 2023 (DINOv2), section 7.5 and figure 1.
    """
    single = isinstance(features, np.ndarray) and features.ndim == 3
    if single:
        features, masks = [features], None if masks is None else [masks]
    grids = [np.asarray(grid) for grid in features]
    _check_grids(grids, count)
    masks = _masks_of(grids, masks)
    mean, components = _principal_components(grids, masks, count)
    projected = [np.stack([(row - mean) @ components for row in grid]) for grid in grids]
    values = np.concatenate([grid[mask] for grid, mask in zip(projected, masks)])
    low, high = np.percentile(values, (_CUT, 100 - _CUT), axis=0)
    rounding = _ROUNDING * (np.abs(mean).max() + (high - low).max())
    scale = np.where(high - low > rounding, high - low, np.inf)
    pictures = [np.clip((grid - low) / scale, 0, 1).astype("float32") for grid in projected]
    for picture, mask in zip(pictures, masks):
        picture[~mask] = 1
    return pictures[0] if single else pictures


def _check_grids(grids, count):
    if not grids or {grid.ndim for grid in grids} != {3} or len({grid.shape[-1] for grid in grids}) > 1:
        raise ValueError(
            "expected arrays (rows, columns, channels) with the same channels; got shapes "
            f"{[grid.shape for grid in grids]}"
        )
    channels = grids[0].shape[-1]
    if integer(at_least=1).check("count", count) > channels:
        raise ValueError(f"expected at most {channels} components, the channels; got {count}")


def _masks_of(grids, masks):
    """The masks of arrays after a check; of all positions for None."""
    if masks is None:
        masks = [np.ones(grid.shape[:2], bool) for grid in grids]
    masks = [np.asarray(mask) for mask in masks]
    if [(mask.shape, mask.dtype) for mask in masks] != [(grid.shape[:2], bool) for grid in grids]:
        raise ValueError(
            f"expected bool masks of shapes {[grid.shape[:2] for grid in grids]}; got "
            f"{[(mask.shape, mask.dtype.name) for mask in masks]}"
        )
    if not any(map(np.any, masks)):
        raise ValueError("expected masks with at least one position; got none")
    return masks


def _principal_components(grids, masks, count):
    """The mean (channels,) of all positions in masks, and their components (channels, count)."""
    positions = sum(map(np.count_nonzero, masks))
    mean = sum(grid[mask].sum(0, "float64") for grid, mask in zip(grids, masks)) / positions
    # Of large images only a row of positions is in float64 at a time.
    pairs = (pair for grid, mask in zip(grids, masks) for pair in zip(grid, mask))
    rows = (row[inside] - mean for row, inside in pairs)
    _, vectors = np.linalg.eigh(sum(row.T @ row for row in rows))
    components = vectors[:, ::-1][:, :count]
    # The sign of a component is arbitrary; this makes it the same on every machine.
    largest = np.abs(components).argmax(axis=0)
    return mean, components * np.sign(components[largest, np.arange(count)])


def foreground(features: np.ndarray) -> np.ndarray:
    """The positions of what the first principal component of an image's features separates from the rest.

    The component is divided where the variance between its two parts is largest (Otsu 1979). The foreground
    is the part with the smaller fractions of the image and its border in sum. No label says which part is an
    object.

    Args:
        features: Array (rows, columns, channels), as from `keras_vit.dense_features`.

    Returns:
        bool array (rows, columns); of features that are all equal, True everywhere.

    Raises:
        ValueError: for an array of another shape.

    Example:
        >>> features = np.zeros((4, 5, 3))
        >>> features[1:3, 2] = 1
        >>> foreground(features).astype(int).tolist()
        [[0, 0, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]]

    Source: Oquab et al. 2023 (DINOv2), section 7.5, which also divides the first component by a threshold.
    """
    first = feature_pca(np.asarray(features), count=1)[..., 0]
    values, counts = np.unique(first, return_counts=True)
    if len(values) == 1:
        return np.ones(first.shape, bool)
    below, sums = np.cumsum(counts)[:-1], np.cumsum(counts * values.astype("float64"))
    above = first.size - below
    between = below * above * (sums[:-1] / below - (sums[-1] - sums[:-1]) / above) ** 2
    mask = first > values[between.argmax()]
    border = np.ones(first.shape, bool)
    border[1:-1, 1:-1] = False
    return mask if mask[border].mean() + mask.mean() <= 1 else ~mask
