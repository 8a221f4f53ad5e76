"""What the model looks at: attention scores, and attention rolled out to the image."""

import numpy as np
from keras import ops

from keras_vit.inspection.blocks import (
    as_read,
    blocks_of,
    check_images,
    is_whole,
    patch_grid,
    stretches,
    tokens_at,
    walk,
)


def attention_scores(model, images, block=-1):
    """Who looks at whom in one encoder block.

    Args:
        model: A `VisionTransformer`.
        images: Model input (batch, height, width, channels), as `model.preprocessing` makes it.
        block: Number of the block; negative numbers count from the last.

    Returns:
        Array (batch, heads, tokens, tokens); every row sums to 1. Prefix tokens come first.

    Raises:
        ValueError: if the model has no such block, or the images do not fit it.

    Example:
        >>> attention_scores(model, np.zeros((1, 32, 32, 3))).sum(-1).round(3).min().item()
        1.0

    Source: Dosovitskiy et al. 2021, appendix A, equation 6.
    """
    layer, tokens = _block(model, images, block)
    return _array(layer.attention.scores(layer.attention_norm(tokens)))


def attention_maps(model, images, block=None):
    """Where each head of the last reader looks in the image.

    The reader is the class token, with the distillation token if there is one; the probe of a model
    with pooling="map"; else all patches. Of several the mean is taken. What they give to prefix
    tokens is left out.

    Args:
        model: A `VisionTransformer` with an encoder.
        images: Model input (batch, height, width, channels).
        block: Number of the block; negative numbers count from the last. None: the last one that is
            read, which is the probe's own attention with pooling="map", else the last block. In a
            block of a model with pooling="map" the reader is all patches.

    Returns:
        Array (batch, heads, rows, columns); each map sums to 1 (a head that looks at no patch at all
        has equal numbers).

    Raises:
        ValueError: if the model has no such block, or the images do not fit it.

    Example:
        >>> attention_maps(model, images).shape
        (4, 3, 4, 4)

    Source: Dosovitskiy et al. 2021, appendix A, equation 6; Caron et al. 2021 (DINO), figure 1.
    """
    check_images(model, images)
    if block is None and model.pooling == "map":
        tokens = tokens_at(model, images, model.num_layers)
        seen = _probe(model, tokens)
    else:
        layer, tokens = _block(model, images, -1 if block is None else block)
        seen = _looks(layer, tokens, _reader(model, tokens))
    return _on_the_grid(model, images, seen)


def attention_rollout(model, images):
    """How much attention, followed back through the blocks, ends on each patch.

    The heads are averaged, the identity is added for the residual path, the rows are normalised,
    and the blocks are multiplied together. What is left is the row of what the pooling reads: of the
    class token, or the mean of its and the distillation token's; of the probe (pooling="map"), whose
    attention is one factor more; else the mean over the patches' rows. It is no account of what the
    model computes: the MLPs, the values and the heads' weights are not in it.

    Args:
        model: A `VisionTransformer` with an encoder.
        images: Model input (batch, height, width, channels).

    Returns:
        Array (batch, rows, columns); each map sums to 1.

    Raises:
        ValueError: if the model has no encoder, or the images do not fit it.

    Example:
        >>> attention_rollout(model, np.zeros((1, 32, 32, 3))).shape
        (1, 4, 4)

    Source: Abnar and Zuidema 2020 (arXiv 2005.00928); Dosovitskiy et al. 2021, appendix D.8.
    """
    *inputs, tokens = walk(model, images)
    row = _probe(model, tokens).mean(axis=1) if model.pooling == "map" else _reader(model, tokens)
    # A row from the last block to the first instead of a product of matrices: the same, and cheap.
    for block, tokens in reversed([*zip(blocks_of(model), inputs)]):
        row = (row + _looks(block, tokens, row).mean(axis=1)) / 2  # (batch, tokens)
    return _on_the_grid(model, images, row)


def _block(model, images, number):
    """A block by its number, and its input."""
    blocks = blocks_of(model)
    if not is_whole(number) or not -len(blocks) <= number < len(blocks):
        raise ValueError(f"block {number} is not there; the model has {len(blocks)} blocks")
    number %= len(blocks)
    return blocks[number], tokens_at(model, images, number)


def _reader(model, tokens):
    """How much the pooling reads of each token: (batch, tokens)."""
    batch, count, _ = tokens.shape
    row = np.zeros((batch, count), "float32")
    if model.pooling == "token":
        readers = 1 + model.distillation
        row[:, :readers] = 1 / readers
    else:
        row[:, model.num_prefix_tokens :] = 1 / (count - model.num_prefix_tokens)
    return row


def _probe(model, tokens):
    """What the probe looks at, from the tokens behind the last block: (batch, heads, tokens)."""
    return _array(model.get_layer("attention_pooling").scores(as_read(model, tokens)))[:, :, 0]


def _looks(block, tokens, row):
    """What tokens look at in a block, by head and weighted by the row: (batch, heads, tokens)."""
    parts = stretches(block.attention, block.attention_norm(tokens))
    return sum(_array(ops.einsum("bq,bhqk->bhk", row[:, part], scores)) for part, scores in parts)


def _on_the_grid(model, images, seen):
    """Without the prefix tokens, laid out as the image is, with a sum of 1."""
    grid = patch_grid(model, images)
    cells = seen[..., model.num_prefix_tokens :]
    total = cells.sum(axis=-1, keepdims=True)
    cells = np.where(total > 0, cells, 1) / np.where(total > 0, total, cells.shape[-1])
    return cells.reshape(*cells.shape[:-1], *grid)


def _array(x):
    return ops.convert_to_numpy(x).astype("float32")
