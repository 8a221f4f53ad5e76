"""What the filters that read the pixels have learned to see."""

import numpy as np
from keras import ops

from keras_vit.inspection.blocks import check_model, is_whole

SHOWN = 28  # as many as the paper's figure 7 shows


def filter_components(model, count=None):
    """The principal components of the filters that read the pixels.

    The filters are those of the patch embedding, one for each of the hidden size; with a ResNet stem
    those of its root convolution, standardised as it computes with them.

    Args:
        model: A `VisionTransformer`.
        count: How many components, the most important first; None for 28 as in the paper, or for all
            of a model that has fewer.

    Returns:
        components: Array (count, height, width, channels), each of length 1, its largest entry
            positive.
        explained: Array (count,), the share of the filters' variance along each.

    Raises:
        ValueError: if there are not so many components.

    Example:
        >>> components, explained = filter_components(model, count=5)
        >>> components.shape, explained.shape
        ((5, 8, 8, 3), (5,))

    Source: Dosovitskiy et al. 2021, figure 7 (left) and section 4.5.
    """
    check_model(model)
    kernel = _kernel(model)  # (height, width, channels, filters)
    *shape, filters = kernel.shape
    samples = kernel.reshape(-1, filters).T
    most = min(samples.shape)
    count = min(SHOWN, most) if count is None else count
    if not is_whole(count) or not 1 <= count <= most:
        raise ValueError(f"count must be a whole number from 1 to {most}, all there are; got {count!r}")

    _, deviations, components = np.linalg.svd(samples - samples.mean(axis=0), full_matrices=False)
    # The sign of a component is arbitrary: the same for every machine.
    largest = np.abs(components).argmax(axis=1, keepdims=True)
    components = components * np.sign(np.take_along_axis(components, largest, axis=1))
    variances = deviations**2
    explained = variances / (variances.sum() or 1)
    return components[:count].reshape(count, *shape).astype("float32"), explained[:count].astype("float32")


def _kernel(model):
    if model.resnet is None:
        kernel = model.get_layer("patch_embedding").kernel
    else:
        root = model.get_layer("conv_root")
        kernel = root.standardised(root.kernel)
    return ops.convert_to_numpy(kernel).astype("float64")
