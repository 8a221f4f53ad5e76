"""Figures of detections; each function returns a matplotlib Figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.patches import Rectangle

from keras_vit.inspection.drawing import check_shapes, image_grid, set_fonts, show, subplots, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOUND, TRUE = "#ff7f0e", "#2ca02c"  # the colors of predicted and of true boxes
MAX_DRAWN = 50  # boxes in an image
LABEL = 0.1  # of the height of an image


def detection_figure(
    images: Sequence[np.ndarray] | np.ndarray,
    found: Sequence[Any],
    truth: Sequence[Any] | None,
    captions: Sequence[str],
    class_names: Sequence[str],
    title: str,
) -> Figure:
    """Draw images with the predicted boxes, and below each with the true ones.

    Args:
        images: A list of (height, width, 3) in [0, 1], of any sizes.
        found: For each image the `Detections` of a detector, in pixels of the image.
        truth: For each image its rows of `labels.box_rows.COLUMNS`, in fractions of the image; or None.
        captions: One per image.
        class_names: One name per class.
        title: The figure's title.

    Example:
        >>> detector = keras_vit.ObjectDetector(keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3), 1)
        >>> found = detector.detect(images, threshold=0.0, top=3, value_range=(-10, 10))
        >>> shown = np.clip(images, 0, 1)
        >>> figure = detection_figure(shown, found, None, ["photo"] * len(images), ["cat"], "Cats")
        >>> figure.savefig("found.png")
    """
    labeled = [
        (one.boxes, [f"{class_names[c]} {score:.0%}" for c, score in zip(one.classes, one.scores)])
        for one in found
    ]
    if truth is not None:
        truth = [_true(image, rows, class_names) for image, rows in zip(images, truth, strict=True)]
    return compared_figure(images, labeled, truth, captions, title, _draw)


def compared_figure(images, found, truth, captions, title, draw):
    """Draw images with what is found in them, and below each with what is true.

    Args:
        images, captions, title: As for `detection_figure`.
        found, truth: A value for each image; or None for `truth`.
        draw: A function of axes with an image, the image, its value and a color.
    """
    values = [found] if truth is None else [found, truth]
    for each in (captions, *values):
        check_shapes(images=(np.zeros(len(images)), "n"), values=(np.zeros(len(each)), "n"))
    figure, grid = image_grid(title, images[0], len(images), rows=len(values), words=2)
    for panels, image, caption, *of_image in zip(grid, images, captions, *values):
        for axes, value, color in zip(panels, of_image, (FOUND, TRUE)):
            show(axes, image)
            draw(axes, image, value, color)
            axes.set_title("true", fontsize=8)
        panels[0].set_title(wrapped(caption, 20, lines=2), fontsize=9)
    return set_fonts(figure)


def _true(image, rows, class_names):
    """The boxes in pixels of an image, and their names."""
    height, width = np.shape(image)[:2]
    rows = np.asarray(rows)
    rows = rows[rows[:, 4] >= 0]
    names = [str(class_names[int(row[4])]) + " (crowd)" * bool(row[5]) for row in rows]
    return rows[:, :4] * ([width, height] * 2), names


def _draw(axes, image, labeled, color):
    """Draw boxes with their names above them, or below their upper edge where the image ends there."""
    boxes, names = labeled
    middle, style = np.mean(axes.get_xlim()), {"fontsize": 6, "color": "white"}
    # Matplotlib has the center of the first pixel at 0.
    for (left, top, right, bottom), name in [*zip(boxes - 0.5, names)][:MAX_DRAWN]:
        axes.add_patch(
            Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=color, lw=1.2)
        )
        at = {"x": left, "ha": "left"} if left < middle else {"x": right, "ha": "right"}
        at |= {"y": top, "va": "bottom" if top > LABEL * axes.get_ylim()[0] else "top"}
        axes.text(s=wrapped(name, 18), bbox={"color": color, "pad": 0.5}, **at, **style)


def precision_recall_figure(curves: Mapping[str, np.ndarray], title: str) -> Figure:
    """Draw the precision at 101 recalls from 0 to 1.

    Args:
        curves: By name what `evaluation.precision_recall` returns.
        title: The figure's title.

    Example:
        >>> precision_recall_figure({"IoU 0.50": np.linspace(1, 0, 101)}, "A detector").savefig("curve.png")
    """
    figure, grid = subplots(title, 1, 1, (5.0, 3.6))
    axes = grid[0, 0]
    for name, curve in curves.items():
        axes.plot(np.linspace(0, 1, len(curve)), curve, label=wrapped(name, 24))
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(fontsize=8, frameon=False)
    return set_fonts(figure)
