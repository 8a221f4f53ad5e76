"""Masked patch prediction: corrupted patches → tokens → the content of the patches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_vit.layers.dense import EinsumDense
from keras_vit.layers.encoder_block import number_stack
from keras_vit.layers.hints import as_head
from keras_vit.layers.mask_tokens import MaskTokens
from keras_vit.models.encoder_model import Pretrainer, as_encoder, check_not_causal
from keras_vit.models.vit.geometry import patch_pixels
from keras_vit.preprocessing.tensors import backend_of
from keras_vit.rules import check_divisible, one_of, pair
from keras_vit.types import Tensor

if TYPE_CHECKING:
    from keras_vit.models.vit.vision_transformer import VisionTransformer

COLORS_PER_SIDE = {"mean_color": 1, "downsized": 4}  # of a patch
TARGETS = (*COLORS_PER_SIDE, "pixels")
LEVELS = 8  # per channel of a color: 3 bits


@keras.saving.register_keras_serializable("keras_vit")
class MaskedPatchPredictor(Pretrainer):
    """Self-supervised training: predict the content of an image's corrupted patches.

    Before the encoder some patch vectors are replaced by a learned mask token or by vectors of other patches
    (`data.masking` samples which); the token of each patch then predicts the patch.

    Args:
        encoder: A VisionTransformer without layers after its tokens: no `num_classes`,
            `representation_size`, "map" pooling or `norm_after_pooling`. Its layers are shared, so
            training trains it. Or its constructor arguments.
        target: What is predicted for each patch: "mean_color" (one of 512 colors, 3 bits per channel),
            "downsized" (4×4 mean colors) or "pixels" (the patch as the model gets it).
        dtype: A dtype policy for an encoder that is given by its arguments.
        name, trainable: As of any Keras model.

    Input: a dict of `images`, float32 (batch, height, width, channels) as for the encoder, and
    `sources`, int32 (batch, patches), as in `MaskTokens`.
    Output: float32 (batch, patches, 512) logits for "mean_color", (batch, patches, 16, 512) for
    "downsized", (batch, patches, patch height · patch width · channels) for "pixels". The last layer,
    `prediction`, starts at zero.

    Raises:
        ValueError: for an unknown target, an encoder with layers after its tokens or without a
            Transformer, or image sides that the stem rounds up.

    Example:
        >>> predictor = MaskedPatchPredictor(keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3))
        >>> sources = np.array([[-1] * 8 + [*range(8, 16)]])  # the upper half is masked
        >>> predictor({"images": np.zeros((1, 32, 32, 3)), "sources": sources}).shape
        TensorShape([1, 16, 512])
        >>> predictor.to_vision_transformer(num_classes=10).num_classes
        10

    Source: Dosovitskiy et al. 2021, appendix B.1.2.
    """

    rules = {"target": one_of(TARGETS)}

    def __init__(
        self,
        encoder: VisionTransformer | Mapping[str, Any],
        target: str = "mean_color",
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
        trainable: bool = True,
    ) -> None:
        self.store_arguments(locals())
        encoder = as_encoder(encoder, dtype)
        check_not_causal(encoder)
        start = encoder.get_layer("patch_embedding").output, encoder.get_layer("patch_tokens").output
        embed = keras.Model(encoder.input, start, name="embed")
        encode = keras.Model(start, encoder.feature_extractor("tokens").output["tokens"], name="encode")
        policy = encoder.dtype_policy

        images = keras.Input(encoder.input.shape[1:], name="images")  # (b, H, W, c)
        grid, patches = embed(images)  # (b, h, w, d), (b, n, d)
        sources = keras.Input(patches.shape[1:2], name="sources", dtype="int32")  # (b, n)
        mask_token = MaskTokens(dtype=policy, name="mask_token")
        x = mask_token(patches, sources)
        number_stack([mask_token, *encoder.layers])
        x = encode([grid, x])[:, encoder.num_prefix_tokens :]  # (b, n, d)
        shape = _predictions(target, encoder)
        axes = "xy"[: len(shape)]
        prediction = EinsumDense(
            f"bnd,d{axes}->bn{axes}",
            (patches.shape[1], *shape),
            bias_axes=axes,
            kernel_initializer="zeros",
            dtype=policy.variable_dtype,  # losses need float32 under mixed precision
            name="prediction",
        )
        x = as_head(prediction)(x)  # (b, n, k), (b, n, 16, k) or (b, n, p)

        super().__init__({"images": images, "sources": sources}, x, name=name, trainable=trainable)
        self.dtype_policy = policy
        self.encoder = encoder

    def patch_targets(self, images: Tensor) -> Tensor:
        """The targets for these images: `patch_targets` with this model's arguments.

        >>> predictor = MaskedPatchPredictor(keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3))
        >>> predictor.patch_targets(np.full((1, 32, 32, 3), -1.0))[0, :5].numpy().tolist()
        [0, 0, 0, 0, 0]
        """
        return patch_targets(images, patch_pixels(self.encoder), self.target, self.encoder.preprocessing)


def patch_targets(images, patch_size, target, preprocessing):
    """The prediction targets of the patches of images.

    Args:
        images: float (batch, height, width, channels) as model input.
        patch_size: Side of a patch in pixels, or (height, width). Both must divide the image.
        target: "mean_color", "downsized" or "pixels", as in `MaskedPatchPredictor`.
        preprocessing: The `Preprocessing` that made the images.

    Returns:
        Tensor with the patches in row order. Colors are int32 (batch, patches) for "mean_color" and
        (batch, patches, 16) for "downsized": the channels of a pixel in [0, 1], quantized to 8 levels, are
        the octal digits of a color, the first channel being the highest. "pixels" are float32
        (batch, patches, patch height · patch width · channels).

    Raises:
        ValueError: for an unknown target, or a patch that does not divide the images.

    Example:
        >>> white = np.ones((1, 32, 32, 3), "float32")
        >>> patch_targets(white, 16, "mean_color", Preprocessing(32)).numpy().tolist()
        [[511, 511, 511, 511]]

    Source: Dosovitskiy et al. 2021, appendix B.1.2.
    """
    one_of(TARGETS).check("target", target)
    height, width = pair(patch_size, "patch_size")
    backend = backend_of(images)  # In tf.data it is TensorFlow, whatever Keras runs on.
    numpy = backend.numpy
    check_divisible(images.shape[1:3], (height, width))
    batch, *sides, channels = backend.shape(images)
    rows, columns = sides[0] // height, sides[1] // width
    x = numpy.reshape(backend.cast(images, "float32"), (batch, rows, height, columns, width, channels))
    x = numpy.reshape(
        numpy.transpose(x, (0, 1, 3, 2, 4, 5)), (batch, rows * columns, height, width, channels)
    )
    if target == "pixels":
        return numpy.reshape(x, (batch, rows * columns, height * width * channels))
    side = COLORS_PER_SIDE[target]
    x = numpy.einsum("ih,jw,bnhwc->bnijc", _averaging(side, height), _averaging(side, width), x)
    std, mean = (
        backend.convert_to_tensor(np.asarray(values, "float32"))
        for values in (preprocessing.std, preprocessing.mean)
    )
    x = x * std + mean
    levels = numpy.clip(backend.cast(numpy.floor(x * LEVELS), "int32"), 0, LEVELS - 1)
    factors = [LEVELS**digit for digit in reversed(range(channels))]
    factors = backend.convert_to_tensor(np.asarray(factors, "int32"))
    colors = numpy.sum(levels * factors, axis=-1)  # (b, n, i, j)
    return numpy.reshape(colors, (batch, rows * columns, *[side * side] * (side > 1)))


def _averaging(parts, pixels):
    """The (parts, pixels) matrix of the means over equal parts, whose edges may split pixels."""
    edges = np.linspace(0, pixels, parts + 1)[:, np.newaxis]
    start, pixel = edges[:-1], np.arange(pixels)
    overlap = np.minimum(edges[1:], pixel + 1) - np.maximum(start, pixel)
    return (np.maximum(overlap, 0) * parts / pixels).astype("float32")


def _predictions(target, encoder):
    """The shape of the predictions for one patch."""
    channels = encoder.in_channels
    if target == "pixels":
        height, width = patch_pixels(encoder)
        return (height * width * channels,)
    side = COLORS_PER_SIDE[target]
    return (*[side * side] * (side > 1), LEVELS**channels)
