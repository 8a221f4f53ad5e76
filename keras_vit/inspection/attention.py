"""What the model looks at: attention scores, and attention rolled out to the image."""

import keras
import numpy as np


def attention_scores(model, images, block=-1):
    """Who looks at whom in one encoder block.

    Args:
        model: A `VisionTransformer`.
        images: Model input (batch, height, width, channels), as `model.preprocessing` makes it.
        block: Number of the block; negative numbers count from the last.

    Returns:
        Array (batch, heads, tokens, tokens); every row sums to 1.

    Raises:
        ValueError: if the model has no such block.

    Example:
        >>> attention_scores(model, np.zeros((1, 32, 32, 3))).sum(-1).round(3).min().item()
        1.0

    Source: Dosovitskiy et al. 2021, appendix A, equation 6.
    """
    blocks = _blocks(model)
    if not -len(blocks) <= block < len(blocks):
        raise ValueError(f"block {block} is not there; the model has {len(blocks)} blocks")
    layer = blocks[block]
    return _scores(layer, keras.Model(model.input, layer.input)(images))


def attention_rollout(model, images):
    """How much of what a model says of an image comes from each patch.

    The heads are averaged, the identity is added for the residual path, the rows are normalised,
    and the blocks are multiplied together; the class token's row is what is left, or without a class
    token the mean over all rows.

    Args:
        model: A `VisionTransformer` with an encoder.
        images: Model input (batch, height, width, channels).

    Returns:
        Array (batch, grid height, grid width); each map sums to 1.

    Raises:
        ValueError: if the model has no encoder.

    Example:
        >>> attention_rollout(model, np.zeros((1, 32, 32, 3))).shape
        (1, 4, 4)

    Source: Abnar and Zuidema 2020 (arXiv 2005.00928); Dosovitskiy et al. 2021, appendix D.8.
    """
    blocks = _blocks(model)
    if not blocks:
        raise ValueError("the model has no encoder blocks whose attention could be rolled out")
    inputs = [block.input for block in blocks]
    *tokens, grid = keras.Model(model.input, [*inputs, model.get_layer("patch_embedding").output])(images)
    rollout = None
    for block, x in zip(blocks, tokens):  # the scores of one block at a time
        mean = _scores(block, x).mean(axis=1)  # (batch, tokens, tokens)
        step = (mean + np.eye(mean.shape[-1])) / 2
        rollout = step if rollout is None else step @ rollout
    prefix = model.num_prefix_tokens
    seen = rollout[:, 0] if model.class_token else rollout.mean(axis=1)
    cells = seen[:, prefix:] / seen[:, prefix:].sum(axis=1, keepdims=True)
    return cells.reshape(-1, *grid.shape[1:3])


def _blocks(model):
    return [model.get_layer(f"encoder_block_{i}") for i in range(model.num_layers or 0)]


def _scores(block, tokens):
    return keras.ops.convert_to_numpy(block.attention.scores(block.attention_norm(tokens)))
