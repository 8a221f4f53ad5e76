"""Images with their labels: boxes, classes of pixels and depths."""

from __future__ import annotations

import numpy as np

from keras_vit.inspection.box_pictures import with_boxes
from keras_vit.inspection.class_map_pictures import class_overlay
from keras_vit.inspection.depth_pictures import depth_colors


def labeled_picture(image: np.ndarray, label: np.ndarray, task: str) -> np.ndarray:
    """An image with its label: boxes and class maps are drawn over it, and a depth map beside it.

    Args:
        image: (height, width, 3) in [0, 1].
        label: As in a batch of the task: rows of `labels.box_rows.COLUMNS`, or a map of the image's size.
        task: "detection", "segmentation" or "depth".

    Returns:
        float32 (height, width, 3) in [0, 1], for "depth" of twice the width.

    Example:
        >>> box = np.array([[0.0, 0.0, 1.0, 0.5, 1, 0, 0.5]])
        >>> labeled_picture(np.zeros((8, 8, 3)), box, "detection")[0, 0].round(2).tolist()
        [0.0, 0.5, 0.0]
    """
    return _DRAWN[task](image, label).astype("float32")


def _boxes(image, rows):
    height, width = image.shape[:2]
    rows = rows[rows[:, 4] >= 0]
    pixels = np.round(image * 255).astype("uint8")
    return with_boxes(pixels, rows[:, :4] * ([width, height] * 2), rows[:, 4].astype(int)) / 255


def _depths(image, values):
    return np.concatenate([image, depth_colors(values.mean(axis=-1)) / 255], axis=1)


_DRAWN = {"detection": _boxes, "segmentation": class_overlay, "depth": _depths}
