"""Pictures with the boxes of objects drawn into them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from keras_vit.inspection.class_map_pictures import class_colors
from keras_vit.messages import printable

if TYPE_CHECKING:
    from keras_vit.models.detection.detecting import Detections
    from keras_vit.models.segmentation.instances import Instances


def box_overlay(
    image: np.ndarray, found: Detections | Instances, names: Sequence[str], opacity: float = 0.5
) -> np.ndarray:
    """An image with the boxes, the names and the scores of objects, and with their masks if they have any.

    Objects without masks have the colors of their classes; those with masks have one each.

    Args:
        image: uint8 (height, width, 3).
        found: `Detections` or `Instances`, in pixels of the image.
        names: One name per class.
        opacity: Of the masks, in [0, 1].

    Returns:
        uint8 (height, width, 3).

    Example:
        >>> from keras_vit.models.detection.detecting import Detections
        >>> found = Detections(np.array([[2, 2, 9, 9]]), np.array([0.9]), np.array([1]))
        >>> drawn = box_overlay(np.zeros((12, 16, 3), "uint8"), found, ["cat", "dog"])
        >>> bool(drawn[9, 2:10].any()), drawn.shape
        (True, (12, 16, 3))
    """
    masks = getattr(found, "masks", None)
    kinds = found.classes if masks is None else np.arange(len(masks))
    colors = box_colors(int(kinds.max(initial=-1)) + 1)[kinds]
    # The best are drawn last, over the others.
    if masks is not None:
        image = image.copy()
        for mask, color in zip(masks[::-1], colors[::-1]):
            image[mask] = np.round((1 - opacity) * image[mask] + opacity * color)
    picture = Image.fromarray(image)
    draw, line = ImageDraw.Draw(picture), max(1, round(max(image.shape[:2]) / 300))
    objects = zip(found.boxes.tolist(), found.scores, found.classes, map(tuple, colors.tolist()))
    for box, score, number, color in [*objects][::-1]:
        draw.rectangle(box, outline=color, width=line)
        text = f"{printable(str(names[number]))} {score:.0%}"
        left, top, right, bottom = draw.textbbox(box[:2], text)
        down = max(0, bottom - top - box[1])
        draw.rectangle((left, top + down - 1, right + 1, bottom + down), fill=color)
        draw.text((box[0], box[1] + down), text, fill=(0, 0, 0) if sum(color) > 380 else (255, 255, 255))
    return np.asarray(picture)


def box_colors(count):
    """The color of each class: uint8 (count, 3).

    >>> box_colors(2).tolist()
    [[128, 0, 0], [0, 128, 0]]
    """
    return class_colors(count + 1)[1:]  # Class 0 there is black, the background of masks.
