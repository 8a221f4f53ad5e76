"""The similarity of position embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras import ops

from keras_vit.inspection.blocks import check_model
from keras_vit.inspection.similarity import cosine_similarity
from keras_vit.layers.position_embedding import sincos_2d

if TYPE_CHECKING:
    import keras
    import numpy as np


def position_similarity(model: keras.Model) -> np.ndarray:
    """Compute the cosine similarity of every two position embeddings.

    Args:
        model: A `VisionTransformer` with position embeddings, learned or "sincos2d".

    Returns:
        Array (rows, columns, rows, columns) in [-1, 1], on the grid that the model stores (its
        `position_grid`, or the grid of its image size): `similarity[row, column]` is the map of
        similarities to this position. Prefix tokens are excluded.

    Raises:
        ValueError: if the model has no position embeddings.

    Example:
        >>> position_similarity(model).shape
        (4, 4, 4, 4)

    Source: Dosovitskiy et al. 2021, figure 7 (center) and appendix D.4.
    """
    check_model(model)
    if model.num_layers is None or model.position_embedding == "none":
        raise ValueError("the model has no position embeddings to compare")
    layer = model.get_layer("position_embedding")
    grid = layer.grid_size
    if model.position_embedding == "sincos2d":
        positions = sincos_2d(*grid, model.hidden_size)
    else:
        positions = layer.table[0, model.num_prefix_tokens * model.prefix_positions :]
    return cosine_similarity(ops.convert_to_numpy(positions)).reshape(*grid, *grid)
