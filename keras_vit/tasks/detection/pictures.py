"""Pictures with the boxes of objects drawn into them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from keras_vit.inspection.class_colors import class_colors
from keras_vit.messages import printable

if TYPE_CHECKING:
    from keras_vit.tasks.detection.detecting import Detections
    from keras_vit.tasks.segmentation.instances import Instances

SMALL = 64  # pixels of a side, below which boxes are a pixel wide


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
        >>> from keras_vit.tasks.detection.detecting import Detections
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
    texts = [
        f"{printable(str(names[number]))} {score:.0%}" for score, number in zip(found.scores, found.classes)
    ]
    return _drawn(image, found.boxes, colors, texts)


def with_boxes(image: np.ndarray, boxes: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """An image with boxes in the colors of their classes.

    Args:
        image: uint8 (height, width, 3).
        boxes: (boxes, 4): left, top, right and bottom, in pixels.
        classes: Ints (boxes,).

    Returns:
        uint8 (height, width, 3).

    Example:
        >>> with_boxes(np.zeros((4, 4, 3), "uint8"), np.array([[0, 0, 4, 4]]), np.array([0]))[3, 3].tolist()
        [128, 0, 0]
    """
    colors = box_colors(int(classes.max(initial=-1)) + 1)[classes]
    return _drawn(image, boxes, colors, [None] * len(boxes))


def _drawn(image, boxes, colors, texts):
    """The image with boxes, the first in front; labels stand above their boxes, and inside the image."""
    picture = Image.fromarray(image)
    height, width = image.shape[:2]
    side = max(height, width)
    line = 1 if side < SMALL else max(2, round(side / 300))
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(max(10, round(side / 50)))
    labels = []
    for box, color, text in [*zip(boxes.tolist(), map(tuple, colors.tolist()), texts)][::-1]:
        # The last row and column that a box covers.
        left, top, right, bottom = box
        right, bottom = max(left, min(right, width - 1)), max(top, min(bottom, height - 1))
        draw.rectangle((left, top, right, bottom), outline=color, width=line)
        if text is not None:
            labels.append((left, top, color, text))
    for left, top, color, text in labels:
        wide, high = draw.textbbox((0, 0), text, font=font)[2:]
        left = max(0, min(left, width - wide - 1))
        top = top - high - 1 if top > high else min(top, height - high - 1)
        draw.rectangle((left, top, left + wide + 1, top + high + 1), fill=color)
        draw.text((left + 1, top), text, font=font, fill=(0, 0, 0) if sum(color) > 380 else (255, 255, 255))
    return np.asarray(picture)


def box_colors(count):
    """The color of each class: uint8 (count, 3).

    >>> box_colors(2).tolist()
    [[128, 0, 0], [0, 128, 0]]
    """
    return class_colors(count + 1)[1:]  # Class 0 there is black, the background of masks.


def labeled(image, rows):
    """An image in [0, 1] with the boxes of a batch's label.

    >>> box = np.array([[0.0, 0.0, 1.0, 0.5, 1, 0, 0.5]])
    >>> labeled(np.zeros((8, 8, 3)), box)[0, 0].round(2).tolist()
    [0.0, 0.5, 0.0]
    """
    height, width = image.shape[:2]
    rows = rows[rows[:, 4] >= 0]
    pixels = np.round(image * 255).astype("uint8")
    return with_boxes(pixels, rows[:, :4] * ([width, height] * 2), rows[:, 4].astype(int)) / 255


def colors_of(labels, names):
    """The colors of the classes in batches' labels by name.

    >>> colors_of([np.array([[0, 0, 1, 1, 1, 0, 1], [0, 0, 0, 0, -1, 0, 0]])], ["cat", "dog"])
    {'dog': [0.0, 0.5, 0.0]}
    """
    numbers = sorted({int(number) for rows in labels for number in rows[:, 4] if number >= 0})
    colors = (box_colors(len(names)) / 255).round(2).tolist()
    return {names[number]: colors[number] for number in numbers}
