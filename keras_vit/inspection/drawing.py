"""What the figures share: panels of images, text that fits and is drawn in any script, and colors."""

import math
import textwrap
import unicodedata

import numpy as np
from matplotlib import rcParams
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font
from matplotlib.patches import Patch
from matplotlib.text import Text

from keras_vit.messages import one_line

BLUE, ORANGE = "#3b4cc0", "#d95f02"  # distinguishable with color blindness and in grayscale
YELLOW = "#f0e442"  # likewise from both
LEGEND = 1.4, 0.22  # inches of an entry: width, height
IMAGE = "height width colors"  # the axes of an image, for `check_shapes`
# matplotlib's default font lacks these scripts; the first installed fonts are used for them.
FALLBACK_FONTS = [
    *("Noto Sans CJK JP", "Hiragino Sans", "PingFang SC", "Microsoft YaHei", "Malgun Gothic", "Nirmala UI"),
    *("Noto Sans Devanagari", "Noto Sans Bengali", "Noto Sans Tamil", "Noto Sans Thai", "Arial Unicode MS"),
]


def check_shapes(**arrays):
    """Raise ValueError unless the arrays' shapes match and images are floats in [0, 1].

    Args:
        arrays: By name (array, axes), such as "n height width colors": axes of the same name have the same
            size in all arrays; an array with `colors` is an image.
    """
    sizes = {}
    for name, (values, axes) in arrays.items():
        shape, axes, known = np.shape(values), axes.split(), dict(sizes)
        pairs = zip(axes, shape)
        if len(shape) != len(axes) or not all(n and n == sizes.setdefault(axis, n) for axis, n in pairs):
            expected = ", ".join(f"{axis}={known[axis]}" if axis in known else axis for axis in axes)
            raise ValueError(f"expected {name} of shape ({expected}), not empty; got {shape}")
        if "colors" in axes:
            values = np.asarray(values)
            # Resizing overshoots [0, 1] slightly; uint8 and normalized images exceed it by far.
            in_range = values.dtype.kind == "f" and -0.5 < values.min() <= values.max() < 1.5
            if not in_range or shape[-1] not in (1, 3):
                raise ValueError(
                    f"expected {name} with 1 or 3 channels of floats in [0, 1]; got {shape[-1]} channels of "
                    f"{values.dtype} from {values.min():.3g} to {values.max():.3g}"
                )


def wrapped(text, width, lines=1):
    """Wrap a name to lines of `width` characters and truncate it; replace what cannot be drawn."""
    fonts = [get_font(findfont(FontProperties(family=[family]))) for family in _font_families()]
    line = one_line(text)
    line = "".join(c if any(font.get_char_index(ord(c)) for font in fonts) else "□" for c in line)
    if any(unicodedata.east_asian_width(c) in "WF" for c in line):
        width //= 2
    rows = textwrap.wrap(line, width)
    if len(rows) > lines:
        rows[lines - 1 :] = [rows[lines - 1][: width - 1] + "…"]
    return "\n".join(rows).replace("$", r"\$")  # not a formula


def _font_families():
    installed = {font.name for font in fontManager.ttflist}
    return [*rcParams["font.family"], *(family for family in FALLBACK_FONTS if family in installed)]


def set_fonts(figure):
    families = _font_families()
    for text in figure.findobj(Text):
        text.set_fontfamily(families)
    return figure


def subplots(title, rows, columns, inches, layout="constrained"):
    """Return a figure and its axes (rows, columns), each of about `inches` (width, height)."""
    width, height = max(inches[0] * columns, 4), inches[1] * rows + 0.6
    figure = Figure(figsize=(width, height), layout=layout)
    figure.suptitle(wrapped(title, int(10 * width), lines=3), fontsize=12)
    return figure, figure.subplots(rows, columns, squeeze=False)


def image_grid(title, image, count, rows=1, most=6, words=1, inches=1.8):
    """Return a figure and its axes (at least `count`, rows): for each image `rows` panels below each other.

    Args:
        title: The figure's title.
        image: One of the images, whose longer side is `inches`.
        count: The number of images.
        rows: Panels for each, an image below lines of `words`.
        most: The maximum number of images side by side.
    """
    height, width = np.shape(image)[:2]
    scale = inches / max(height, width)
    panel = max(width * scale, 0.75 * inches), height * scale + 0.15 * words
    columns = min(count, most)
    lines = math.ceil(count / columns)
    figure, grid = subplots(title, rows * lines, columns, panel, "compressed")
    for axes in grid.flat:
        axes.axis("off")
    return figure, grid.reshape(lines, rows, columns).swapaxes(1, 2).reshape(-1, rows)


def color_legend(figure, colors):
    """Add a legend of colors by name beside the first panels; the color "none" is an empty field."""
    handles = [
        Patch(facecolor=color, edgecolor="gray", label=wrapped(name, 18)) for name, color in colors.items()
    ]
    columns = math.ceil(len(handles) * LEGEND[1] / figure.get_figheight())
    figure.set_figwidth(figure.get_figwidth() + columns * LEGEND[0])
    figure.legend(handles=handles, loc="outside right upper", ncols=columns, fontsize=9, frameon=False)


def show(axes, image, extent=None):
    height, width, _ = np.shape(image)
    colors = np.clip(np.broadcast_to(image, (height, width, 3)), 0, 1)
    axes.imshow(colors, interpolation="nearest", extent=extent)


def images_over_maps(title, images, captions, maps, noun, draw, spare=0):
    """Return a figure of images, below each its maps by name, and its axes as of `image_grid`.

    Args:
        title: The figure's title.
        images: A list of (height, width, 3) in [0, 1], of any sizes.
        captions: One per image.
        maps: By name, a list of arrays (height, width), one per image.
        noun: What a map has, for messages.
        draw: A function from an image and a map to colors in [0, 1].
        spare: The number of empty panels below the maps.
    """
    for values in (captions, *maps.values()):
        check_shapes(images=(np.zeros(len(images)), "n"), values=(np.zeros(len(values)), "n"))
    figure, grid = image_grid(title, images[0], len(images), rows=1 + len(maps) + spare, words=2)
    for (above, *below), image, caption, *of_image in zip(grid, images, captions, *maps.values()):
        show(above, image)
        above.set_title(wrapped(caption, 20, lines=2), fontsize=9)
        for axes, name, values in zip(below, maps, of_image):
            check_shapes(image=(image, IMAGE), **{noun: (values, "height width")})
            show(axes, draw(image, values))
            axes.set_title(name, fontsize=8)
    return figure, grid
