"""The principal components of the filters of the first layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from keras import ops

from keras_vit.inspection.blocks import check_model, is_integer
from keras_vit.layers import PaletteEmbedding

if TYPE_CHECKING:
    import keras

DEFAULT_COUNT = 28  # as in the paper's figure 7


def filter_components(model: keras.Model, count: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Compute the principal components of the filters that are applied to the pixels.

    The patch embedding has one filter per hidden unit. A ResNet stem's filters are the kernels of its root
    convolution, standardized as the layer does.

    Args:
        model: A `VisionTransformer`.
        count: Number of components, by decreasing variance; None for 28 as in the paper, or for all
            of a model that has fewer.

    Returns:
        components: Array (count, height, width, channels), each of unit norm with its largest entry
            positive.
        explained: Array (count,), the fraction of the filters' variance along each.

    Raises:
        ValueError: if there are fewer components, or the model has a palette.

    Example:
        >>> components, explained = filter_components(model, count=5)
        >>> components.shape, explained.shape
        ((5, 8, 8, 3), (5,))

    Source: Dosovitskiy et al. 2021, figure 7 (left) and section 4.5.
    """
    check_model(model)
    if isinstance(model.get_layer("patch_embedding"), PaletteEmbedding):
        raise ValueError("the model has a palette of colors, and no filters")
    kernel = _kernel(model)  # (height, width, channels, filters)
    *shape, filters = kernel.shape
    samples = kernel.reshape(-1, filters).T
    available = min(samples.shape)
    count = min(DEFAULT_COUNT, available) if count is None else count
    if not is_integer(count) or not 1 <= count <= available:
        raise ValueError(f"expected count to be an integer from 1 to {available}; got {count!r}")

    _, singular_values, components = np.linalg.svd(samples - samples.mean(axis=0), full_matrices=False)
    # The sign of a component is arbitrary; this makes it the same on every machine.
    largest = np.abs(components).argmax(axis=1, keepdims=True)
    components = components * np.sign(np.take_along_axis(components, largest, axis=1))
    variances = singular_values**2
    explained = variances / (variances.sum() or 1)
    return components[:count].reshape(count, *shape).astype("float32"), explained[:count].astype("float32")


def _kernel(model):
    if model.resnet is None:
        kernel = model.get_layer("patch_embedding").kernel
    else:
        root = model.get_layer("conv_root")
        kernel = root.standardized(root.kernel)
    return ops.convert_to_numpy(kernel).astype("float64")
