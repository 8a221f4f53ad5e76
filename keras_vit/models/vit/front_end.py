"""From images to the tokens of the encoder: models of another input have other such functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from keras_vit.layers import AddPositionEmbs, GridToTokens, PatchEmbedding, WholePatches
from keras_vit.models.vit.geometry import is_dynamic, patch_pixels
from keras_vit.types import Tensor

if TYPE_CHECKING:
    from keras_vit.models.vit.schema import TransformerConfig, ViTConfig


def image_input(config: ViTConfig, dtype: keras.DTypePolicy) -> tuple[Tensor, Tensor, None]:
    """The inputs of the model.

    Args:
        config: A `ViTConfig`.
        dtype: The layers' dtype policy.

    Returns:
        (the model's inputs, images (batch, height, width, channels) made of them, a bias for the scores of
        the attention or None).
    """
    images = keras.Input((*config.image_size, config.in_channels), name="images")
    if not is_dynamic(config.image_size) or config.patch_size == (1, 1):
        return images, images, None
    whole = WholePatches(patch_pixels(config), dtype="float32", name="whole_patches")
    return images, whole(images), None


def patch_embedding(config: ViTConfig, dtype: keras.DTypePolicy) -> PatchEmbedding:
    """The layer from pixels, or the output of the stem, to a grid of vectors."""
    return PatchEmbedding(
        config.hidden_size,
        config.patch_size,
        use_bias=not config.pre_norm,
        crop=not is_dynamic(config.image_size),
        padding=config.patch_padding,
        dtype=dtype,
        name="patch_embedding",
    )


def patch_tokens(config: ViTConfig, grid: Tensor, dtype: keras.DTypePolicy) -> Tensor:
    """The tokens (batch, n, channels) of a grid of vectors (batch, rows, columns, channels)."""
    return GridToTokens(dtype=dtype, name="patch_tokens")(grid)


def position_embedding(
    config: TransformerConfig, inputs: Tensor, grid: Tensor, num_prefix: int, dtype: keras.DTypePolicy
) -> tuple[AddPositionEmbs, list[Tensor]]:
    """The layer that adds positions to the tokens.

    Args:
        config: A `ViTConfig` with a Transformer.
        inputs: The inputs of the model.
        grid: Symbolic tensor (batch, rows, columns, channels) of the patches.
        num_prefix: The number of prefix tokens that have positions.
        dtype: The layer's dtype policy.

    Returns:
        (the layer, a list of what it is given after the tokens).
    """
    c = config
    layer = AddPositionEmbs(
        c.position_embedding,
        c.position_grid or grid.shape[1:3],
        num_prefix,
        interpolation=c.position_interpolation,
        dtype=dtype,
        name="position_embedding",
    )
    # With a position_grid the table is resized to the image's grid, which the layer has to know.
    return layer, [] if c.position_grid is None else [grid]
