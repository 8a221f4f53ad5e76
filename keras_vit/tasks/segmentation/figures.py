"""Figures of class maps; each function returns a matplotlib Figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import to_rgb

from keras_vit.inspection.class_colors import class_colors
from keras_vit.inspection.drawing import (
    BLUE,
    IMAGE,
    ORANGE,
    YELLOW,
    check_shapes,
    color_legend,
    image_grid,
    images_over_maps,
    set_fonts,
    show,
    subplots,
    wrapped,
)
from keras_vit.labels import IGNORE
from keras_vit.tasks.segmentation.pictures import class_overlay

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_LEGEND = 20  # classes


def segmentation_figure(
    images: Sequence[np.ndarray] | np.ndarray,
    predicted: Sequence[Any],
    truth: Sequence[Any] | None,
    captions: Sequence[str],
    class_names: Sequence[str],
    title: str,
) -> Figure:
    """Draw images, below each the predicted classes over it, and below these the true ones.

    Class 0 is left without color, as `class_overlay` does.

    Args:
        images: A list of (height, width, 3), of any sizes.
        predicted: Class maps, ints (height, width), one per image.
        truth: The labels, likewise, or None. Pixels that they ignore have the color of class 255.
        captions: One per image.
        class_names: One name per class. The legend has the most frequent classes in the maps.
        title: The figure's title.

    Example:
        >>> classes = np.eye(images.shape[1], dtype=int)
        >>> figure = segmentation_figure(images[:1], [classes], None, ["photo"], ["sky", "line"], "A line")
        >>> figure.savefig("segmented.png")
    """
    maps = {"predicted": predicted} | ({} if truth is None else {"true": truth})
    figure, _ = images_over_maps(title, images, captions, maps, "classes", class_overlay)
    pixels = np.concatenate([np.ravel(each) for classes in maps.values() for each in classes])
    counts = np.bincount(pixels)[: len(class_names)]
    shown = [i for i in np.argsort(-counts, kind="stable") if counts[i]]
    colors = class_colors(len(class_names)) / 255
    legend = {str(class_names[i]): colors[i] if i else "none" for i in sorted(shown[:MAX_LEGEND])}
    color_legend(figure, legend)
    return set_fonts(figure)


def class_example_figure(
    images: Sequence[np.ndarray] | np.ndarray,
    predicted: Sequence[Any],
    truth: Sequence[Any] | None,
    numbers: Sequence[Any],
    captions: Sequence[str],
    title: str,
) -> Figure:
    """Draw an example for each of some classes: where it is found, where it is missed, and where it is not.

    Args:
        images: A list of (height, width, 3), of any sizes, one per class; drawn in gray.
        predicted, truth: Class maps, ints (height, width), one per image; ignored pixels are not marked.
        numbers: The classes.
        captions: One per class.
        title: The figure's title.

    Example:
        >>> classes = np.eye(images.shape[1], dtype=int)
        >>> figure = class_example_figure(images[:1], [classes], [1 - classes], [1], ["line"], "All wrong")
        >>> figure.savefig("examples.png")
    """
    per_image = {"predicted": predicted, "truth": truth, "numbers": numbers, "captions": captions}
    for values in per_image.values():
        check_shapes(images=(np.zeros(len(images)), "n"), values=(np.zeros(len(values)), "n"))
    figure, grid = image_grid(title, images[0], len(images), words=2)
    colors = {"right": BLUE, "missed": ORANGE, "predicted wrongly": YELLOW}
    for axes, image, found, label, number, caption in zip(grid.flat, images, *per_image.values()):
        check_shapes(image=(image, IMAGE), predicted=(found, "height width"), truth=(label, "height width"))
        is_found, is_true = np.asarray(found) == number, np.asarray(label) == number
        picture = np.repeat(np.mean(image, axis=-1, keepdims=True), 3, axis=-1)
        wrongly = is_found & ~is_true & (np.asarray(label) != IGNORE)
        for color, pixels in zip(colors.values(), (is_found & is_true, is_true & ~is_found, wrongly)):
            picture[pixels] = 0.3 * picture[pixels] + 0.7 * np.array(to_rgb(color))
        show(axes, picture)
        axes.set_title(wrapped(caption, 20, lines=2), fontsize=9)
    color_legend(figure, colors)
    return set_fonts(figure)


def iou_figure(classes: Sequence[dict[str, Any]], title: str) -> Figure:
    """Plot the intersection over union of each class; of more than 60 classes, of the lowest ones.

    Args:
        classes: Dicts with `name` and `iou`, as from `segmentation_classes`; classes without an IoU are left
            out.
        title: The figure's title.

    Raises:
        ValueError: if no class has an IoU.

    Example:
        >>> iou_figure([{"name": "sky", "iou": 0.9}, {"name": "line", "iou": 0.4}], "Two classes").savefig(
        ...     "iou.png"
        ... )
    """
    rows = [row for row in classes if row["iou"] is not None]
    if not rows:
        raise ValueError("expected a class with an IoU; got none")
    if len(rows) > 60:
        rows = sorted(rows, key=lambda row: row["iou"])[:60]
    figure, grid = subplots(title, 1, 1, (6.4, 0.6 + 0.22 * len(rows)))
    axes, values = grid[0, 0], [row["iou"] for row in rows]
    axes.barh(range(len(rows)), values, color=BLUE)
    for y, value in enumerate(values):
        axes.text(value + 0.01, y, f"{value:.2f}", va="center", fontsize=7)
    axes.set_yticks(range(len(rows)), [wrapped(row["name"], 24) for row in rows], fontsize=7)
    axes.set(xlabel="IoU", xlim=(0, 1.1), ylim=(len(rows) - 0.4, -0.6))
    return set_fonts(figure)
