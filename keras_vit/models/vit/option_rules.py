"""The rules across a model's options; the rule of each alone is in its field of `schema.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from keras_vit.models.vit.geometry import DYNAMIC_SIZE, prefix_tokens
from keras_vit.models.vit.resnet_stem import GROUPS

if TYPE_CHECKING:
    from keras_vit.models.vit.schema import ViTConfig


def contradictions(config: ViTConfig) -> Iterator[str]:
    """Messages about options that contradict each other.

    Args:
        config: A `ViTConfig` whose options obey their own rules.

    Yields:
        One message for each rule that is broken.
    """
    for rules in (_blocks, _pooling, _positions, _patch_dropout, _patch_padding):
        yield from rules(config)


def _blocks(c: ViTConfig) -> Iterator[str]:
    if c.num_layers is None and (c.mlp_dim, c.num_heads) != (None, None):
        yield (
            "num_layers=None builds no Transformer, so mlp_dim and num_heads must be None; got "
            f"{c.mlp_dim} and {c.num_heads}"
        )
    if c.num_layers is not None and None in (c.mlp_dim, c.num_heads):
        yield (
            f"mlp_dim and num_heads must be positive ints with num_layers={c.num_layers}; got {c.mlp_dim} "
            f"and {c.num_heads}"
        )
    if isinstance(c.num_kv_heads, tuple) and len(c.num_kv_heads) != c.num_layers:
        yield f"num_kv_heads must have num_layers={c.num_layers} items; got {c.num_kv_heads}"
    if c.num_kv_heads and c.rotary and c.rotary["kind"] == "mixed":
        yield f"mixed rotary positions differ between heads, which num_kv_heads groups; got {c.num_kv_heads}"
    if c.resnet is not None and c.resnet_width % GROUPS:
        yield f"resnet_width must be a multiple of {GROUPS}, the groups of its norms; got {c.resnet_width}"


def _pooling(c: ViTConfig) -> Iterator[str]:
    if c.num_layers is None and (c.pooling not in ("gap", None) or prefix_tokens(vars(c))):
        yield (
            "without a Transformer pooling must be 'gap' or None, and there can be no class, distillation or "
            f"register tokens; got pooling={c.pooling!r}"
        )
    if c.pooling in ("token", "token_gap") and not c.class_token:
        yield f"pooling={c.pooling!r} reads the class token; got class_token=False"
    has_other_head = c.representation_size is not None or c.norm_after_pooling
    if c.distillation and (c.pooling != "token" or has_other_head):
        yield (
            "distillation needs pooling='token', no representation_size and no norm_after_pooling; got "
            f"{c.pooling!r}, {c.representation_size} and {c.norm_after_pooling}"
        )
    if c.norm_after_pooling and not c.final_norm:
        yield "norm_after_pooling=True moves the last norm; got final_norm=False"


def _positions(c: ViTConfig) -> Iterator[str]:
    has_sincos = c.num_layers is not None and c.position_embedding == "sincos2d"
    if has_sincos and (c.hidden_size % 4 or c.hidden_size < 8):
        yield f"sincos2d needs a hidden_size that is a multiple of 4, at least 8; got {c.hidden_size}"
    if c.num_layers is None and (c.rotary or c.relative_positions):
        yield "without a Transformer there can be no rotary or relative positions; got num_layers=None"
    if c.rotary and c.relative_positions:
        yield (
            f"rotary and relative positions exclude each other; got rotary={c.rotary!r} and "
            "relative_positions=True"
        )
    if c.position_interpolation == "truncate" and c.image_size == DYNAMIC_SIZE:
        yield (
            "position_interpolation='truncate' has no positions for an image that is larger; got "
            f"image_size={c.image_size}: give image_size, or position_interpolation='bilinear'"
        )
    if c.relative_positions and c.image_size == DYNAMIC_SIZE:
        yield f"relative positions are of one grid; got image_size={c.image_size}"
    if c.relative_positions and (c.num_registers or c.distillation):
        yield (
            "relative positions have no rows for distillation or register tokens; got num_registers="
            f"{c.num_registers} and distillation={c.distillation}"
        )


def _patch_dropout(c: ViTConfig) -> Iterator[str]:
    if c.patch_dropout_rate and (c.num_layers is None or c.pooling is None):
        yield (
            "patch dropout needs a Transformer and a pooling of its tokens; got patch_dropout_rate="
            f"{c.patch_dropout_rate}, num_layers={c.num_layers} and pooling={c.pooling!r}"
        )
    if c.patch_dropout_rate and (c.relative_positions or getattr(c, "max_num_patches", None)):
        yield (
            "patch dropout excludes relative positions and packed patches; got patch_dropout_rate="
            f"{c.patch_dropout_rate}"
        )


def _patch_padding(c: ViTConfig) -> Iterator[str]:
    if c.patch_padding >= min(c.patch_size):
        yield (
            f"patch_padding must be less than the sides of a patch, {c.patch_size[0]}×{c.patch_size[1]}; got "
            f"{c.patch_padding}"
        )
    if c.patch_padding and getattr(c, "max_num_patches", None):
        yield f"packed patches have no padding; got patch_padding={c.patch_padding}"
