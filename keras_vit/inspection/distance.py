"""The mean distance in pixels between a patch and the patches that it attends to."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
from keras import ops

from keras_vit.inspection.blocks import model_input, patch_grid, score_chunks, walk
from keras_vit.models.vit.geometry import stem_stride
from keras_vit.types import Images

if TYPE_CHECKING:
    import keras


def attention_distance(model: keras.Model, images: Images) -> np.ndarray:
    """Compute the mean attention distance in pixels, by block and head.

    The distances from the center of a patch to the centers of all patches are averaged, weighted by its
    attention, then averaged over the patches. Prefix tokens are excluded as queries and as keys. A patch that
    attends to no patch counts as 0.

    Args:
        model: A `VisionTransformer` with an encoder.
        images: What `model.preprocessing` takes, or what it returns: (batch, height, width, channels).

    Returns:
        Array (batch, blocks, heads), in pixels of the model's input. The paper's figure averages over
        images.

    Raises:
        ValueError: if the model has no encoder, or the images do not fit it.

    Example:
        >>> attention_distance(model, images).shape  # 1 block of 3 heads
        (4, 1, 3)

    Source: Dosovitskiy et al. 2021, figure 7 (right), section 4.5 and appendix D.7.
    """
    images = model_input(model, images)
    centers, prefix = patch_centers(model, images), model.num_prefix_tokens
    states = itertools.islice(walk(model, images), model.num_layers)
    return np.stack([_distance(*state, centers, prefix) for state in states], axis=1)


def patch_centers(model, images):
    """Return the center of each patch in the image: (patches, 2), row and column in pixels.

    >>> patch_centers(model, images)[[0, 1, -1]].tolist()
    [[4.0, 4.0], [4.0, 12.0], [28.0, 28.0]]
    """
    stride = stem_stride(model.resnet)
    sides = zip(patch_grid(model, images), model.patch_size)
    axes = [(np.arange(count) + 0.5) * patch * stride for count, patch in sides]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)


def _distance(block, tokens, positions, centers, prefix):
    """Return (batch, heads) of one block."""
    total = 0
    tokens = block.attention_input(tokens)
    for chunk, scores in score_chunks(block.attention, tokens, positions, first=prefix):
        queries = centers[chunk.start - prefix : chunk.stop - prefix]
        distances = np.linalg.norm(queries[:, np.newaxis] - centers, axis=-1).astype("float32")
        scores = scores[..., prefix:]
        weighted = ops.convert_to_numpy(ops.einsum("bhqk,qk->bhq", scores, distances))
        weights = ops.convert_to_numpy(ops.sum(scores, axis=-1))
        total += (weighted / np.where(weights > 0, weights, 1)).sum(axis=-1, dtype="float64")
    return (total / len(centers)).astype("float32")
