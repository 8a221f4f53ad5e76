"""Images with their labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from keras_vit.labels.label_kind import LabelKind
from keras_vit.tasks import label_colors, label_pictures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_COLORS = 24  # of a legend


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


def label_sheet(
    images: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    words: Sequence[str],
    kind: LabelKind,
    names: Sequence[str],
    title: str,
) -> Figure:
    """Draw images with their labels: boxes, class maps and depths as `labeled_picture`, the others in words.

    Args:
        images: Arrays (height, width, 3) in [0, 1], of one size.
        labels: As in a batch of the task.
        words: One text per image, perhaps empty.
        kind: The `LabelKind` of the labels.
        names: Of the classes, of which those in the pictures have their color in a legend.
        title: The figure's title.

    Example:
        >>> from keras_vit.labels import label_kind
        >>> masks = [np.eye(8, dtype="int32")]
        >>> kind = label_kind("segmentation")
        >>> figure = label_sheet([np.zeros((8, 8, 3))], masks, [""], kind, ["road", "car"], "One image")
        >>> figure.savefig("sheet.png")
    """
    from keras_vit.inspection.figures import contact_sheet  # It imports matplotlib.

    colors = None
    if kind.moves:
        images = [labeled_picture(image, label, kind.name) for image, label in zip(images, labels)]
        if find := label_colors().get(kind.name):
            colors = dict([*find(labels, names).items()][:MAX_COLORS])
    return contact_sheet(images, words, title, colors)
