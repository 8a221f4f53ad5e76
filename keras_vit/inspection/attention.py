"""Attention scores, attention maps over the image, and attention rollout."""

from __future__ import annotations

import itertools

import keras
import numpy as np
from keras import ops

from keras_vit.inspection.blocks import (
    block_index,
    blocks_of,
    input_of_block,
    model_input,
    patch_grid,
    pooling_input,
    score_chunks,
    walk,
)
from keras_vit.messages import names_arguments
from keras_vit.types import Images


@names_arguments
def attention_weights(model: keras.Model, images: Images, block: int = -1) -> np.ndarray:
    """Compute the attention scores of one encoder block.

    Args:
        model: A `VisionTransformer`.
        images: What `model.preprocessing` takes, or what it returns: (batch, height, width, channels).
        block: Index of the block; negative indices count from the last.

    Returns:
        Array (batch, heads, tokens, tokens); every row, of one query, sums to 1. Prefix tokens come first.

    Raises:
        ValueError: if the model has no such block, or the images do not fit it.

    Example:
        >>> attention_weights(model, np.zeros((1, 32, 32, 3))).sum(-1).round(3).min().item()
        1.0

    Source: Dosovitskiy et al. 2021, appendix A, equation 6.
    """
    layer, tokens, positions = _block(model, model_input(model, images), block)
    return _array(layer.attention.scores(layer.attention_input(tokens), positions=positions))


@names_arguments
def attention_maps(model: keras.Model, images: Images, block: int | None = None) -> np.ndarray:
    """Compute the attention of each head from the query token to the patches.

    The query is what the pooling reads: the class token, or the mean of class and distillation token; the
    probe of a model with pooling="map"; otherwise the mean over all patches. Attention to prefix tokens is
    removed.

    Args:
        model: A `VisionTransformer` with an encoder.
        images: What `model.preprocessing` takes, or what it returns: (batch, height, width, channels).
        block: Index of the block; negative indices count from the last. None: the probe's attention in a
            model with pooling="map", otherwise the last block. In the blocks of a model with pooling="map"
            the query is the mean over all patches.

    Returns:
        Array (batch, heads, rows, columns); each map sums to 1 (a head with no attention to any patch has a
        uniform map).

    Raises:
        ValueError: if the model has no such block, or the images do not fit it.

    Example:
        >>> attention_maps(model, images).shape
        (4, 3, 4, 4)

    Source: Dosovitskiy et al. 2021, appendix A, equation 6; Caron et al. 2021 (DINO), figure 1.
    """
    images = model_input(model, images)
    if block is None and model.pooling == "map":
        attention = _probe_attention(model, input_of_block(model, images, model.num_layers))
    else:
        layer, tokens, positions = _block(model, images, block)
        attention = _attention_of(layer, tokens, positions, _query_weights(model, *tokens.shape[:2]))
    return _patch_maps(model, images, attention)


def attention_rollout(model: keras.Model, images: Images) -> np.ndarray:
    """Compute attention rollout: how much of each patch reaches the pooling through all blocks.

    The heads are averaged, the identity is added for the residual connection, the rows are normalized, and
    the blocks are multiplied. The result is the row of the pooling's query: of the class token, or the mean
    of class and distillation token; of the probe (pooling="map"), whose attention is one more factor;
    otherwise the mean over the patches. MLPs, values and the weights of the heads are not considered.

    Args:
        model: A `VisionTransformer` with an encoder.
        images: What `model.preprocessing` takes, or what it returns: (batch, height, width, channels).

    Returns:
        Array (batch, rows, columns); each map sums to 1.

    Raises:
        ValueError: if the model has no encoder, or the images do not fit it.

    Example:
        >>> attention_rollout(model, np.zeros((1, 32, 32, 3))).shape
        (1, 4, 4)

    Source: Abnar and Zuidema 2020 (arXiv 2005.00928); Dosovitskiy et al. 2021, appendix D.8.
    """
    images = model_input(model, images)
    *blocks, (_, tokens, _) = walk(model, images)
    if model.pooling == "map":
        row = _probe_attention(model, tokens).mean(axis=1)
    else:
        row = _query_weights(model, *tokens.shape[:2])
    # A vector times each block from the last to the first equals the row of the matrix product.
    for block in reversed(blocks):
        row = (row + _attention_of(*block, row).mean(axis=1)) / 2  # (batch, tokens)
    return _patch_maps(model, images, row)


def rollout_outputs(model):
    """Return the stages that `rollout_tensor` reads, to be computed with other outputs of the model.

    Args:
        model: A `VisionTransformer` with an encoder.

    Returns:
        dict of symbolic tensors: `blocks`, the inputs of each block, and `tokens`, the output of the last.
    """
    blocks = blocks_of(model)
    return {"blocks": [keras.tree.flatten(block.input) for block in blocks], "tokens": blocks[-1].output}


def rollout_tensor(model, stages):
    """Compute attention rollout from a model's stages by tensor operations, so that it can be exported.

    Args:
        model: A `VisionTransformer` with an encoder.
        stages: The tensors of `rollout_outputs`, of one image.

    Returns:
        Tensor (1, patches): what `attention_rollout` computes, before it is scaled to a sum of 1.

    Example:
        >>> stages = keras.Model(model.input, rollout_outputs(model))(images[:1])
        >>> row = ops.convert_to_numpy(rollout_tensor(model, stages))
        >>> np.allclose(row / row.sum(), attention_rollout(model, images[:1]).reshape(1, 16), atol=1e-6)
        True
    """
    prefix, count = model.num_prefix_tokens, stages["blocks"][-1][0].shape[1]
    if model.pooling == "map":
        tokens = pooling_input(model, stages["tokens"])
        layer = model.get_layer("attention_pooling")
        scores = layer.scores(tokens if model.pool_prefix else tokens[:, prefix:])
        row = ops.reshape(ops.mean(scores, axis=1), (1, -1))  # (1, tokens)
        if not model.pool_prefix and prefix:
            row = ops.concatenate([np.zeros((1, prefix), "float32"), row], axis=1)
    else:
        row = ops.convert_to_tensor(_query_weights(model, 1, count))
    for block, (tokens, *positions) in zip(reversed(blocks_of(model)), reversed(stages["blocks"])):
        arguments = {"positions": positions[0]} if positions else {}
        scores = ops.mean(block.attention.scores(block.attention_input(tokens), **arguments), axis=1)
        # LiteRT's delegate for GPUs has neither a product of a constant and a matrix nor sums.
        row = (row + ops.mean(ops.reshape(row, (1, count, 1)) * scores, axis=1) * count) / 2
    return row[:, prefix:]


def _block(model, images, index):
    """Return a block, its input and its positions."""
    return next(itertools.islice(walk(model, images), block_index(model, index), None))


def _query_weights(model, batch, count):
    """Return the weight of each token in what the pooling reads: (batch, tokens)."""
    weights = np.zeros((batch, count), "float32")
    if model.pooling in ("token", "token_gap"):
        queries = 1 + model.distillation
        weights[:, :queries] = 1 / queries
    else:
        weights[:, model.num_prefix_tokens :] = 1 / (count - model.num_prefix_tokens)
    return weights


def _probe_attention(model, tokens):
    """Return the attention of the probe to the last block's output: (batch, heads, tokens)."""
    tokens, unread = pooling_input(model, tokens), 0 if model.pool_prefix else model.num_prefix_tokens
    scores = _array(model.get_layer("attention_pooling").scores(tokens[:, unread:]))[:, :, 0]
    return np.pad(scores, ((0, 0), (0, 0), (unread, 0)))


def _attention_of(block, tokens, positions, weights):
    """Return the attention of the weighted sum of queries: (batch, heads, tokens)."""
    chunks = score_chunks(block.attention, block.attention_input(tokens), positions)
    return sum(_array(ops.einsum("bq,bhqk->bhk", weights[:, chunk], scores)) for chunk, scores in chunks)


def _patch_maps(model, images, attention):
    """Remove the prefix tokens, reshape to the patch grid and normalize to a sum of 1."""
    patches = attention[..., model.num_prefix_tokens :]
    total = patches.sum(axis=-1, keepdims=True)
    patches = np.where(total > 0, patches, 1) / np.where(total > 0, total, patches.shape[-1])
    return patches.reshape(*patches.shape[:-1], *patch_grid(model, images))


def _array(x):
    return ops.convert_to_numpy(x).astype("float32")
