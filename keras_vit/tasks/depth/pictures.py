"""Depth maps as pictures: colors, and PNG files with 16 bits."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from keras_vit.preprocessing.image_files import image_bytes

# From the nearest to the farthest: light yellow, orange, red, purple and black, of decreasing lightness.
COLORS = (
    *((252, 255, 164), (246, 215, 70), (252, 165, 10), (243, 120, 25), (221, 81, 58), (187, 55, 84)),
    *((147, 38, 103), (106, 23, 110), (66, 10, 104), (22, 11, 57), (0, 0, 4)),
)
UNKNOWN = (128, 128, 128)  # the color of pixels without a value
LARGEST = 2**16 - 1  # in a PNG file
BAR, MARKS = 14, 5  # the width of a scale of colors in pixels, and its numbers


def depth_range(*maps: np.ndarray) -> tuple[float, float]:
    """The lowest and the highest value in the colors of maps: the percentiles 2 and 98 of what is finite.

    Example:
        >>> depth_range(np.array([1.0, np.nan]), np.array([3.0]))
        (1.04, 2.96)
    """
    values = np.concatenate([np.ravel(each) for each in maps])
    values = values[np.isfinite(values)]
    if not values.size:
        return 0.0, 1.0
    low, high = (float(value) for value in np.percentile(values, (2, 98)))
    return low, high


def depth_colors(
    values: np.ndarray, low: float | None = None, high: float | None = None, near_is_high: bool = False
) -> np.ndarray:
    """The colors of a depth map, in which what is near is bright.

    Args:
        values: Depths of any shape; NaN for pixels without one, which are gray.
        low, high: The values of the first and the last color, in the unit of the map; None: of its
            `depth_range`.
        near_is_high: Whether the values are inverse depths.

    Returns:
        uint8 (..., 3).

    Example:
        >>> depth_colors(np.array([1.0, 3.0, np.nan]), 1, 3).tolist()
        [[252, 255, 164], [0, 0, 4], [128, 128, 128]]

    Source: the colors are samples of matplotlib's map inferno.
    """
    values = np.asarray(values, "float64")
    if low is None or high is None:
        measured = depth_range(values)
        low, high = measured[0] if low is None else low, measured[1] if high is None else high
    known = np.isfinite(values)
    fractions = (np.where(known, values, low) - low) / max(high - low, np.finfo("float32").tiny)
    fractions = np.clip(1 - fractions if near_is_high else fractions, 0, 1) * (len(COLORS) - 1)
    steps = np.arange(len(COLORS))
    channels = (np.round(np.interp(fractions, steps, channel)).astype("uint8") for channel in zip(*COLORS))
    colors = np.stack([*channels], axis=-1)
    colors[~known] = UNKNOWN
    return colors


def legend_picture(values: np.ndarray, near_is_high: bool = False) -> np.ndarray:
    """The colors of a depth map with their scale at the right.

    Args:
        values: (height, width), as for `depth_colors`.
        near_is_high: Whether the values are inverse depths.

    Returns:
        uint8 (at least height, more than width, 3).

    Example:
        >>> legend_picture(np.ones((100, 60))).shape[0]
        100
    """
    low, high = depth_range(values)
    height, width = np.shape(values)
    tall, size = max(height, 60), max(min(height // 12, 24), 10)
    font = ImageFont.load_default(size)
    ends = np.linspace(high, low, MARKS)
    texts = [f"{value:.3g}" for value in ends]
    beside = 2 * BAR + size + int(max(font.getlength(text) for text in texts))
    picture = np.full((tall, width + beside, 3), 255, "uint8")
    picture[:height, :width] = depth_colors(values, low, high, near_is_high)
    column = np.linspace(high, low, tall)[:, np.newaxis]
    picture[:, width + BAR // 2 : width + BAR // 2 + BAR] = depth_colors(column, low, high, near_is_high)
    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image)
    for text, y in zip(texts, np.linspace(size / 2, tall - size / 2 - 1, MARKS)):
        draw.text((width + 2 * BAR, y), text, fill="black", font=font, anchor="lm")
    return np.asarray(image)


def png_scale(largest: float) -> float:
    """The scale of `depth_png` for maps with no larger values.

    >>> round(1 / png_scale(65.535))
    1000
    """
    return max(float(largest) / LARGEST, float(np.finfo("float32").tiny))


def depth_png(values: np.ndarray, scale: float) -> bytes:
    """A map as a gray PNG file with 16 bits, whose numbers times the scale are the values.

    Args:
        values: (height, width), at least 0; NaN, and what is negative, becomes 0.
        scale: The value of the number 1.

    Example:
        >>> import io
        >>> with Image.open(io.BytesIO(depth_png(np.array([[1.5, np.nan]]), 0.001))) as image:
        ...     np.asarray(image).tolist()
        [[1500, 0]]
    """
    numbers = np.clip(np.round(np.nan_to_num(np.asarray(values, "float64")) / scale), 0, LARGEST)
    return image_bytes(numbers.astype("uint16"))


def labeled(image, values):
    """An image in [0, 1], with the depth map of a batch's label in colors beside it.

    >>> labeled(np.zeros((8, 8, 3)), np.ones((8, 8, 1))).shape
    (8, 16, 3)
    """
    colors = np.divide(depth_colors(values.mean(axis=-1)), 255, dtype="float32")
    return np.concatenate([image, colors], axis=1)
