"""Depth maps of images of any size."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import numpy as np

from keras_vit.messages import names_arguments
from keras_vit.models.backbones import inner_transformer
from keras_vit.models.classifying import check_finite
from keras_vit.models.vit.geometry import is_dynamic, patch_pixels
from keras_vit.models.windows import checked_images, joined, resized_outputs, slide, whole_outputs
from keras_vit.preprocessing.inputs import as_pixels
from keras_vit.rules import optional_pair
from keras_vit.types import Images, Size

if TYPE_CHECKING:
    import keras

    from keras_vit.export.exported_model import ExportedModel

DEPTHS = ("metric", "relative")  # the quantities that are larger where it is farther
WITHOUT_SCALE = ("relative", "disparity")  # those of which each image has its own scale


@names_arguments
def estimate(
    model: keras.Model | ExportedModel,
    images: Images,
    whole: bool = False,
    window: Size | None = None,
    overlap: float = 0.5,
    batch_size: int = 8,
    value_range: tuple[float, float] | None = None,
) -> list[np.ndarray]:
    """The depth, or the other values, of each pixel of images, at the images' own sizes.

    An image is cut into overlapping windows of the model's size, whose outputs are averaged; one that is
    smaller is padded. A model for any size computes an image as one window unless `window` is given.

    The quantities "relative" and "disparity" have another scale in each window. Those of a window are
    therefore multiplied by the factor, and for "disparity" increased by the addend, with which they come
    closest to what the model computes of the whole image at a window's size, by least squares.

    Args:
        model: A `DepthEstimator`.
        images: What `model.preprocessing` takes: an array, a path, a URL, bytes, a Pillow image, or a list.
        whole: Whether to resize each image to the model's size instead, as `model.preprocessing` does, and
            its output back.
        window: Side of the windows in pixels, or (height, width), only for a model for any size.
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
    window = optional_pair(window, "window")
    if whole:
        return [
            resized_outputs(np.asarray(outputs, "float32"), size)
            for outputs, size in whole_outputs(model, images, batch_size, value_range)
        ]
    maps = []
    for image in images:
        pixels = as_pixels(image, model.preprocessing.channels, value_range)
        adjusted = _adjustment(model, pixels, window)
        options = window, overlap, batch_size
        blocks = slide(model, model.predict_on_batch, pixels, *options, adjusted=adjusted)
        maps.append(joined(blocks, pixels.shape[:2]))
    return maps


def _adjustment(model, pixels, window):
    """The `adjusted` of `slide`, or None for an image in one window, or an output with a scale.

    Args:
        model, window: As for `estimate`.
        pixels: An image (height, width, channels).
    """
    size = (window or pixels.shape) if is_dynamic(model.image_size) else model.image_size
    if model.quantity not in WITHOUT_SCALE or all(n <= side for n, side in zip(pixels.shape, size)):
        return None
    if is_dynamic(model.image_size):
        patches = patch_pixels(inner_transformer(model))
        size = (min(side, -(-n // patch) * patch) for side, n, patch in zip(size, pixels.shape, patches))

    @functools.cache  # `slide` checks its arguments before the first window.
    def of_whole():
        prepare = dataclasses.replace(model.preprocessing, image_size=tuple(size))
        image = prepare.normalize(prepare.resized(pixels))
        output = check_finite(np.asarray(model.predict_on_batch(image[np.newaxis]), "float32"))[0]
        return resized_outputs(output, pixels.shape[:2])

    def adjusted(output, top, left):
        whole = of_whole()
        target = whole[top : top + output.shape[0], left : left + output.shape[1]]
        estimated = output[: target.shape[0], : target.shape[1]]
        factor, addend = fitted(estimated, target, model.quantity == "disparity")
        return np.maximum(factor * output + addend, 0, dtype="float32")

    return adjusted


def is_bounded(model):
    """Whether the depths of a `DepthEstimator`, or of its description, are at most its `max_depth`."""
    return model.quantity == "metric" and model.activation in (None, "sigmoid")


def fitted(values, target, has_addend=True, least=0.0):
    """The factor, and the addend, with which values come closest to others by least squares.

    Args:
        values, target: Arrays of one shape.
        has_addend: Whether the addend may differ from 0.
        least: The smallest factor.

    Example:
        >>> factor, addend = fitted(np.array([1.0, 2.0]), np.array([5.0, 7.0]))
        >>> round(factor, 6), round(addend, 6)
        (2.0, 3.0)
    """
    values, target = np.float64(values), np.float64(target)
    mean, middle = (values.mean(), target.mean()) if has_addend else (0.0, 0.0)
    spread = np.square(values - mean).mean()
    factor = max(float(((values - mean) * (target - middle)).mean() / spread), least) if spread else 0.0
    return factor, float(middle - factor * mean)
