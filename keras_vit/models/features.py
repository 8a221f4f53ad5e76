"""A model's intermediate outputs as a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import keras

from keras_vit.layers import TokensToGrid
from keras_vit.messages import did_you_mean
from keras_vit.models.backbones import backbone
from keras_vit.rules import integer, items, optional
from keras_vit.types import Tensor

if TYPE_CHECKING:
    from keras_vit.models.vit.vision_transformer import VisionTransformer


def feature_extractor(model: keras.Model, stages: Sequence[str] | str, grid: bool = False) -> keras.Model:
    """A model from images to the outputs of the named stages, sharing this model's weights.

    Args:
        stages: Names of layers. The stages are `patch_embedding`, `position_embedding`,
            `encoder_block_{i}`, `encoder_norm`, `tokens` (the input of the pooling, prefix tokens first),
            `pooled`, `representation` and `logits`; a stem's are `block{k}_unit{u}`.
        grid: Whether to remove the prefix tokens and reshape sequences to (batch, h, w, channels).

    Returns:
        keras.Model: images → dict of tensors by stage.

    Raises:
        ValueError: for an unknown stage, or with `grid` for one without a grid, or packed patches.

    Example:
        >>> dense = model.feature_extractor(["tokens"], grid=True)
        >>> dense(np.zeros((1, 32, 32, 3)))["tokens"].shape
        TensorShape([1, 4, 4, 24])
    """
    stages = [stages] if isinstance(stages, str) else list(stages)
    known = {layer.name: layer.output for layer in model.layers} | dict(model._stages)
    unknown = [stage for stage in stages if stage not in known]
    if unknown or not stages:
        hint = did_you_mean(unknown[0], known) if unknown else ""
        raise ValueError(f"expected stages among {', '.join(known)}; unknown: {unknown or stages}{hint}")
    outputs = {stage: known[stage] for stage in stages}
    if grid:
        backbone(model).check_one_size("grid=True")
        patches = known["patch_embedding"]
        for stage, x in outputs.items():
            if len(x.shape) == 3:
                outputs[stage] = TokensToGrid()(x, patches)
            elif len(x.shape) != 4:
                raise ValueError(f"stage {stage!r} holds no grid of tokens; its shape is {x.shape}")
    return keras.Model(model.input, outputs, name=f"{model.name}_features")


def grids_of_blocks(encoder: VisionTransformer, blocks: Sequence[int] | None = None) -> list[Tensor]:
    """The patch tokens (batch, rows, columns, channels) of blocks, each after the encoder's last norm.

    Args:
        encoder: A `VisionTransformer`.
        blocks: Increasing numbers from 0; None for the last block.

    Returns:
        A list of symbolic tensors.

    Raises:
        ValueError: for a block that the encoder does not have.

    Example:
        >>> [grid.shape for grid in grids_of_blocks(model)]
        [(None, 4, 4, 24)]
    """
    return [patch_grid(encoder, tokens) for tokens in tokens_of_blocks(encoder, blocks)]


def tokens_of_blocks(encoder: VisionTransformer, blocks: Sequence[int] | None = None) -> list[Tensor]:
    """As `grids_of_blocks`, but all tokens (batch, tokens, channels), prefix tokens first.

    Example:
        >>> [tokens.shape for tokens in tokens_of_blocks(model)]
        [(None, 17, 24)]
    """
    last = (encoder.num_layers or 1) - 1
    optional(items(integer(at_least=0))).check("blocks", blocks)
    blocks = (last,) if blocks is None else blocks
    if not blocks or max(blocks) > last or sorted({*blocks}) != [*blocks]:
        raise ValueError(f"blocks must be increasing numbers from 0 to {last}; got {blocks!r}")
    return [
        encoder._stages["tokens"]
        if block == last
        else normalized(encoder, encoder.get_layer(f"encoder_block_{block}").output)
        for block in blocks
    ]


def patch_grid(encoder: VisionTransformer, tokens: Tensor) -> Tensor:
    """The patch tokens (batch, rows, columns, channels) among tokens.

    Raises:
        ValueError: for an encoder that packs patches.
    """
    encoder.check_one_size("a grid of patches")
    patches = encoder.get_layer("patch_embedding").output
    return TokensToGrid(dtype=encoder.dtype_policy)(tokens, patches)


def normalized(encoder: VisionTransformer, tokens: Tensor) -> Tensor:
    """Tokens after the encoder's last norm, if it has one before the pooling."""
    has_norm = any(layer.name == "encoder_norm" for layer in encoder.layers)
    return encoder.get_layer("encoder_norm")(tokens) if has_norm else tokens
