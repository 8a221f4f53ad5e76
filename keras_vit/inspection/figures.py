"""Figures of training runs, predictions and models; each function returns a matplotlib Figure.

Images are float arrays (height, width, 3 or 1) in [0, 1]. Every function raises `ValueError` for other images
and for arrays whose shapes do not match. Long names are wrapped and truncated. Characters that no available
font has are drawn as "□"; `matplotlib.rcParams["font.family"]` selects the fonts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.patches import Rectangle

from keras_vit.inspection.drawing import (
    BLUE,
    IMAGE,
    ORANGE,
    check_shapes,
    color_legend,
    image_grid,
    set_fonts,
    show,
    subplots,
    wrapped,
)
from keras_vit.messages import spelled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRAINING = {"color": BLUE, "linestyle": "-", "marker": "o", "label": "training"}
VALIDATION = {"color": ORANGE, "linestyle": "--", "marker": "s", "label": "validation"}
IMAGES, GRIDS = "n height width colors", "rows columns rows columns"


def learning_curves(
    rows: Sequence[dict[str, Any]],
    title: str,
    steps: Sequence[dict[str, Any]] = (),
    names: Sequence[str] | None = None,
) -> Figure:
    """Plot loss, metrics and learning rate over the steps of a run.

    Args:
        rows: Rows of a run's `metrics.csv`: dicts with `step` and, for example, `loss`, `accuracy`,
            `val_loss` and `val_accuracy`; a row may lack some.
        title: The figure's title.
        steps: Rows of its `steps.csv`: dicts with `step`, `loss` and `learning_rate`, which replace the
            values in `rows`.
        names: Those of `curve_names` to plot; None: all.

    Raises:
        ValueError: if there are no rows.

    Example:
        >>> row = {"step": 10, "loss": 2.0, "accuracy": 0.2, "val_loss": 2.1, "val_accuracy": 0.1}
        >>> learning_curves([row], "A short run").savefig("curves.png")
    """
    if not rows:
        raise ValueError("expected at least one row of metrics.csv; got none")
    names = names or curve_names(rows)
    figure, grid = subplots(title, math.ceil(len(names) / 3), min(len(names), 3), (4.2, 3.0))
    for axes in grid.flat[len(names) :]:
        axes.remove()
    for axes, name in zip(grid.flat, names):
        trained = steps or rows if name in ("loss", "learning_rate") else rows
        for key, table, style in ((name, trained, TRAINING), (f"val_{name}", rows, VALIDATION)):
            points = [(row["step"], row[key]) for row in table if key in row]
            if points:
                axes.plot(*zip(*points), **style | ({"marker": None} if len(points) > 40 else {}))
        axes.set(xlabel="step", ylabel=wrapped(spelled(name), 30))
        axes.locator_params(axis="x", nbins=6, integer=True)
        _legend(axes)
    return set_fonts(figure)


def curve_names(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names of the curves in a run's `metrics.csv`: loss first, learning rate last.

    >>> curve_names([{"step": 10, "learning_rate": 0.1, "accuracy": 0.2, "loss": 2.0, "val_loss": 2.1}])
    ['loss', 'accuracy', 'learning_rate']
    """
    excluded = ("step", "seconds", "images_per_second")
    names = dict.fromkeys(key.removeprefix("val_") for row in rows for key in row if key not in excluded)
    return sorted(names, key=lambda name: (name != "loss") + 2 * (name == "learning_rate"))


def prediction_grid(
    images: Sequence[np.ndarray] | np.ndarray,
    predicted: Sequence[Any],
    confidence: Sequence[float],
    truth: Sequence[Any] | None,
    title: str,
) -> Figure:
    """Draw images with the predicted class, its probability and the true class.

    Args:
        images: (n, height, width, 3).
        predicted: Names, one per image.
        confidence: Probabilities of the predicted classes.
        truth: Names, one per image; None where the class is unknown.
        title: The figure's title.

    Example:
        >>> prediction_grid(images[:1], ["cat"], [0.9], ["dog"], "One image").savefig("grid.png")
    """
    per_image = {"predicted": predicted, "confidence": confidence, "truth": truth}
    check_shapes(images=(images, IMAGES), **{name: (values, "n") for name, values in per_image.items()})
    count = len(images)
    figure, grid = image_grid(title, images[0], count, most=math.ceil(math.sqrt(count)), words=3)
    for axes, image, name, probability, true in zip(grid.flat, images, predicted, confidence, truth):
        wrong = true not in (name, None)
        text = f"{wrapped(name, 14, lines=2)} ({probability:.0%})"
        text += f"\n{wrapped(f'is {true}', 20)}" if wrong else ""
        show(axes, image)
        axes.set_title(text, color=ORANGE if wrong else "black", fontsize=9)
    return set_fonts(figure)


def contact_sheet(
    images: Sequence[np.ndarray] | np.ndarray,
    words: Sequence[str],
    title: str,
    colors: Mapping[str, Sequence[float]] | None = None,
) -> Figure:
    """Draw images with words below each.

    Args:
        images: (n, height, width, 3).
        words: One text per image, perhaps empty.
        title: The figure's title.
        colors: Of a legend beside the images: (red, green, blue) in [0, 1] by name. None: no legend.

    Example:
        >>> contact_sheet(images[:2], ["cat", "dog"], "Two images").savefig("sheet.png")
    """
    check_shapes(images=(images, IMAGES), words=(words, "n"))
    columns = math.ceil(math.sqrt(len(images)))
    figure, grid = image_grid(title, images[0], len(images), most=columns, words=2)
    if colors:
        color_legend(figure, colors)
    for axes, image, text in zip(grid.flat, images, words):
        show(axes, image)
        axes.set_title(wrapped(text, 18, lines=2), fontsize=8)
    return set_fonts(figure)


def picture_rows(rows: Sequence[dict[str, np.ndarray]], title: str) -> Figure:
    """Draw rows of pictures, such as images and below them what a model predicts of them.

    Args:
        rows: dict from the title of a row to its pictures, (n, height, width, 3), as many in each.
        title: The figure's title.

    Example:
        >>> figure = picture_rows({"image": images[:2], "inverted": 1 - images[:2]}, "Two images")
        >>> figure.savefig("rows.png")
    """
    check_shapes(**{name: (images, IMAGES) for name, images in rows.items()})
    first = next(iter(rows.values()))
    figure, grid = image_grid(title, first[0], len(first), len(rows), most=len(first), inches=1.2)
    for panels, (name, images) in zip(grid.T, rows.items()):
        panels[0].set_title(wrapped(name, 40), fontsize=9, loc="left")
        for axes, image in zip(panels, images):
            show(axes, image)
    return set_fonts(figure)


def pca_figure(
    images: Sequence[np.ndarray] | np.ndarray,
    components: np.ndarray,
    foregrounds: np.ndarray,
    names: Sequence[str] | None,
    title: str,
) -> Figure:
    """Draw images and, below each, the components of all its patches and those of its foreground.

    Args:
        images: (n, height, width, 3).
        components: (n, rows, columns, 3), as `feature_pca` returns them.
        foregrounds: The same, computed with the masks of `foreground`.
        names: One per image.
        title: The figure's title.

    Example:
        >>> from keras_vit.inspection import feature_pca
        >>> features = np.random.default_rng(0).normal(size=(1, 4, 4, 8))
        >>> pictures = [feature_pca(grid) for grid in features]
        >>> pca_figure(images[:1], pictures, pictures, ["noise"], "Components").savefig("pca.png")

    Source: Oquab et al. 2023 (DINOv2), figure 1.
    """
    axes = "n rows columns colors"
    grids = {"components": (components, axes), "foregrounds": (foregrounds, axes)}
    check_shapes(images=(images, IMAGES), **grids, names=(names, "n"))
    figure, grid = image_grid(title, images[0], len(images), rows=3, most=4, words=1, inches=2.4)
    height, width = np.shape(images[0])[:2]
    for column, image, pictures, name in zip(grid, images, zip(components, foregrounds), names):
        show(column[0], image)
        column[0].set_title(wrapped(name, 26, lines=2), fontsize=9)
        for axes, picture in zip(column[1:], pictures):
            # Patches need not be square, so a picture has the sides of its image.
            show(axes, picture, extent=(-0.5, width - 0.5, height - 0.5, -0.5))
    return set_fonts(figure)


def attention_overlay(
    images: Sequence[np.ndarray] | np.ndarray,
    maps: np.ndarray,
    names: Sequence[str] | None,
    title: str,
    artifacts: np.ndarray | None = None,
) -> Figure:
    """Draw images and, below each, its attention map over the image in gray.

    Args:
        images: (n, height, width, 3).
        maps: (n, rows, columns), each summing to 1, as `attention_rollout` returns them.
        names: One per image.
        title: The figure's title.
        artifacts: bool (n, rows, columns): patches that are crossed out, without their attention, such as
            `patch_norms(model, x) > 3`.

    Example:
        >>> maps = np.full((1, 4, 4), 1 / 16)
        >>> attention_overlay(images[:1], maps, ["cat"], "Uniform").savefig("attention.png")

    Source: Dosovitskiy et al. 2021, figure 6.
    """
    artifacts = np.zeros(np.shape(maps), bool) if artifacts is None else artifacts
    grids = {"maps": (maps, "n rows columns"), "artifacts": (artifacts, "n rows columns")}
    check_shapes(images=(images, IMAGES), **grids, names=(names, "n"))
    figure, grid = image_grid(title, images[0], len(images), rows=2, words=2)
    maps, limits = _relative(np.where(artifacts, 0, maps))
    for (above, below), image, attention, name, crossed in zip(grid, images, maps, names, artifacts):
        show(above, image)
        above.set_title(wrapped(name, 20, lines=2), fontsize=9)
        heat = _overlay(below, image, attention, limits)
        _cross_out(below, image, crossed)
    _attention_bar(figure, heat, grid, maps)
    return set_fonts(figure)


def head_figure(
    image: np.ndarray, maps: np.ndarray, title: str, artifacts: np.ndarray | None = None
) -> Figure:
    """Draw one image and the attention map of each head of a block over it, in rows of equally many heads.

    Args:
        image: (height, width, 3).
        maps: (heads, rows, columns), each summing to 1: what `attention_maps` returns for one image.
        title: The figure's title.
        artifacts: bool (rows, columns): patches that are crossed out, as of `attention_overlay`.

    Example:
        >>> maps = np.full((3, 4, 4), 1 / 16)
        >>> head_figure(images[0], maps, "Three uniform heads").savefig("heads.png")

    Source: Dosovitskiy et al. 2021, appendix D.8, per head.
    """
    artifacts = np.zeros(np.shape(maps)[1:], bool) if artifacts is None else artifacts
    grids = {"maps": (maps, "heads rows columns"), "artifacts": (artifacts, "rows columns")}
    check_shapes(image=(image, IMAGE), **grids)
    maps, limits = _relative(np.where(artifacts, 0, maps))
    count, most = len(maps), 6
    # The largest number of heads in a row that leaves no row short, or else rows of about one length.
    in_row = max((n for n in range(3, most + 1) if count % n == 0), default=-(-count // -(-count // most)))
    lines = -(-count // in_row)
    figure, grid = image_grid(title, image, lines * (in_row + 1), most=in_row + 1)
    grid = grid.reshape(lines, in_row + 1)  # with the image alone in the first column
    show(grid[0, 0], image)
    grid[0, 0].set_title("image", fontsize=9)
    for head, (axes, attention) in enumerate(zip(grid[:, 1:].flat, maps)):
        axes.set_title(f"head {head}", fontsize=9)
        heat = _overlay(axes, image, attention, limits)
        _cross_out(axes, image, artifacts)
    _attention_bar(figure, heat, grid, maps)
    return set_fonts(figure)


def similarity_figure(
    image: np.ndarray, similarity: np.ndarray, cells: Sequence[tuple[int, int]], title: str
) -> Figure:
    """Draw the similarity of a few chosen patches to all patches of the image, one map per chosen patch.

    Args:
        image: (height, width, 3).
        similarity: (rows, columns, rows, columns), cosines: what `patch_similarity` returns for one image.
        cells: Grid positions of the chosen patches: (row, column), from 0 at the top left.
        title: The figure's title.

    Raises:
        ValueError: if a chosen patch is outside the grid, or none is chosen.

    Example:
        >>> identity = np.eye(16).reshape(4, 4, 4, 4)
        >>> similarity_figure(images[0], identity, [(1, 2)], "Similar to nothing else").savefig("similar.png")
    """
    check_shapes(image=(image, IMAGE), similarity=(similarity, GRIDS))
    grid_size = np.shape(similarity)[:2]
    if not cells or not all(0 <= row < grid_size[0] and 0 <= column < grid_size[1] for row, column in cells):
        raise ValueError(
            "expected cells of (row, column) in a grid of {} × {}; got {}".format(*grid_size, cells)
        )
    maps = np.stack([similarity[row][column] for row, column in cells])
    figure, grid = image_grid(title, image, len(cells) + 1)
    first = grid.flat[0]
    show(first, image)
    first.set_title("chosen patches", fontsize=9)
    for number, (cell, axes, cosines) in enumerate(zip(cells, grid.flat[1:], maps), 1):
        axes.set_title("{}: row {}, column {}".format(number, *cell), fontsize=9)
        heat = _overlay(axes, image, cosines, _cosine_limits(maps))
        _mark(axes, image, cell, grid_size)
        middle = _mark(first, image, cell, grid_size)
        box = {"boxstyle": "square,pad=0.1", "facecolor": "black", "edgecolor": "none"}
        first.text(*middle, number, color="white", fontsize=7, ha="center", va="center", bbox=box)
    _color_bar(figure, heat, grid, "cosine similarity")
    return set_fonts(figure)


def filter_figure(components: np.ndarray, explained: np.ndarray, title: str) -> Figure:
    """Draw the principal components of the patch filters and the fraction of the variance of each.

    Gray is 0, and each component is scaled by its own largest absolute value; its sign is arbitrary.

    Args:
        components: (count, height, width, channels), with 3 channels, or 1 shown in gray.
        explained: (count,) fractions of the variance, which sum to at most 1.
        title: The figure's title.

    Raises:
        ValueError: if there are not 1 or 3 channels.

    Example:
        >>> filters = np.random.default_rng(0).normal(size=(5, 8, 8, 3))
        >>> filter_figure(filters, [0.5, 0.2, 0.1, 0.1, 0.1], "Noise").savefig("filters.png")

    Source: Dosovitskiy et al. 2021, figure 7 left.
    """
    check_shapes(components=(components, "n height width channels"), explained=(explained, "n"))
    components, explained = np.asarray(components), np.asarray(explained)
    if components.shape[-1] not in (1, 3):
        raise ValueError(f"expected filters of 1 or 3 channels; got {components.shape[-1]}")
    largest = np.abs(components).max(axis=(1, 2, 3), keepdims=True)
    images = 0.5 + components / np.where(largest > 0, 2 * largest, 1)
    figure, grid = image_grid(title, images[0], len(images), most=7, inches=0.8)
    for axes, image, fraction in zip(grid.flat, images, explained):
        show(axes, image)
        axes.set_title(f"{fraction:.1%}", fontsize=8)
    figure.supxlabel(f"gray is 0; fraction of the variance, {explained.sum():.1%} in total", fontsize=9)
    return set_fonts(figure)


def position_figure(similarity: np.ndarray, title: str) -> Figure:
    """Draw the similarity of each position embedding to all others, as one tile per position.

    In a model that has learned the image's two dimensions, each tile is brightest at its own position, and
    often along its row and column. Of a grid with more than 16 rows or columns every k-th is drawn, which
    the figure states.

    Args:
        similarity: (rows, columns, rows, columns), cosines: what `position_similarity` returns.
        title: The figure's title.

    Example:
        >>> position_figure(np.eye(16).reshape(4, 4, 4, 4), "All different").savefig("positions.png")

    Source: Dosovitskiy et al. 2021, figure 7 center.
    """
    check_shapes(similarity=(similarity, GRIDS))
    rows, columns = np.shape(similarity)[:2]
    every, gap = (math.ceil(max(rows, columns) / n) for n in (16, 12))
    tiles = np.asarray(similarity, float)[::every, ::every]
    tiles = np.pad(tiles, [(0, 0), (0, 0), (0, gap), (0, gap)], constant_values=np.nan)
    height, width = (count * size for count, size in zip(tiles.shape[:2], tiles.shape[2:]))
    picture = tiles.transpose(0, 2, 1, 3).reshape(height, width)[:-gap, :-gap]
    axes = _heatmap(title, picture, _cosine_limits(picture), "cosine similarity", inches=6)
    for axis, count in ((axes.yaxis, rows), (axes.xaxis, columns)):
        numbers = range(0, count, every)
        axis.set_ticks(
            [i * (count + gap) + (count - 1) / 2 for i in range(len(numbers))], numbers, fontsize=8
        )
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(xlabel="patch column", ylabel="patch row")
    if every > 1:
        axes.set_title(f"one of every {every} rows and columns of the {rows} × {columns} grid", fontsize=9)
    return set_fonts(axes.figure)


def distance_figure(distances: np.ndarray, title: str) -> Figure:
    """Plot the mean attention distance of each head, by block.

    A point is a head, the line their mean. Heads with a small distance attend locally, as a convolution does;
    heads with a large one attend across the image.

    Args:
        distances: Pixels, (blocks, heads), or (images, blocks, heads), which are averaged over the images.
        title: The figure's title.

    Example:
        >>> distance_figure([[3.0, 9.0], [8.0, 9.5]], "Two blocks").savefig("distances.png")

    Source: Dosovitskiy et al. 2021, figure 7 right, and appendix D.7.
    """
    check_shapes(distances=(distances, "images blocks heads" if np.ndim(distances) == 3 else "blocks heads"))
    means = np.mean(distances, axis=0) if np.ndim(distances) == 3 else np.asarray(distances)
    axes = _by_block(title, means, "mean attention distance (pixels)", "mean of the heads", "a head")
    axes.set_ylim(0, 1.08 * means.max() or 1)
    return set_fonts(axes.figure)


def block_accuracy_figure(accuracies: Sequence[Sequence[float]], title: str) -> Figure:
    """Plot the accuracy of a classifier of each block's features.

    A point is a seed, the line their mean.

    Args:
        accuracies: (blocks, seeds), in [0, 1], as `evaluation.probe_blocks` returns them.
        title: The figure's title.

    Example:
        >>> block_accuracy_figure([[0.7, 0.8], [0.9, 0.8], [0.6, 0.7]], "3 blocks").savefig("blocks.png")

    Source: Chen et al. 2020 (iGPT), figure 2.
    """
    check_shapes(accuracies=(accuracies, "blocks seeds"))
    axes = _by_block(title, np.asarray(accuracies), "accuracy", "mean of the seeds", "a seed")
    return set_fonts(axes.figure)


def confusion_figure(matrix: np.ndarray, class_names: Sequence[str], title: str) -> Figure:
    """Draw a confusion matrix as fractions of the true class; with up to 20 classes also the counts.

    Counts above 100,000 are shown as percentages of the true class.

    Args:
        matrix: int (classes, classes): samples of the row's class that were predicted as the column's.
        class_names: One name per class; shown for up to 60 classes.
        title: The figure's title.

    Example:
        >>> confusion_figure([[9, 1], [0, 5]], ["cat", "dog"], "Two classes").savefig("confusion.png")
    """
    check_shapes(matrix=(matrix, "classes classes"), class_names=(class_names, "classes"))
    matrix, classes = np.asarray(matrix), len(matrix)
    fractions = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    inches = min(max(0.45 * classes, 2.4), 12)
    axes = _heatmap(title, fractions, (0, 1), "fraction of the true class", inches)
    axes.set(xlabel="predicted", ylabel="true")
    if classes <= 60:
        names = [wrapped(name, 24) for name in class_names]
        fontsize, rotation = (9 if classes <= 20 else 7), 90 if max(map(len, names)) > 4 else 0
        axes.set_xticks(range(classes), names, fontsize=fontsize, rotation=rotation)
        axes.set_yticks(range(classes), names, fontsize=fontsize)
    if classes <= 20:
        is_large = matrix.max() >= 1e5  # as counts of pixels, for which a cell has no space
        for (row, column), count in np.ndenumerate(matrix):
            color = "black" if fractions[row, column] > 0.5 else "white"
            label = f"{100 * fractions[row, column]:.1f}" if is_large else str(count)
            axes.text(column, row, label, ha="center", va="center", color=color, fontsize=8)
    return set_fonts(axes.figure)


def _heatmap(title, values, limits, label, inches):
    """Return the axes of a new figure of values as colors, whose longer side is `inches`."""
    height, width = (inches * side / max(values.shape) for side in values.shape)
    figure, grid = subplots(title, 1, 1, (width + 2, max(height + 1, 2)))
    low, high = limits
    heat = grid[0, 0].imshow(values, cmap="viridis", vmin=low, vmax=high, interpolation="nearest")
    _color_bar(figure, heat, grid, label)
    return grid[0, 0]


def _color_bar(figure, heat, grid, label, extend="neither"):
    bar = figure.colorbar(heat, ax=grid.ravel().tolist(), extend=extend, shrink=0.8, pad=0.02)
    bar.set_label(label, size=9)
    bar.ax.tick_params(labelsize=8)


def _attention_bar(figure, heat, grid, maps):
    extend = "max" if np.max(maps) > heat.get_clim()[1] else "neither"
    _color_bar(figure, heat, grid, "attention / mean", extend)
    figure.supxlabel("1 is uniform attention over all patches", fontsize=9)


def _by_block(title, values, label, mean_label, point_label):
    """Return the axes of a new figure of values (blocks, points) with a line of their means."""
    blocks, points = values.shape
    figure, grid = subplots(title, 1, 1, (6.4, 3.8))
    axes = grid[0, 0]
    axes.plot(range(blocks), values.mean(axis=1), color=ORANGE, marker="D", label=mean_label)
    drawn = np.repeat(np.arange(blocks), points), values.ravel()
    axes.scatter(*drawn, color=BLUE, alpha=0.6, s=22, zorder=3, label=point_label)
    axes.set(xlabel="block", ylabel=label, xlim=(-0.5, blocks - 0.5))
    axes.set_xticks(range(0, blocks, math.ceil(blocks / 24)))
    _legend(axes)
    return axes


def _legend(axes):
    """Add a grid, and the legend above the plot, where it covers no points."""
    axes.legend(frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)
    axes.grid(alpha=0.3)


def _overlay(axes, image, values, limits):
    """Draw values over a gray image, larger ones more opaque; return what the color bar needs."""
    height, width = np.shape(image)[:2]
    axes.imshow(np.mean(image, axis=-1), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    low, high = limits
    opacity = 0.75 * np.clip((np.asarray(values) - low) / (high - low), 0, 1)
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    return axes.imshow(
        values, cmap="inferno", alpha=opacity, vmin=low, vmax=high, extent=extent, interpolation="bilinear"
    )


def _cross_out(axes, image, crossed):
    """Draw a cross on the middle of some patches, visibly on any image."""
    rows, columns = np.nonzero(crossed)
    height, width = np.array(np.shape(image)[:2]) / np.shape(crossed)
    middles = (columns + 0.5) * width - 0.5, (rows + 0.5) * height - 0.5
    for color, linewidth in (("black", 2.5), ("white", 1)):
        axes.scatter(*middles, s=16, marker="x", color=color, linewidths=linewidth)


def _mark(axes, image, cell, grid_size):
    """Frame a patch, visibly on any image; return the (x, y) of its middle."""
    height, width = np.array(np.shape(image)[:2]) / grid_size
    corner = cell[1] * width - 0.5, cell[0] * height - 0.5
    for color, linewidth in (("black", 3.5), ("white", 1.5)):
        axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=color, linewidth=linewidth))
    return corner[0] + width / 2, corner[1] + height / 2


def _relative(maps):
    """Divide maps by their mean; return them and limits, which one bright patch does not raise."""
    maps = np.asarray(maps) * np.shape(maps)[-1] * np.shape(maps)[-2]
    return maps, (0.0, max(2.0, float(np.quantile(maps, 0.995))))


def _cosine_limits(values):
    """Return the smallest value, rounded down to a tenth, and 1."""
    return min(math.floor(np.nanmin(values) * 10) / 10, 0.9), 1.0
