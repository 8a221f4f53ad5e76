"""What figures.py puts together: panels laid out in inches, pictures in them, and words that fit.

Sizes are fixed beforehand rather than found by matplotlib's layout, which leaves room around pictures of a
fixed shape and takes seconds for fifty panels.
"""

import bisect
import math

import numpy as np

COLORS = "viridis"  # gets lighter evenly: the same order in grey and to every eye
HEAT = "inferno"  # as even, and apart from a grey image
BESIDE = 1.7  # inches of the longer edge of an image that stands beside maps of it


def fitted(text, inches, lines, measure):
    """The text on up to `lines` lines, `inches` wide by `measure`; where it is longer it ends in "…"."""
    rows = []
    while text and len(rows) < lines:
        cut = len(rows) == lines - 1 and measure(text) > inches
        room = inches - measure("…") if cut else inches
        fits = bisect.bisect_right(range(1, len(text) + 1), room, key=lambda n: measure(text[:n])) or 1
        if fits < len(text) and not cut:  # after a space, or else another mark, or else anywhere
            spaces, marks = (max(text.rfind(c, 0, fits + 1) for c in group) for group in (" ", "/_-,"))
            fits = spaces if spaces > 0 else min(marks + 1, fits) or fits
        rows.append(text[:fits].rstrip() + "…" * cut)
        text = text[fits:].lstrip()
    return "\n".join(rows)


def check(**given):
    """Raise ValueError unless arrays have the shapes that they should, and images are such.

    Args:
        given: By name (array, axes), such as "n height width colors": axes of the same name have the same
            size in all arrays; what has `colors` is an image.

    Example:
        >>> check(images=(np.zeros((2, 8, 8, 3)), "n height width colors"), names=(["a", "b"], "n"))
    """
    sizes = {}
    for name, (values, axes) in given.items():
        shape, axes, known = np.shape(values), axes.split(), dict(sizes)
        if 0 in shape:
            raise ValueError(f"received no {name}; a figure needs at least one")
        sizes |= {axis: size for axis, size in zip(axes, shape) if axis not in sizes}
        if shape != tuple(sizes.get(axis) for axis in axes):
            wanted = ", ".join(f"{axis} = {known[axis]}" if axis in known else axis for axis in axes)
            raise ValueError(f"received {name} of shape {shape}; wanted ({wanted})")
        if "colors" not in axes:
            continue
        values = np.asarray(values)
        # Resizing leaves [0, 1] a little; bytes and what a model reads leave it by far.
        if (
            values.dtype.kind != "f"
            or not -0.5 < values.min() <= values.max() < 1.5
            or shape[-1] not in (1, 3)
        ):
            raise ValueError(
                f"received {name} of {shape[-1]} channels, {values.dtype} from {values.min():.3g} to "
                f"{values.max():.3g}; wanted 3 or 1 channels of floats in [0, 1]"
            )


def text_height(lines, size):
    """Inches for lines of words of a size in points, with some room."""
    return lines * size * 1.25 / 72 + 0.08


def evenly(count, most):
    """Columns for so many panels, `most` at the most, so that the last row is not much shorter."""
    return math.ceil(count / math.ceil(count / most))


def words_above(texts):
    """Inches above a row of panels for the longest of its texts."""
    return text_height(1 + max(text.count("\n") for text in texts), 9)


def panel_size(images, side):
    """Inches (width, height) of a panel for images whose longer edge is `side`, wide enough for words."""
    height, width = np.shape(images[0])[:2]
    scale = side / max(height, width)
    return max(width * scale, 0.75 * side), max(height * scale, 0.2 * side)


def charts(figure, fit, title, count, width, height):
    """Give a figure axes for charts of about a size, side by side, three in a row at most."""
    columns, rows = min(count, 3), math.ceil(count / 3)
    figure.set_size_inches(width * columns, height * rows + 0.4)
    figure.set_layout_engine("constrained")
    figure.suptitle(fit(title, width * columns - 0.3, 12, lines=3), fontsize=12)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in grid[count:]:
        axes.remove()
    return figure, grid[:count]


def legend(axes):
    """Explain the marks above the chart, where they hide none, and draw a grid."""
    axes.legend(frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)
    axes.grid(alpha=0.3)


def sheet(figure, fit, title, note, rows, columns, width, bar=False, edge=0.0):
    """Give a figure panels for pictures, under a title and a note.

    Args:
        figure: An empty matplotlib Figure.
        fit: What cuts words to their place: (text, inches, size, lines) to text.
        title, note: What stands above all; the note is smaller.
        rows: For each row of panels the inches above it, for its words, and its height.
        columns, width: Number of panels in a row, and the width of each.
        bar: Whether there is room for a colour bar at the right.
        edge: Inches for ticks and words at the left and below; without it the panels have no axes.

    Returns:
        The figure, an array (rows, columns) of Axes, and the colour bar's Axes or None.
    """
    margin, gap, beside = 0.15, 0.12, 0.95 if bar else 0.0
    inner = columns * (width + gap) - gap
    wide = max(edge + inner + beside + 2 * margin, 4.2)
    title, note = fit(title, wide - 2 * margin, 12, 3), fit(note, wide - 2 * margin, 9, 3)
    noted = text_height(note.count("\n") + 1, 9) if note else 0
    body = sum(above + height for above, height in rows) + gap * (len(rows) - 1)
    bottom = margin + edge
    top = bottom + max(body, 1.2 if bar else 0)  # a colour bar's label has to stand beside it
    high = top + noted + text_height(title.count("\n") + 1, 12) + margin / 2
    figure.set_size_inches(wide, high)
    figure.suptitle(title, y=1 - margin / 2 / high, va="top", fontsize=12)
    figure.text(0.5, (top + noted) / high, note, ha="center", va="top", fontsize=9)

    def place(x, y, width, height):
        return figure.add_axes((x / wide, y / high, width / wide, height / high))

    left, y = (wide + edge - inner - beside) / 2, top
    grid = np.empty((len(rows), columns), object)
    for row, (above, height) in enumerate(rows):
        y -= above + height
        for column in range(columns):
            grid[row, column] = place(left + column * (width + gap), y, width, height)
            grid[row, column].axis("on" if edge else "off")
        y -= gap
    tall = min(top - bottom, 2.4)
    scale = place(left + inner + 0.2, (bottom + top - tall) / 2, 0.14, tall) if bar else None
    return figure, grid, scale


def beside(figure, fit, image, count, title, note):
    """Give a figure one image and `count` empty panels after it; returns them and the colour bar's Axes."""
    columns = evenly(count + 1, max(5, math.ceil(math.sqrt(1.5 * (count + 1)))))
    width, height = panel_size([image], BESIDE)
    rows = [(text_height(1, 9), height)] * math.ceil((count + 1) / columns)
    figure, grid, scale = sheet(figure, fit, title, note, rows, columns, width, bar=True)
    show(grid.flat[0], image)
    return figure, grid.flat[: count + 1], scale


def colorbar(figure, heat, axes, label, largest=1.0):
    """Draw the colour bar, with an arrow where the largest value is above its end."""
    figure.colorbar(heat, cax=axes, extend="max" if largest > heat.get_clim()[1] else "neither").set_label(
        label, size=9
    )
    axes.tick_params(labelsize=8)


def table(figure, fit, title, note, values, side, limits, label, edge):
    """Draw values as colours in cells of `side` inches, with room for ticks; the figure and its axes."""
    height, width = (max(side * cells, 1.0) for cells in values.shape)
    figure, grid, scale = sheet(figure, fit, title, note, [(0, height)], 1, width, bar=True, edge=edge)
    low, top = limits
    heat = grid[0, 0].imshow(values, cmap=COLORS, vmin=low, vmax=top, interpolation="nearest")
    colorbar(figure, heat, scale, label)
    return figure, grid[0, 0]


def counts(axes, matrix, shares):
    """Write counts into the cells of a table, dark where the share is drawn light."""
    for (row, column), count in np.ndenumerate(matrix):
        color = "black" if shares[row, column] > 0.5 else "white"
        axes.text(column, row, str(count), ha="center", va="center", color=color, fontsize=8)


def show(axes, image):
    """Draw an image; the rounding of resizing may have left [0, 1] by a little."""
    height, width, _ = np.shape(image)
    axes.imshow(np.clip(np.broadcast_to(image, (height, width, 3)), 0, 1), interpolation="nearest")


def overlay(axes, image, values, limits):
    """Draw values over a grey image, larger ones more opaque; returns what the colour bar is for."""
    height, width = np.shape(image)[:2]
    axes.imshow(np.mean(image, axis=-1), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    low, top = limits
    opacity = 0.75 * np.clip((np.asarray(values) - low) / (top - low), 0, 1)
    return axes.imshow(
        values, cmap=HEAT, alpha=opacity, vmin=low, vmax=top, extent=extent, interpolation="bilinear"
    )


def mark(axes, image, cells, grid):
    """Frame cells of a grid over an image, not smaller than can be seen."""
    middles, (dx, dy) = _frames(image, cells, grid)
    for color, thick in (("black", 3.5), ("white", 1.5)):  # seen on any picture
        for x, y in middles:
            frame = [x - dx, x + dx, x + dx, x - dx, x - dx], [y - dy, y - dy, y + dy, y + dy, y - dy]
            axes.plot(*frame, color=color, linewidth=thick, scalex=False, scaley=False, clip_on=False)


def number(axes, image, cells, grid):
    """Number framed cells from 1, in the corner of the frame; where it is too small, as near as is free.

    The image is one that `beside` has shown, whose size in inches is known.
    """
    sides = np.array(np.shape(image)[1::-1])  # width, height, as x and y
    inch = sides.max() / BESIDE
    line = 3.5 / 2 / 72 * inch  # what the frame's line covers inside and outside of its middle
    middles, half = _frames(image, cells, grid)
    taken = [(middle, half + line) for middle in middles]
    for count, middle in enumerate(middles, 1):
        plate = np.array([0.075 * len(str(count)) + 0.03, 0.14]) * inch / 2  # half of a text of 8 points
        at = middle - half + line + plate
        if (plate > half - line).any():
            ends = np.minimum(plate, sides / 2), np.maximum(sides - plate, sides / 2)
            xs, ys = np.linspace(*ends, 40).T - 0.5
            places = np.stack(np.meshgrid(xs, ys), axis=-1).reshape(-1, 2)
            places = places[np.linalg.norm(places - middle, axis=1).argsort(kind="stable")]
            free = np.all([(np.abs(places - p) >= room + plate).any(axis=1) for p, room in taken], axis=0)
            at = places[free.argmax()]  # the frame itself if nothing is free
        taken.append((at, plate))
        box = {"boxstyle": "square,pad=0.1", "facecolor": "black", "edgecolor": "none"}
        axes.text(*at, count, color="white", fontsize=8, ha="center", va="center", bbox=box)


def _frames(image, cells, grid):
    """Where the middles of cells are, (cells, 2), x first; half the width and height of their frames."""
    sides = np.array(np.shape(image)[:2])
    middles = (np.array(cells) + 0.5) * sides / grid - 0.5
    return middles[:, ::-1], np.maximum(sides / grid, sides / 24)[::-1] / 2


def tiled(similarity, every, gap):
    """Every k-th map of (rows, columns, rows, columns) in one picture, with gaps of NaN between."""
    maps = similarity[::every, ::every]
    padded = np.pad(maps.astype(float), [(0, 0), (0, 0), (0, gap), (0, gap)], constant_values=np.nan)
    high, wide = (n * size for n, size in zip(padded.shape[:2], padded.shape[2:]))
    return padded.transpose(0, 2, 1, 3).reshape(high, wide)[:-gap, :-gap]


def number_tiles(axes, grid, every, gap):
    """Number what `tiled` has put together by row and column, at the middle of each tile."""
    for axis, count in zip((axes.yaxis, axes.xaxis), grid):
        numbers = range(0, count, every)
        middles = [i * (count + gap) + (count - 1) / 2 for i in range(len(numbers))]
        axis.set_ticks(middles, numbers, fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def relative(maps):
    """Maps as multiples of their mean, and limits for them: one bright patch must not darken all others."""
    shown = np.asarray(maps) * np.shape(maps)[-1] * np.shape(maps)[-2]
    return shown, (0.0, max(2.0, float(np.quantile(shown, 0.995))))


def cosine_limits(shown):
    """From the smallest, rounded down to a tenth, to 1."""
    return min(math.floor(np.nanmin(shown) * 10) / 10, 0.9), 1.0
