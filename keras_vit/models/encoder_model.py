"""Models that add layers to the tokens of a VisionTransformer, their encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import keras
import numpy as np

from keras_vit.engine.adapting import copy_with_weights, plain_arrays
from keras_vit.layers.dense import without_state
from keras_vit.models.configured import ConfiguredModel
from keras_vit.models.vit.geometry import patch_pixels
from keras_vit.models.vit.schema import INFERENCE
from keras_vit.models.vit.vision_transformer import VisionTransformer


class EncoderModel(ConfiguredModel):
    """A model with an `encoder` and layers of its own, whose configuration has both.

    A subclass has the attribute `encoder`, and its `_config` the constructor's other arguments.
    """

    encoder: VisionTransformer
    backbone_argument = "encoder"

    def finished(self, arrays: dict[str, np.ndarray] | None = None, **changes: Any) -> Self:
        """A copy of the model for inference, in float32 and without dropout, remat and frozen layers.

        Args:
            arrays: dict of the weights by path; None for the model's, with LoRA factors merged.
            **changes: Constructor arguments that leave the weights as they are.
        """
        encoder = without_state({**self.encoder.get_config(), **INFERENCE})
        config = {**self._config(), "encoder": encoder, "name": self.name, **changes}
        return copy_with_weights(self, config, arrays)

    def get_config(self) -> dict[str, Any]:
        return {"encoder": self.encoder.get_config(), **self._config(), **super().get_config()}

    def _inner_models(self) -> tuple[ConfiguredModel, ...]:
        return (self.encoder,)


class Pretrainer(EncoderModel):
    """The model that an objective without labels trains: it is only needed to train its encoder."""

    kind = "pretrainer"
    takes_images = False  # A mask, an order or views are input, too.
    is_classifier = False
    without_head = "this model has no classes; fine-tune its `to_vision_transformer(num_classes=…)`"

    def trained(self) -> VisionTransformer:
        return self.encoder

    def to_vision_transformer(self, **changes: Any) -> VisionTransformer:
        """A new VisionTransformer with the encoder's weights, for fine-tuning.

        For another image size, save the model; `from_pretrained` resizes the positions.

        Args:
            **changes: Constructor arguments, such as `num_classes` and `pooling`.

        Returns:
            VisionTransformer: The layers after the tokens are new, and with `norm_after_pooling` the last
                norm, too. Quantized kernels are dequantized, LoRA factors merged, and all weights trainable.

        Raises:
            ValueError: if the encoder's weights do not fit the changed arguments.

        Example:
            >>> predictor = keras_vit.MaskedPatchPredictor(keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3))
            >>> predictor.to_vision_transformer(pooling="gap", num_classes=10).output_shape
            (None, 10)
        """
        kept = {"dtype": self.encoder.dtype_policy, "name": self.encoder.name}
        model = VisionTransformer.from_config({**self.encoder._config(), **kept, **changes})
        arrays, weights = plain_arrays(self.encoder), {weight.path: weight for weight in model.weights}
        if model.norm_after_pooling:
            arrays = {path: x for path, x in arrays.items() if not path.startswith("encoder_norm/")}
        if missing := sorted(arrays.keys() - weights.keys()):
            raise ValueError(f"a model with {changes} lacks weights of the encoder: {', '.join(missing)}")
        for path, array in arrays.items():
            weights[path].assign(array)
        return model


def as_encoder(
    encoder: VisionTransformer | Mapping[str, Any], dtype: str | keras.DTypePolicy | None = None
) -> VisionTransformer:
    """The encoder of a model, from its constructor argument.

    Args:
        encoder: A VisionTransformer, or its constructor arguments.
        dtype: A dtype policy for an encoder that is given by its arguments.

    Raises:
        ValueError: unless it ends with its tokens, and its patches fill its images.

    Example:
        >>> as_encoder({"image_size": 32, **keras_vit.variants.parse_variant("mu/16")}).patch_size
        (16, 16)
        >>> as_encoder(keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3, num_classes=5))
        Traceback (most recent call last):
        ValueError: expected an encoder without layers after its tokens; got {'num_classes': 5}
    """
    if not isinstance(encoder, VisionTransformer):
        encoder = VisionTransformer.from_config({"dtype": dtype, **encoder})
    if encoder.num_layers is None:
        raise ValueError("expected an encoder with a Transformer; got one with num_layers=None")
    after = {"pooling": "map"} if encoder.pooling == "map" else {}
    for name in ("num_classes", "representation_size", "norm_after_pooling"):
        if getattr(encoder, name):
            after[name] = getattr(encoder, name)
    if after:
        raise ValueError(f"expected an encoder without layers after its tokens; got {after}")
    if encoder.patch_dropout_rate:
        raise ValueError(
            "expected an encoder with patch_dropout_rate=0, since this model needs the tokens of all "
            f"patches; got {encoder.patch_dropout_rate}"
        )
    patch = patch_pixels(encoder)
    if any(side and side % p for side, p in zip(encoder.image_size, patch)):
        raise ValueError(
            f"expected an image size divisible by a token's region of {patch}; got {encoder.image_size}"
        )
    return encoder


def check_not_causal(encoder: VisionTransformer) -> None:
    """Raise ValueError for an encoder whose start token moves each patch to the next token.

    >>> check_not_causal(keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3))
    """
    if getattr(encoder, "causal", False):  # an option of `PixelTransformer` alone
        raise ValueError("expected an encoder whose tokens attend to all patches; got causal=True")
