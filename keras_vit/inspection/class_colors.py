"""The colors of classes in masks, overlays and figures."""

from __future__ import annotations

import numpy as np

VALUES = 256  # of a pixel in a palette PNG


def class_colors(count: int = VALUES) -> np.ndarray:
    """The colors of the first classes, the same in every mask, overlay and figure: uint8 (count, 3).

    They are the palette of VOC's masks, of which the first color is black and number 255, of ignored pixels,
    is nearly white.

    >>> class_colors(3).tolist()
    [[0, 0, 0], [128, 0, 0], [0, 128, 0]]

    Source: VOC's `labelcolormap`: bit 3 · i + c of a number is bit 7 - i of its color's channel c.
    """
    bits = np.arange(8)
    numbers = np.arange(count)[:, np.newaxis, np.newaxis] >> (3 * bits + np.arange(3)[:, np.newaxis])
    return ((numbers & 1) << (7 - bits)).sum(-1).astype("uint8")
