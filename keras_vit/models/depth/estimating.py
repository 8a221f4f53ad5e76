"""Depth maps of images of any size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from keras_vit.models.windows import checked_images, slide, whole_outputs
from keras_vit.preprocessing.image_resizing import resize
from keras_vit.preprocessing.inputs import as_pixels
from keras_vit.types import Images, Size

if TYPE_CHECKING:
    import keras


def estimate(
    model: keras.Model,
    images: Images,
    whole: bool = False,
    window: Size | None = None,
    overlap: float = 0.5,
    batch_size: int = 8,
    value_range: tuple[float, float] | None = None,
) -> list[np.ndarray]:
    """The depth, or the other values, of each pixel of images, at the images' own sizes.

    An image is cut into overlapping windows of the model's size, whose outputs are averaged; one that is
    smaller is padded. A model for any size computes an image as one window unless `window` is given. The
    windows of an output up to a factor, "relative" or "disparity", have no common one: for these models use
    `whole`, or a model for any size.

    Args:
        model: A `DepthEstimator`.
        images: What `model.preprocessing` takes: an array, a path, a URL, bytes, or a list of them.
        whole: Whether to resize each image to the model's size instead, as `model.preprocessing` does, and
            its output back.
        window: (height, width) of the windows in pixels, only for a model for any size.
        overlap: The fraction of a window's side that it shares with the next one, in [0, 1).
        batch_size: Number of windows, or of whole images, that are computed at a time.
        value_range: (lowest, highest) possible value of float images; None for (0, 1).

    Returns:
        A list of float32 arrays (height, width, num_classes), one for each image; their unit and range are
        those of the model's output.

    Raises:
        ValueError: for a window that patches do not divide, a window of a model with one size, `whole` for a
            model without a size, an image that cannot be read, or a model that computes NaN.

    Example:
        >>> encoder = keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3)
        >>> estimator = keras_vit.DepthEstimator(encoder, head="linear", bins=8)
        >>> [found.shape for found in estimator.estimate(np.zeros((2, 50, 70, 3), "uint8"))]
        [(50, 70, 1), (50, 70, 1)]

    Source: `ImageSegmenter.segment`; Yang et al. 2024 (Depth Anything V2, arXiv 2406.09414) for whole images.
    """
    images = checked_images(model, images, whole, batch_size)
    if whole:
        return [
            resize(np.asarray(outputs, "float32"), size, preprocessing)
            for outputs, size, preprocessing in whole_outputs(model, images, batch_size, value_range)
        ]
    maps = []
    for image in images:
        pixels = as_pixels(image, model.preprocessing.channels, value_range)
        values = None
        for top, left, block in slide(model, model.predict_on_batch, pixels, window, overlap, batch_size):
            if values is None:
                values = np.zeros((*pixels.shape[:2], block.shape[-1]), "float32")
            part = values[top : top + block.shape[0], left : left + block.shape[1]]
            part[:] = block[: part.shape[0], : part.shape[1]]
        maps.append(values)
    return maps
