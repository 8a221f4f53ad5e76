"""Figures; the only file that draws. Each function returns a matplotlib Figure."""

import math

import numpy as np
from matplotlib.figure import Figure

INK, OTHER = "#3b4cc0", "#d95f02"  # told apart by colour-blind readers and in print


def learning_curves(rows, title):
    """Loss and accuracy over the steps of a run.

    Args:
        rows: Rows of a run's `metrics.csv`: dicts with `step`, `loss`, `accuracy`, `val_loss` and
            `val_accuracy`.
        title: The figure's title.

    Example:
        >>> row = {"step": 10, "loss": 2.0, "accuracy": 0.2, "val_loss": 2.1, "val_accuracy": 0.1}
        >>> learning_curves([row], "A short run").savefig("curves.png")
    """
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    figure.suptitle(title)
    others = ("step", "seconds", "images_per_second", "learning_rate")
    names = [name for name in rows[-1] if name not in others and not name.startswith("val_")]
    names = sorted(names, key=lambda name: name != "loss")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False).flat, names):
        for key, color, style, marker, label in (
            (name, INK, "-", "o", "training"),
            (f"val_{name}", OTHER, "--", "s", "validation"),
        ):
            points = [(row["step"], row[key]) for row in rows if key in row]
            axes.plot(*zip(*points), color=color, linestyle=style, marker=marker, label=label)
        axes.set(xlabel="step", ylabel=name.replace("_", " "))
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    return figure


def prediction_grid(images, predicted, confidence, truth, title):
    """Images with what the model says of them, how sure it is, and what they are.

    Args:
        images: (n, height, width, 3), in [0, 1].
        predicted, truth: Names, one per image.
        confidence: Probabilities of the predicted classes.
        title: The figure's title.

    Example:
        >>> prediction_grid(images[:1], ["cat"], [0.9], ["dog"], "One image").savefig("grid.png")
    """
    columns = math.ceil(math.sqrt(len(images)))
    rows = math.ceil(len(images) / columns)
    figure = Figure(figsize=(1.7 * columns, 2.0 * rows + 0.5), layout="constrained")
    figure.suptitle(title)
    grid = figure.subplots(rows, columns, squeeze=False).flat
    for axes, *shown in zip(grid, images, predicted, confidence, truth):
        image, said, sure, true = shown
        right = said == true
        axes.imshow(image, interpolation="nearest")
        axes.set_title(
            f"{said} ({sure:.0%})" if right else f"{said} ({sure:.0%})\nis {true}",
            fontsize=9,
            color="black" if right else OTHER,
        )
    for axes in figure.axes:
        axes.axis("off")
    return figure


def attention_overlay(images, maps, names, title):
    """Images, and below each where the model looks.

    Args:
        images: (n, height, width, 3), in [0, 1].
        maps: (n, grid height, grid width), each summing to 1.
        names: One per image.
        title: The figure's title.

    Example:
        >>> maps = np.full((1, 4, 4), 1 / 16)
        >>> attention_overlay(images[:1], maps, ["cat"], "Evenly").savefig("attention.png")

    Source: Dosovitskiy et al. 2021, figure 6.
    """
    figure = Figure(figsize=(1.7 * len(images) + 1.2, 4.4), layout="constrained")
    figure.suptitle(title)
    grid = figure.subplots(2, len(images), squeeze=False)
    height, width = images.shape[1:3]
    for above, below, image, seen, name in zip(*grid, images, maps, names):
        above.imshow(image, interpolation="nearest")
        above.set_title(name, fontsize=9)
        below.imshow(image.mean(axis=-1), cmap="gray", interpolation="nearest")
        heat = below.imshow(
            seen * seen.size,
            cmap="cividis",
            alpha=0.65,
            extent=(-0.5, width - 0.5, height - 0.5, -0.5),
            interpolation="nearest",
            vmin=0,
            vmax=max(2.0, float(np.max(maps) * maps[0].size)),
        )
    for axes in grid.flat:
        axes.axis("off")
    figure.colorbar(heat, ax=list(grid[1]), label="attention / mean", shrink=0.8)
    return figure


def confusion_figure(matrix, class_names, title):
    """What is taken for what, as shares of the true class; up to 20 classes with the counts.

    Args:
        matrix: int (classes, classes): samples of the row's class that were taken for the column's.
        class_names: One name per class; shown up to 60 classes.
        title: The figure's title.

    Example:
        >>> confusion_figure([[9, 1], [0, 5]], ["cat", "dog"], "Two classes").savefig("confusion.png")
    """
    matrix, classes = np.asarray(matrix), len(matrix)
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    side = min(3.2 + 0.45 * classes, 14.0)
    figure = Figure(figsize=(side + 1.0, side), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots()
    heat = axes.imshow(shares, cmap="cividis", vmin=0, vmax=1, interpolation="nearest")
    axes.set(xlabel="predicted", ylabel="true")
    if classes <= 60:
        size = 9 if classes <= 20 else 6
        axes.set_xticks(range(classes), class_names, rotation=90, fontsize=size)
        axes.set_yticks(range(classes), class_names, fontsize=size)
    if classes <= 20:
        for (row, column), count in np.ndenumerate(matrix):
            color = "black" if shares[row, column] > 0.5 else "white"
            axes.text(column, row, str(count), ha="center", va="center", color=color, fontsize=8)
    figure.colorbar(heat, ax=axes, label="share of the true class", shrink=0.8)
    return figure
