"""Pictures of dense features: their first principal components as colors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.rules import integer

_CUT = 1.0  # percent of the positions at each end of a component that have its first or last color


def feature_pca(features: np.ndarray | Sequence[np.ndarray], count: int = 3) -> Any:
    """The first principal components of dense features, scaled to [0, 1].

    With three components these are the pictures by which the authors of DINO show what patches have in
    common. Images that are given together have common components, so that equal parts have equal colors.

    Args:
        features: A list of arrays (rows, columns, channels), as from `keras_vit.dense_features`, or one
            array.
        count: Number of components.

    Returns:
        A list of float32 arrays (rows, columns, count), or one array for one.

    Raises:
        ValueError: for arrays of other shapes, or more components than channels.

    Example:
        >>> features = keras_vit.dense_features(model, np.zeros((2, 40, 50, 3), "uint8"))
        >>> [picture.shape for picture in feature_pca(features)]
        [(5, 7, 3), (5, 7, 3)]

    Source: Oquab et al. 2023 (DINOv2), section 7.5 and figure 1.
    """
    single = isinstance(features, np.ndarray) and features.ndim == 3
    grids = [np.asarray(grid) for grid in ([features] if single else features)]
    if not grids or {grid.ndim for grid in grids} != {3} or len({grid.shape[-1] for grid in grids}) > 1:
        raise ValueError(
            "expected arrays (rows, columns, channels) with the same channels; got shapes "
            f"{[grid.shape for grid in grids]}"
        )
    channels = grids[0].shape[-1]
    if integer(at_least=1).check("count", count) > channels:
        raise ValueError(f"expected at most {channels} components, the channels; got {count}")
    mean = sum(grid.sum((0, 1), "float64") for grid in grids) / sum(grid[..., 0].size for grid in grids)
    # Of large images only a row of positions is in float64 at a time.
    rows = (row - mean for grid in grids for row in grid)
    _, vectors = np.linalg.eigh(sum(row.T @ row for row in rows))
    components = vectors[:, ::-1][:, :count]
    # The sign of a component is arbitrary; this makes it the same on every machine.
    largest = np.abs(components).argmax(axis=0)
    components = components * np.sign(components[largest, np.arange(count)])
    projected = [np.stack([(row - mean) @ components for row in grid]) for grid in grids]
    values = np.concatenate([grid.reshape(-1, count) for grid in projected])
    low, high = np.percentile(values, (_CUT, 100 - _CUT), axis=0)
    scale = np.where(high > low, high - low, 1)
    pictures = [np.clip((grid - low) / scale, 0, 1).astype("float32") for grid in projected]
    return pictures[0] if single else pictures
