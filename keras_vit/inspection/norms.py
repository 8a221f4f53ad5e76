"""The norms of patch tokens, by which tokens that no longer describe their patch are recognized."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from keras import ops

from keras_vit.inspection.blocks import block_index, input_of_block, model_input, patch_grid
from keras_vit.types import Images

if TYPE_CHECKING:
    import keras

ARTIFACT_NORM = (
    3.0  # times the median of the image; in DINOv2's giant, most tokens have less than half of 150
)


def patch_norms(model: keras.Model, images: Images, block: int | None = None) -> np.ndarray:
    """Compute the norm of each patch token that enters a block, relative to the median of its image.

    Large models that are trained long without registers, such as DINOv2's, store information about the
    whole image in a few tokens of patches with little content. Their norms are several times the median, and
    attention to them says nothing about their patches.

    Args:
        model: A `VisionTransformer` with an encoder.
        images: What `model.preprocessing` takes, or what it returns: (batch, height, width, channels).
        block: Index of the block; negative indices count from the last. None: the block of
            `attention_maps`, the last, or with pooling="map" the output of the last, which the probe reads.

    Returns:
        Array (batch, rows, columns); `patch_norms(model, images) > 3` is True where a token is an artifact.

    Raises:
        ValueError: if the model has no such block, or the images do not fit it.

    Example:
        >>> norms = patch_norms(model, images)
        >>> norms.shape, (norms > 3).any().item()
        ((4, 4, 4), False)

    Source: Darcet et al. 2023, "Vision Transformers Need Registers" (arXiv 2309.16588), section 2.
    """
    images = model_input(model, images)
    index = model.num_layers if block is None and model.pooling == "map" else block_index(model, block)
    tokens = ops.convert_to_numpy(ops.cast(input_of_block(model, images, index), "float32"))
    norms = np.linalg.norm(tokens[:, model.num_prefix_tokens :], axis=-1)
    median = np.median(norms, axis=1, keepdims=True)
    norms = np.where(median > 0, norms / np.where(median > 0, median, 1), 1)
    return norms.reshape(len(norms), *patch_grid(model, images))
