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


def box_overlay(image: np.ndarray, found: Detections, names: Sequence[str]) -> np.ndarray:
    """An image with the boxes, the names and the scores of objects.

    Args:
        image: uint8 (height, width, 3).
        found: `Detections`, in pixels of the image.
        names: One name per class.

    Returns:
        uint8 (height, width, 3).

    Example:
        >>> from keras_vit.models.detection.detecting import Detections
        >>> found = Detections(np.array([[2, 2, 9, 9]]), np.array([0.9]), np.array([1]))
        >>> drawn = box_overlay(np.zeros((12, 16, 3), "uint8"), found, ["cat", "dog"])
        >>> bool(drawn[9, 2:10].any()), drawn.shape
        (True, (12, 16, 3))
    """
    picture = Image.fromarray(image)
    draw, line = ImageDraw.Draw(picture), max(1, round(max(image.shape[:2]) / 300))
    # Class 0 of `class_colors` is black, the background of masks.
    colors = class_colors(len(names) + 1)[1:]
    # The best are drawn last, over the others.
    for box, score, number in [*zip(found.boxes.tolist(), found.scores, found.classes)][::-1]:
        color = tuple(colors[number].tolist())
        draw.rectangle(box, outline=color, width=line)
        text = f"{printable(str(names[number]))} {score:.0%}"
        left, top, right, bottom = draw.textbbox(box[:2], text)
        down = max(0, bottom - top - box[1])
        draw.rectangle((left, top + down - 1, right + 1, bottom + down), fill=color)
        draw.text((box[0], box[1] + down), text, fill=(0, 0, 0) if sum(color) > 380 else (255, 255, 255))
    return np.asarray(picture)
