"""Transformers of an image's pixels as a sequence: colors of a palette, and causal attention."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Unpack

import keras

from keras_vit.layers import EncoderBlock, PaletteEmbedding, PatchEmbedding, StartToken
from keras_vit.models.vit.encoder import encoder_block
from keras_vit.models.vit.front_end import patch_embedding, patch_tokens
from keras_vit.models.vit.geometry import prefix_tokens
from keras_vit.models.vit.schema import ViTConfig, size, switch, with_options
from keras_vit.models.vit.vision_transformer import VisionTransformer
from keras_vit.rules import integer, optional
from keras_vit.types import Tensor

if TYPE_CHECKING:
    from keras_vit.models.vit.option_types import PixelAttributes, ViTOptions
else:
    PixelAttributes = object


@dataclasses.dataclass(frozen=True)
class PixelConfig(ViTConfig):
    """All options of a `PixelTransformer`, as `ViTConfig`."""

    palette: int | None = size(
        optional(integer(at_least=1)),
        "Number of colors of a palette; each pixel is then a token, with the vector of its nearest color. "
        "None for the pixels themselves.",
    )
    causal: bool = switch(
        "Whether the token of each patch depends only on the patches before it: the tokens are moved by one, "
        "after a learned start token, and attend to themselves and those before them."
    )

    def contradictions(self) -> Iterator[str]:
        if self.palette is None and not self.causal:
            yield "expected a palette or causal=True; without both, use VisionTransformer"
        yield from super().contradictions()
        if self.palette and (self.patch_size != (1, 1) or self.resnet is not None or self.pre_norm):
            yield (
                f"a palette needs patch_size=1, no resnet and no pre_norm; got {self.patch_size}, "
                f"{self.resnet} and {self.pre_norm}"
            )
        if self.causal and (self.num_layers is None or prefix_tokens(vars(self))):
            yield (
                "causal needs a Transformer without class, distillation and register tokens, which would "
                f"come before the start token; got pooling={self.pooling!r}, class_token={self.class_token} "
                f"and num_registers={self.num_registers}"
            )


@keras.saving.register_keras_serializable("keras_vit")
@with_options
class PixelTransformer(VisionTransformer, PixelAttributes):
    """A Transformer of an image's pixels, row by row, as in iGPT: the encoder of `ImageGPT`.

    Args:
        image_size, …: As for `VisionTransformer`, with `patch_size=1` for a palette.
        {options}
        dtype: A dtype policy, such as "mixed_bfloat16"; the head always computes in float32.

    Input: `images`, float32 (batch, height, width, in_channels), as `model.preprocessing` makes them.
    Output: logits (batch, num_classes).

    Raises:
        ValueError: as `VisionTransformer`, and for neither a palette nor causal attention.

    Example:
        >>> model = PixelTransformer(4, 1, 24, 2, 48, 3, pooling="gap", palette=16, causal=True)
        >>> model(np.zeros((1, 4, 4, 3))).shape
        TensorShape([1, 24])

    Source: Chen et al. 2020, "Generative Pretraining from Pixels"; `model.py` of openai/image-gpt.
    """

    schema = PixelConfig

    def __init__(
        self, *args: Any, dtype: str | keras.DTypePolicy | None = None, **kwargs: Unpack[ViTOptions]
    ) -> None:
        super().__init__(*args, dtype=dtype, **kwargs)

    @staticmethod
    def _patch_embedding(c: PixelConfig, dtype: keras.DTypePolicy) -> PatchEmbedding | PaletteEmbedding:
        if c.palette is None:
            return patch_embedding(c, dtype)
        return PaletteEmbedding(c.hidden_size, c.palette, dtype=dtype, name="patch_embedding")

    @staticmethod
    def _patch_tokens(c: PixelConfig, grid: Tensor, dtype: keras.DTypePolicy) -> Tensor:
        x = patch_tokens(c, grid, dtype)
        return StartToken(dtype=dtype, name="start_token")(x) if c.causal else x

    @staticmethod
    def _encoder_block(c: PixelConfig, index: int, dtype: keras.DTypePolicy) -> EncoderBlock:
        return encoder_block(c, index, dtype, causal=c.causal)  # type: ignore[arg-type]
