"""The part of an image around an object that a model receives, and the way back.

Positions are (x, y). Windows have those of pixels' centers, by which the first pixel is at 0, as of the
authors of UDP (Huang et al. 2020, arXiv 1911.07524); points are in pixels from edge to edge, by which it is
at 0.5. The centers of the first and the last pixel of the model's input are on the edges of the window.
"""

import numpy as np

MARGIN = 1.25  # of a window, as a factor of a box's sides


def window_of(box, size, aspect):
    """The window around a box: as wide or as high as the model's input needs it, with a margin.

    Args:
        box: (…, 4): left, top, right, bottom, in pixels; None, or NaN: the whole image, without a margin.
        size: (height, width) of the image, (…, 2).
        aspect: The width of the model's input, divided by its height.

    Returns:
        float64 (…, 4): left, top, width and height.

    Example:
        >>> window_of((10, 20, 20, 60), (100, 100), 0.75).tolist()
        [-3.75, 15.0, 37.5, 50.0]
        >>> window_of(None, (30, 60), 0.75).tolist()
        [0.0, -25.0, 60.0, 80.0]

    Source: `box_to_center_and_scale` of transformers' `image_processing_vitpose.py`, `_xywh2cs` of mmpose.
    """
    height, width = np.moveaxis(np.asarray(size, "float64"), -1, 0)
    whole = np.stack([0 * width, 0 * height, width, height], axis=-1)
    box = np.full(4, np.nan) if box is None else np.asarray(box, "float64")
    is_whole = np.isnan(box).any(axis=-1, keepdims=True)
    corner, opposite = np.split(np.where(is_whole, whole, box), 2, axis=-1)
    sides = opposite - corner
    wide = np.maximum(sides[..., :1], sides[..., 1:] * aspect)
    sides = np.concatenate([wide, wide / aspect], axis=-1) * np.where(is_whole, 1, MARGIN)
    return np.concatenate([(corner + opposite - sides) / 2, sides], axis=-1)


def cropped(pixels, window, size):
    """The pixels of a window, interpolated bilinearly, and black outside of the image.

    Args:
        pixels: (height, width, channels).
        window: (4,), as of `window_of`.
        size: (height, width) of the result.

    Returns:
        float32 (height, width, channels), in the unit of the pixels.

    Example:
        >>> cropped(np.arange(16).reshape(4, 4, 1), (1, 1, 1, 1), (2, 2))[..., 0].tolist()
        [[5.0, 6.0], [9.0, 10.0]]
        >>> cropped(np.ones((2, 2, 1)), (-0.5, 0, 2, 1), (2, 3))[0, :, 0].tolist()
        [0.5, 1.0, 0.5]
    """
    result = np.asarray(pixels)
    for axis, count in enumerate(size):
        first, extent, last = window[1 - axis], window[3 - axis], result.shape[axis] - 1
        places = first + extent / 2 + (np.arange(count) - (count - 1) / 2) * extent / max(count - 1, 1)
        before = np.floor(places)
        parts = []
        for index, share in ((before, before + 1 - places), (before + 1, places - before)):
            share = np.where((index >= 0) & (index <= last), share, 0).astype("float32")
            values = result.take(np.clip(index, 0, last).astype(int), axis)
            parts.append(values * np.expand_dims(share, tuple({0, 1, 2} - {axis})))
        result = sum(parts)
    return result.astype("float32", copy=False)


def to_image(places, windows, size):
    """The points of a picture of a window in the image.

    Args:
        places: (…, points, 2), an array or a tensor, in pixels of the picture by their centers.
        windows: (…, 4), the same, as of `window_of`.
        size: (height, width) of the picture: the model's input, or its heat maps.

    Returns:
        (…, points, 2), in pixels of the image from edge to edge.

    Example:
        >>> to_image(np.array([[0.0, 0.0], [47, 63]]), np.array([2, 3, 94, 126]), (64, 48)).tolist()
        [[2.5, 3.5], [96.5, 129.5]]
    """
    height, width = size
    windows = windows[..., np.newaxis, :]
    return windows[..., :2] + places / [max(width - 1, 1), max(height - 1, 1)] * windows[..., 2:] + 0.5
