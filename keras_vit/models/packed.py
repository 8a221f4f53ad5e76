"""Vision Transformers of packed patches (NaFlex): images of any aspect ratio in one batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Unpack

import keras

from keras_vit.layers import PackedPositionEmbs, PaddingBias
from keras_vit.models.vit.geometry import DYNAMIC_SIZE, prefix_tokens
from keras_vit.models.vit.schema import ViTConfig, architecture, with_options
from keras_vit.models.vit.vision_transformer import VisionTransformer
from keras_vit.rules import integer, optional
from keras_vit.types import Tensor

if TYPE_CHECKING:
    from keras_vit.models.vit.option_types import PackedAttributes, ViTOptions
    from keras_vit.models.vit.schema import TransformerConfig
else:
    PackedAttributes = object


@dataclasses.dataclass(frozen=True)
class PackedConfig(ViTConfig):
    """All options of a `PackedVisionTransformer`, as `ViTConfig`."""

    max_num_patches: int | None = architecture(
        optional(integer(at_least=1)),
        "Number of patches of each image of a batch, whatever its aspect ratio, with ignored padding.",
    )

    default_interpolation = "bilinear_antialias"

    def contradictions(self) -> Iterator[str]:
        needs = f"max_num_patches={self.max_num_patches} needs"
        if self.max_num_patches is None:
            yield "max_num_patches must be a positive int; got None"
        if (self.image_size, self.resnet, self.position_embedding) != (DYNAMIC_SIZE, None, "learned"):
            yield (
                f"{needs} image_size=(None, None), position_embedding='learned' and no resnet; got "
                f"{self.image_size}, {self.position_embedding!r} and {self.resnet}"
            )
        if self.num_layers is None or self.pooling != "map" or prefix_tokens(vars(self)):
            yield (
                f"{needs} a Transformer with pooling='map' and without prefix tokens; got "
                f"pooling={self.pooling!r}, class_token={self.class_token} and "
                f"num_registers={self.num_registers}"
            )
        if self.rotary or self.relative_positions:
            yield (
                f"max_num_patches={self.max_num_patches} excludes rotary and relative positions; got "
                f"{self.rotary!r} and {self.relative_positions}"
            )
        yield from super().contradictions()

    @property
    def packing(self) -> dict[str, Any]:
        return {"patch_size": self.patch_size, "max_num_patches": self.max_num_patches}


@keras.saving.register_keras_serializable("keras_vit")
@with_options
class PackedVisionTransformer(VisionTransformer, PackedAttributes):
    """A Vision Transformer of packed patches (NaFlex): each image of a batch has its own aspect ratio.

    Args:
        image_size, …: As for `VisionTransformer`: `image_size=(None, None)`, `pooling="map"`, learned
            positions, and neither a stem nor prefix tokens.
        {options}
        dtype: A dtype policy, such as "mixed_bfloat16"; the head always computes in float32.

    Input: a dict of `patches`, float32 (batch, max_num_patches, patch height · patch width · in_channels),
    and `grids`, int32 (batch, 2), the rows and columns of each image's patches, as `model.preprocessing`
    makes them.
    Output: logits (batch, num_classes).

    Raises:
        ValueError: as `VisionTransformer`.

    Example:
        >>> sizes = {"hidden_size": 24, "num_layers": 2, "mlp_dim": 48, "num_heads": 3}
        >>> model = PackedVisionTransformer((None, None), 8, **sizes, pooling="map", max_num_patches=16)
        >>> batch = model.preprocessing([np.zeros((16, 48, 3)), np.zeros((90, 30, 3))])
        >>> batch["grids"].tolist(), model(batch).shape
        ([[2, 6], [6, 2]], TensorShape([2, 24]))

    Source: Dehghani et al. 2023 (NaViT, arXiv 2307.06304); Tschannen et al. 2025 (SigLIP 2, arXiv
    2502.14786), section 2.4.2.
    """

    schema = PackedConfig

    def __init__(
        self, *args: Any, dtype: str | keras.DTypePolicy | None = None, **kwargs: Unpack[ViTOptions]
    ) -> None:
        super().__init__(*args, dtype=dtype, **kwargs)

    def check_one_size(self, use: str) -> None:
        raise ValueError(
            f"{use} needs images of one size; this model packs patches (max_num_patches="
            f"{self.max_num_patches}): load it with an image_size (--image_size)"
        )

    @staticmethod
    def _model_inputs(c: PackedConfig, dtype: keras.DTypePolicy) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        n, (height, width) = c.max_num_patches, c.patch_size
        patches = keras.Input((n, height * width * c.in_channels), name="patches")
        grids = keras.Input((2,), dtype="int32", name="grids")
        bias = PaddingBias(dtype=dtype, name="padding_bias")(patches, grids)  # (b, 1, 1, n)
        # One below the other, the patches are an image.
        column = (n * height, width, c.in_channels)  # type: ignore[operator]
        images = keras.layers.Reshape(column, dtype=dtype, name="patch_column")(patches)
        return {"patches": patches, "grids": grids}, images, bias

    @staticmethod
    def _position_embedding(
        c: TransformerConfig,
        inputs: dict[str, Tensor],
        grid: Tensor,
        num_prefix: int,
        dtype: keras.DTypePolicy,
    ) -> tuple[PackedPositionEmbs, list[Tensor]]:
        layer = PackedPositionEmbs(
            c.position_grid,  # type: ignore[arg-type]
            c.position_interpolation,
            dtype=dtype,
            name="position_embedding",
        )
        return layer, [inputs["grids"]]
