"""A Vision Transformer that is trained at several patch sizes (FlexiViT)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras

from keras_vit.layers.flexible_patch_embedding import FlexiblePatchEmbedding
from keras_vit.models.configured import ConfiguredModel
from keras_vit.models.vit.geometry import is_dynamic
from keras_vit.types import Tensor

if TYPE_CHECKING:
    from keras_vit.models.vit.vision_transformer import VisionTransformer

INTERPOLATION = "bilinear_antialias"  # of the position table, in FlexiViT's code


class FlexiblePatches(ConfiguredModel):
    """The model that a run at several patch sizes trains: a VisionTransformer on patches of any of them.

    The layers are those of the VisionTransformer, so training trains it. Its kernel of the patch embedding
    is resized to the size of the patches, and its position table to their grid. It is not saved: the
    VisionTransformer is, and `from_pretrained(…, patch_size=…)` loads it at each size.

    Args:
        encoder: A VisionTransformer with an image size, square patches,
            `position_interpolation="bilinear_antialias"`, and with learned positions or none.
        patch_sizes: Sides of patches in pixels, which divide the image.
        name: As of any Keras model.

    Input: `patches`, float32 (batch, rows, columns, side · side · channels), as from
    `layers.extract_patches` of the encoder's input, with a side among `patch_sizes` and the encoder's.
    Output: that of the encoder.

    Raises:
        ValueError: for an encoder with another input, a stem, other positions or another interpolation, or
            for a size that does not divide its images.

    Example:
        >>> sizes = {"hidden_size": 24, "num_layers": 2, "mlp_dim": 48, "num_heads": 3, "num_classes": 5}
        >>> options = {"position_interpolation": "bilinear_antialias"}
        >>> encoder = keras_vit.VisionTransformer(32, 8, **sizes, **options)
        >>> flexible = FlexiblePatches(encoder, (4, 8, 16))
        >>> flexible(np.zeros((1, 2, 2, 16 * 16 * 3))).shape
        TensorShape([1, 5])

    Source: Beyer et al. 2023 (FlexiViT, arXiv 2212.08013); `big_vision/models/proj/flexi/vit.py`.
    """

    backbone_argument = "encoder"
    takes_images = False

    def __init__(
        self, encoder: VisionTransformer, patch_sizes: Sequence[int], name: str | None = None
    ) -> None:
        _check(encoder, patch_sizes)
        policy = encoder.dtype_policy
        sizes = [*dict.fromkeys((*patch_sizes, encoder.patch_size[0]))]
        embedding = FlexiblePatchEmbedding(
            encoder.get_layer("patch_embedding"), sizes, dtype=policy, name="flexible_patch_embedding"
        )
        patches = keras.Input((None, None, None), name="patches")  # (b, h, w, p · p · c)
        grid = embedding(patches)  # (b, h, w, d)

        def call(layer: keras.Operation, *args: Any, **kwargs: Any) -> Tensor:
            if layer.name == "patch_embedding":
                return grid
            if layer.name == "position_embedding":
                return layer(args[0], grid)  # The table is resized to this grid.
            return layer(*args, **kwargs)

        image_encoder = keras.Model(encoder.input, encoder.output)
        patch_encoder = keras.models.clone_model(image_encoder, patches, lambda layer: layer, call)
        super().__init__(patches, patch_encoder.output, name=name)
        self.dtype_policy = policy
        self.encoder = encoder

    def trained(self) -> VisionTransformer:
        return self.encoder


def _check(encoder: VisionTransformer, patch_sizes: Sequence[int]) -> None:
    expected: dict[str, Any] = {
        "resnet": None,
        "rotary": None,
        "relative_positions": False,
        "max_num_patches": None,
        "palette": None,
        "causal": False,
        "patch_padding": 0,
    }
    if encoder.position_embedding == "learned":
        expected["position_interpolation"] = INTERPOLATION
    for name, value in expected.items():
        if (actual := getattr(encoder, name, value)) != value:
            raise ValueError(f"training at several patch sizes needs {name}={value!r}; got {actual!r}")
    if encoder.position_embedding == "sincos2d":
        raise ValueError(
            "training at several patch sizes needs learned positions, which are resized, or none; got "
            "position_embedding='sincos2d'"
        )
    if is_dynamic(encoder.image_size):
        raise ValueError("training at several patch sizes needs an image size; got (None, None)")
    if encoder.patch_size[0] != encoder.patch_size[1]:
        raise ValueError(f"training at several patch sizes needs square patches; got {encoder.patch_size}")
    height, width = encoder.image_size
    sizes = (*patch_sizes, encoder.patch_size[0])
    if wrong := [p for p in sizes if any(side and side % p for side in (height, width))]:
        raise ValueError(
            f"expected patch sizes that divide the image of {height}×{width}; "
            f"got {', '.join(map(str, wrong))}"
        )
