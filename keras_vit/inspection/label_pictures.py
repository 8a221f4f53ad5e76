"""Images with their labels."""

from __future__ import annotations

import numpy as np

from keras_vit.tasks import label_pictures


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
    return label_pictures()[task](image, label).astype("float32")
