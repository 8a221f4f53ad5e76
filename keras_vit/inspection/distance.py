"""How far attention reaches: the mean distance between a patch and what it looks at."""

import numpy as np
from keras import ops

from keras_vit.inspection.blocks import blocks_of, check_images, patch_grid, stretches, walk
from keras_vit.models.arguments import stem_stride


def attention_distance(model, images):
    """How many pixels attention reaches, by block and head.

    The distance between the centres of two patches, weighted by how much the one looks at the other:
    a mean over what a patch looks at, itself included, then over the patches. Prefix tokens take no
    part: they do not look, and what a patch gives to them is left out of its mean. A patch that looks
    at no patch at all counts as 0.

    Args:
        model: A `VisionTransformer` with an encoder.
        images: Model input (batch, height, width, channels).

    Returns:
        Array (batch, blocks, heads), in pixels of the model's input. A figure as the paper's takes
        the mean over the images.

    Raises:
        ValueError: if the model has no encoder, or the images do not fit it.

    Example:
        >>> attention_distance(model, images).shape  # 1 block of 3 heads
        (4, 1, 3)

    Source: Dosovitskiy et al. 2021, figure 7 (right), section 4.5 and appendix D.7.
    """
    check_images(model, images)
    centres, prefix = patch_centres(model, images), model.num_prefix_tokens
    each = zip(blocks_of(model), walk(model, images))  # one block at a time
    return np.stack([_distance(block, tokens, centres, prefix) for block, tokens in each], axis=1)


def patch_centres(model, images):
    """Where the middle of each patch is in the image: (patches, 2), row and column in pixels.

    >>> patch_centres(model, images)[[0, 1, -1]].tolist()
    [[4.0, 4.0], [4.0, 12.0], [28.0, 28.0]]
    """
    stride = stem_stride(model.resnet)
    sides = zip(patch_grid(model, images), model.patch_size)
    axes = [(np.arange(cells) + 0.5) * patch * stride for cells, patch in sides]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)


def _distance(block, tokens, centres, prefix):
    """(batch, heads) of one block."""
    total = 0
    for part, scores in stretches(block.attention, block.attention_norm(tokens), first=prefix):
        queries = centres[part.start - prefix : part.stop - prefix]
        away = np.linalg.norm(queries[:, np.newaxis] - centres, axis=-1).astype("float32")
        scores = scores[..., prefix:]
        reach = ops.convert_to_numpy(ops.einsum("bhqk,qk->bhq", scores, away))
        looks = ops.convert_to_numpy(ops.sum(scores, axis=-1))
        total += (reach / np.where(looks > 0, looks, 1)).sum(axis=-1, dtype="float64")
    return (total / len(centres)).astype("float32")
