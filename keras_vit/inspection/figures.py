"""Figures; the only file that draws. Each function returns a matplotlib Figure.

Images are floats (height, width, 3) in [0, 1]. A ValueError says where they are not, and where arrays have
other shapes than Args says or do not fit each other, such as too few names. Words too long for their place
are wrapped and then cut with "…". Characters that no font at hand has become "□";
`matplotlib.rcParams["font.family"]` names fonts to use.
"""

import math

import numpy as np
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font
from matplotlib.text import Text
from matplotlib.textpath import text_to_path

from keras_vit.inspection import panels

INK, OTHER = "#3b4cc0", "#d95f02"  # told apart by colour-blind readers and in print
TRAINING = {"color": INK, "linestyle": "-", "marker": "o", "label": "training"}
VALIDATION = {"color": OTHER, "linestyle": "--", "marker": "s", "label": "validation"}
POINTS = {"color": INK, "alpha": 0.6, "s": 22, "zorder": 3}
IMAGE, IMAGES = "height width colors", "n height width colors"  # for panels.check, as the next
GRIDS = "rows columns rows columns"
EVENLY = "1 is uniform attention over all patches"
# matplotlib's own font has Latin, Greek, Cyrillic, Arabic and a few more; for others, what is installed.
OTHER_SCRIPTS = [
    *("Noto Sans CJK JP", "Hiragino Sans", "PingFang SC", "Microsoft YaHei", "Malgun Gothic", "Nirmala UI"),
    *("Noto Sans Devanagari", "Noto Sans Bengali", "Noto Sans Tamil", "Noto Sans Thai", "Arial Unicode MS"),
]


def learning_curves(rows, title, steps=()):
    """Loss, scores and learning rate over the steps of a run, each in a panel.

    Args:
        rows: Rows of a run's `metrics.csv`: dicts with `step` and, say, `loss`, `accuracy`, `val_loss` and
            `val_accuracy`; a row may lack some.
        title: The figure's title.
        steps: Rows of its `steps.csv`: dicts with `step`, `loss` and `learning_rate`, which replace those of
            `rows`.

    Raises:
        ValueError: if there are no rows.

    Example:
        >>> row = {"step": 10, "loss": 2.0, "accuracy": 0.2, "val_loss": 2.1, "val_accuracy": 0.1}
        >>> learning_curves([row], "A short run").savefig("curves.png")
    """
    if not rows:
        raise ValueError("received no rows; a learning curve needs at least one row of metrics.csv")
    others = ("step", "seconds", "images_per_second")
    names = dict.fromkeys(key.removeprefix("val_") for row in rows for key in row if key not in others)
    names = sorted(names, key=lambda name: (name != "loss") + 2 * (name == "learning_rate"))
    figure, charts = panels.charts(Figure(), _fit, title, len(names), 4.2, 3.0)
    for axes, name in zip(charts, names):
        trained = steps or rows if name in ("loss", "learning_rate") else rows
        for key, table, look in ((name, trained, TRAINING), (f"val_{name}", rows, VALIDATION)):
            points = [(row["step"], row[key]) for row in table if key in row]
            if points:
                marks = {"marker": None} if len(points) > 40 else {"markevery": math.ceil(len(points) / 20)}
                axes.plot(*zip(*points), **look | marks)
        axes.set(xlabel="step", ylabel=_fit(name.replace("_", " "), 2.4, 10))
        axes.locator_params(axis="x", nbins=6, integer=True)
        panels.legend(axes)
    return _finished(figure)


def prediction_grid(images, predicted, confidence, truth, title):
    """Images with what the model says of them, how sure it is, and what they are.

    Args:
        images: (n, height, width, 3).
        predicted: Names, one per image.
        confidence: Probabilities of the predicted classes.
        truth: Names, one per image; None where nobody knows.
        title: The figure's title.

    Example:
        >>> prediction_grid(images[:1], ["cat"], [0.9], ["dog"], "One image").savefig("grid.png")
    """
    each = {"predicted": predicted, "confidence": confidence, "truth": truth}
    panels.check(images=(images, IMAGES), **{name: (values, "n") for name, values in each.items()})
    width, height = panels.panel_size(images, 1.6)
    texts = []
    for said, sure, true in zip(predicted, confidence, truth):
        text = _fit(said, width - _measure(9)(" (100%)"), 9, lines=2) + f" ({sure:.0%})"
        texts.append(text if true in (said, None) else f"{text}\n{_fit(f'is {true}', width, 9, lines=2)}")
    columns = math.ceil(math.sqrt(len(images)))
    rows = [(panels.words_above(texts[i : i + columns]), height) for i in range(0, len(texts), columns)]
    figure, grid, _ = panels.sheet(Figure(), _fit, title, "", rows, columns, width)
    for axes, image, text, said, true in zip(grid.flat, images, texts, predicted, truth):
        panels.show(axes, image)
        axes.set_title(text, color="black" if true in (said, None) else OTHER, fontsize=9)
    return _finished(figure)


def attention_overlay(images, maps, names, title):
    """Images, and below each its attention map in color over the image in grey.

    Args:
        images: (n, height, width, 3).
        maps: (n, rows, columns), each summing to 1, as `attention_rollout` returns them.
        names: One per image.
        title: The figure's title.

    Example:
        >>> maps = np.full((1, 4, 4), 1 / 16)
        >>> attention_overlay(images[:1], maps, ["cat"], "Evenly").savefig("attention.png")

    Source: Dosovitskiy et al. 2021, figure 6.
    """
    panels.check(images=(images, IMAGES), maps=(maps, "n rows columns"), names=(names, "n"))
    width, height = panels.panel_size(images, 1.8)
    columns = panels.evenly(len(images), 6)
    words = [_fit(name, width, 9, lines=2) for name in names]
    rows = []
    for i in range(0, len(words), columns):
        rows += [(panels.words_above(words[i : i + columns]), height), (0, height)]
    figure, grid, bar = panels.sheet(Figure(), _fit, title, EVENLY, rows, columns, width, bar=True)
    shown, limits = panels.relative(maps)
    for above, below, image, seen, word in zip(grid[::2].flat, grid[1::2].flat, images, shown, words):
        panels.show(above, image)
        above.set_title(word, fontsize=9)
        heat = panels.overlay(below, image, seen, limits)
    panels.colorbar(figure, heat, bar, "attention / mean", shown.max())
    return _finished(figure)


def head_figure(image, maps, title):
    """One image, and the attention map of each head of a block in color over the image in grey.

    Args:
        image: (height, width, 3).
        maps: (heads, rows, columns), each summing to 1: what `attention_maps` returns for one image.
        title: The figure's title.

    Example:
        >>> maps = np.full((3, 4, 4), 1 / 16)
        >>> head_figure(images[0], maps, "Three heads, evenly").savefig("heads.png")

    Source: Dosovitskiy et al. 2021, appendix D.8, by head.
    """
    panels.check(image=(image, IMAGE), maps=(maps, "heads rows columns"))
    shown, limits = panels.relative(maps)
    figure, (first, *others), bar = panels.beside(Figure(), _fit, image, len(shown), title, EVENLY)
    first.set_title("image", fontsize=9)
    for head, (axes, seen) in enumerate(zip(others, shown)):
        axes.set_title(f"head {head}", fontsize=9)
        heat = panels.overlay(axes, image, seen, limits)
    panels.colorbar(figure, heat, bar, "attention / mean", shown.max())
    return _finished(figure)


def similarity_figure(image, similarity, cells, title):
    """How like each patch is to a few chosen ones: the patches are marked, and each has its map.

    Args:
        image: (height, width, 3).
        similarity: (rows, columns, rows, columns), cosines: what `patch_similarity` returns for one image.
        cells: The chosen patches: (row, column), from 0 at the top left.
        title: The figure's title.

    Raises:
        ValueError: if a chosen patch is not in the grid, or none is chosen.

    Example:
        >>> alike = np.eye(16).reshape(4, 4, 4, 4)
        >>> similarity_figure(images[0], alike, [(1, 2)], "Like nothing else").savefig("alike.png")
    """
    panels.check(image=(image, IMAGE), similarity=(similarity, GRIDS))
    rows, columns = grid = np.shape(similarity)[:2]
    if not cells or not all(0 <= row < rows and 0 <= column < columns for row, column in cells):
        raise ValueError(f"received cells {cells}; wanted (row, column) of a grid of {rows} × {columns}")
    shown = np.stack([similarity[row][column] for row, column in cells])
    figure, (first, *others), bar = panels.beside(Figure(), _fit, image, len(cells), title, "")
    first.set_title("chosen patches", fontsize=9)
    panels.mark(first, image, cells, grid)
    panels.number(first, image, cells, grid)
    for number, (cell, axes, seen) in enumerate(zip(cells, others, shown), 1):
        axes.set_title("{}: row {}, column {}".format(number, *cell), fontsize=9)
        heat = panels.overlay(axes, image, seen, panels.cosine_limits(shown))
        panels.mark(axes, image, [cell], grid)
    panels.colorbar(figure, heat, bar, "cosine similarity")
    return _finished(figure)


def filter_figure(components, explained, title):
    """The principal components of the patch filters: what the first layer tells apart in a patch.

    Grey is 0, and each picture is scaled by its own largest value; which sign is light is arbitrary. The
    number above it is its share of the filters' variance.

    Args:
        components: (count, height, width, channels), of 3 channels, or of 1 shown in grey.
        explained: (count,) shares of the variance, at most 1 together.
        title: The figure's title.

    Raises:
        ValueError: if the channels are not 1 or 3, so that they are no colours.

    Example:
        >>> filters = np.random.default_rng(0).normal(size=(5, 8, 8, 3))
        >>> filter_figure(filters, [0.5, 0.2, 0.1, 0.1, 0.1], "Noise").savefig("filters.png")

    Source: Dosovitskiy et al. 2021, figure 7 left.
    """
    panels.check(components=(components, "n height width channels"), explained=(explained, "n"))
    components, explained = np.asarray(components), np.asarray(explained)
    if components.shape[-1] not in (1, 3):
        raise ValueError(f"received filters of {components.shape[-1]} channels; 1 or 3 can be drawn")
    largest = np.abs(components).max(axis=(1, 2, 3), keepdims=True)
    pictures = 0.5 + components / np.where(largest > 0, 2 * largest, 1)
    columns = panels.evenly(len(pictures), 7)
    rows = [(panels.text_height(1, 8), 0.8)] * math.ceil(len(pictures) / columns)
    note = f"Grey is 0. Above: share of the variance, {explained.sum():.1%} in all"
    figure, grid, _ = panels.sheet(Figure(), _fit, title, note, rows, columns, 0.8)
    for axes, picture, share in zip(grid.flat, pictures, explained):
        panels.show(axes, picture)
        axes.set_title(f"{share:.1%}", fontsize=8)
    return _finished(figure)


def position_figure(similarity, title):
    """How like the embedding of each position is to those of all positions.

    Each tile is a map of the whole grid for the position that the tile's place stands for. A model that knows
    where patches are has a light spot there in each tile, and often that row and column. Of a grid with more
    than 16 rows or columns every k-th is drawn, and the figure says so.

    Args:
        similarity: (rows, columns, rows, columns), cosines: what `position_similarity` returns.
        title: The figure's title.

    Example:
        >>> position_figure(np.eye(16).reshape(4, 4, 4, 4), "All different").savefig("positions.png")

    Source: Dosovitskiy et al. 2021, figure 7 centre.
    """
    panels.check(similarity=(similarity, GRIDS))
    rows, columns = np.shape(similarity)[:2]
    every, gap = (math.ceil(max(rows, columns) / n) for n in (16, 12))
    picture = panels.tiled(similarity, every, gap)
    side = min(7 / max(picture.shape), 0.35)
    note = "" if every == 1 else f"one of every {every} rows and columns of the {rows} × {columns} grid"
    form = picture, side, panels.cosine_limits(picture), "cosine similarity", 0.5
    figure, axes = panels.table(Figure(), _fit, title, note, *form)
    panels.number_tiles(axes, (rows, columns), every, gap)
    axes.set(xlabel="patch column", ylabel="patch row")
    return _finished(figure)


def distance_figure(distances, title):
    """How far each head looks, block by block: the mean distance of what it attends to.

    A point is a head, the line their mean. Heads near 0 look at their own surroundings, as small convolutions
    do; heads high up look across the image.

    Args:
        distances: Pixels, (blocks, heads), or (images, blocks, heads), of which the images' mean is drawn.
        title: The figure's title.

    Example:
        >>> distance_figure([[3.0, 9.0], [8.0, 9.5]], "Two blocks").savefig("distances.png")

    Source: Dosovitskiy et al. 2021, figure 7 right, and appendix D.7.
    """
    panels.check(distances=(distances, "images blocks heads" if np.ndim(distances) == 3 else "blocks heads"))
    means = np.mean(distances, axis=0) if np.ndim(distances) == 3 else np.asarray(distances)
    blocks, heads = means.shape
    figure, (axes,) = panels.charts(Figure(), _fit, title, 1, 6.4, 3.8)
    axes.plot(range(blocks), means.mean(axis=1), color=OTHER, marker="D", label="mean of the heads")
    axes.scatter(np.repeat(np.arange(blocks), heads), means.ravel(), label="a head", **POINTS)
    axes.set(xlabel="block", ylabel="mean attention distance (pixels)", xlim=(-0.5, blocks - 0.5))
    axes.set_ylim(0, 1.08 * means.max() or 1)
    axes.set_xticks(range(0, blocks, math.ceil(blocks / 24)))
    panels.legend(axes)
    return _finished(figure)


def confusion_figure(matrix, class_names, title):
    """What is taken for what, as shares of the true class; up to 20 classes with the counts.

    Args:
        matrix: int (classes, classes): samples of the row's class that were taken for the column's.
        class_names: One name per class; shown up to 60 classes.
        title: The figure's title.

    Example:
        >>> confusion_figure([[9, 1], [0, 5]], ["cat", "dog"], "Two classes").savefig("confusion.png")
    """
    panels.check(matrix=(matrix, "classes classes"), class_names=(class_names, "classes"))
    matrix, classes = np.asarray(matrix), len(matrix)
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    fontsize = 9 if classes <= 20 else 7
    names = [_fit(name, 1.6, fontsize) for name in class_names] if classes <= 60 else []
    longest = max(map(_measure(fontsize), names), default=0.2)
    side = max(2.4 / classes, min(0.45, 12 / classes))
    form = shares, side, (0, 1), "share of the true class", 0.45 + longest
    figure, axes = panels.table(Figure(), _fit, title, "", *form)
    axes.set(xlabel="predicted", ylabel="true")
    if names:
        axes.set_xticks(range(classes), names, rotation=90 * (longest > 0.9 * side), fontsize=fontsize)
        axes.set_yticks(range(classes), names, fontsize=fontsize)
    if classes <= 20:
        panels.counts(axes, matrix, shares)
    return _finished(figure)


def _fit(text, inches, size, lines=1):
    """The text cut to its place, of characters that can be drawn and are no formula."""
    fonts = [get_font(findfont(FontProperties(family=[family]))) for family in _families()]
    words = " ".join(str(text).split())
    drawn = "".join(c if any(font.get_char_index(ord(c)) for font in fonts) else "□" for c in words)
    return panels.fitted(drawn, inches, lines, _measure(size)).replace("$", r"\$")


def _measure(size):
    """What tells how many inches wide words of this size are."""
    prop = FontProperties(family=_families(), size=size)
    width = text_to_path.get_text_width_height_descent
    return lambda words: 1.04 * width(words, prop, ismath=False)[0] / 72  # letters move to whole pixels


def _families():
    installed = {font.name for font in fontManager.ttflist}
    return [*FontProperties().get_family(), *(family for family in OTHER_SCRIPTS if family in installed)]


def _finished(figure):
    families = _families()
    for text in figure.findobj(Text):
        text.set_fontfamily(families)
    return figure
