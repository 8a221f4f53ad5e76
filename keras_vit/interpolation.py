"""Interpolation between evenly spaced points: kernels, and the weights of old points for new ones."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


def hat(x, numpy=np):
    """The kernel of linear interpolation."""
    return numpy.maximum(1 - numpy.abs(x), 0)


def cubic(x, numpy=np, a=-0.5):
    """Keys's cubic kernel; a = -1/2 as in Pillow, TensorFlow and torch's antialiased resize."""
    x = numpy.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return numpy.where(x < 1, near, numpy.where(x < 2, far, 0))


def torch_cubic(x, numpy=np):
    """Keys's cubic kernel with a = -3/4, as in torch's resize without antialiasing."""
    return cubic(x, numpy, a=-0.75)


class Interpolation(NamedTuple):
    """How a grid of vectors is resized.

    Attributes:
        kernel: The weight of a point by its distance.
        antialias: Whether the kernel is as wide as the new points are apart, and outside points are ignored.
            Otherwise the values at the edge continue outside.
        aligned: Whether the centers of the corners keep their places; otherwise the edges of the grid do.
        offset: Added to the new size in the scale.
        square: Whether a rectangle is the upper left part of the square of its longer side.
        truncate: Whether the new grid is the upper left part of the old one.
    """

    kernel: Callable[..., Any]
    antialias: bool = False
    aligned: bool = False
    offset: float = 0.0
    square: bool = False
    truncate: bool = False


INTERPOLATIONS = {
    "bilinear": Interpolation(hat, aligned=True),
    "bilinear_half_pixel": Interpolation(hat),
    "bilinear_antialias": Interpolation(hat, antialias=True),
    "bilinear_square": Interpolation(hat, aligned=True, square=True),
    "bilinear_half_pixel_square": Interpolation(hat, square=True),
    "bicubic": Interpolation(torch_cubic),
    "bicubic_offset": Interpolation(torch_cubic, offset=0.1),
    "bicubic_antialias": Interpolation(cubic, antialias=True),
    "bicubic_antialias_square": Interpolation(cubic, antialias=True, square=True),
    "truncate": Interpolation(hat, truncate=True),
}


def interpolation_weights(index, new, old, interpolation, numpy=np):
    """The weights of the old points for new points.

    Args:
        index: (…, points), which of the new points, from 0.
        new: The number of new points, a scalar or (…, 1).
        old: The number of old points, an int.
        interpolation: A name in `INTERPOLATIONS`.
        numpy: `keras.ops` for tensors, with a float `index` and `new`.

    Returns:
        (…, points, old), whose last axis has the sum 1.

    Example:
        >>> interpolation_weights(np.arange(3), 3, 2, "bilinear").tolist()
        [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    """
    kernel, antialias, aligned, offset, _, truncate = INTERPOLATIONS[interpolation]
    points = np.arange(old, dtype="float32")
    index, new = numpy.expand_dims(index, -1), numpy.expand_dims(new, -1)
    if truncate:
        return kernel(index - points, numpy)
    if aligned:
        return kernel(index * (old - 1) / numpy.maximum(new - 1, 1) - points, numpy)
    scale = old / (new + offset)
    center = (index + 0.5) * scale - 0.5
    if antialias:
        weights = kernel((center - points) / numpy.maximum(scale, 1), numpy)
        return weights / numpy.sum(weights, axis=-1, keepdims=True)
    weights, first, last = kernel(center - points, numpy), points == 0, points == old - 1
    for distance in (1, 2):  # The edge points stand for those outside.
        weights = weights + first.astype("float32") * kernel(center + distance, numpy)
        weights = weights + last.astype("float32") * kernel(center - (old - 1 + distance), numpy)
    return weights
