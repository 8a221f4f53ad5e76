"""Masked autoencoder (MAE): visible patches → encoder → light decoder → the pixels of the masked patches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from keras_vit.engine.step import weighted_mean
from keras_vit.layers import AddPositionEmbs, LayerNormalization, MaskTokens, standard_block
from keras_vit.layers.dense import Dense
from keras_vit.layers.hints import WHOLE, as_head, sharded
from keras_vit.models.encoder_model import Pretrainer, as_encoder, check_not_causal
from keras_vit.models.vit.geometry import is_dynamic, patch_pixels, prefix_tokens
from keras_vit.preprocessing.inputs import is_raw
from keras_vit.rules import boolean, integer, number, optional
from keras_vit.tasks.pretraining.masked_patch_predictor import patch_targets
from keras_vit.types import Images, Tensor

if TYPE_CHECKING:
    from keras_vit.models.vit.vision_transformer import VisionTransformer

_POSITIVE = integer(at_least=1)
_EPSILON = 1e-6  # of the variance of a patch


@keras.saving.register_keras_serializable("keras_vit")
class MaskedAutoencoder(Pretrainer):
    """Self-supervised training: predict the pixels of masked patches from the visible ones.

    The encoder computes the visible patches alone. The decoder gets their tokens and, in the places of the
    masked patches, a learned mask token; its positions are fixed. `fit` takes the batches of
    `data.random_order_batches`, without labels. The loss is the mean squared error over the masked patches.

    Args:
        encoder: A VisionTransformer without layers after its tokens: no `num_classes`,
            `representation_size`, "map" pooling or `norm_after_pooling`; with an image size, and without
            rotary and relative positions. Its layers are shared, so training trains it. Or its constructor
            arguments.
        decoder_hidden_size, decoder_num_layers, decoder_num_heads: Sizes of the decoder.
        decoder_mlp_dim: Size of the hidden layer of its MLPs; None for 4 times `decoder_hidden_size`.
        mask_fraction: The fraction of the patches that are masked, in (0, 1). At least one patch is visible,
            and one masked.
        normalize_targets: Whether the targets are the pixels of each patch minus their mean, divided by their
            standard deviation.
        dtype: A dtype policy for an encoder that is given by its arguments.
        name, trainable: As of any Keras model.

    Attributes:
        num_patches, num_visible: The number of patches of an image, and of the visible ones.

    Input: a dict of `images`, float32 (batch, height, width, channels) as for the encoder, and `order`,
    int32 (batch, patches), a permutation of the patches of each image; the first `num_visible` are visible.
    Output: float32 (batch, patches, patch height · patch width · channels), predictions for all patches in
    row order. The pixels of a patch are ordered by row, column and channel.

    Raises:
        ValueError: for a size that is not positive, a fraction out of range, an encoder with layers after its
            tokens or without a fixed number of patches, fewer than two patches, or a decoder whose heads do
            not divide its hidden size.

    Example:
        >>> encoder = keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3)
        >>> mae = MaskedAutoencoder(encoder, 16, decoder_num_layers=1, decoder_num_heads=2)
        >>> mae.num_visible
        4
        >>> mae({"images": np.zeros((1, 32, 32, 3)), "order": np.arange(16)[np.newaxis]}).shape
        TensorShape([1, 16, 192])
        >>> mae.to_vision_transformer(pooling="gap", norm_after_pooling=True, num_classes=10).num_classes
        10

    Source: He et al. 2022 (MAE, arXiv 2111.06377), section 3; `models_mae.py` of facebookresearch/mae.
    """

    rules = {
        **dict.fromkeys(("decoder_hidden_size", "decoder_num_layers", "decoder_num_heads"), _POSITIVE),
        "decoder_mlp_dim": optional(_POSITIVE),
        "mask_fraction": number(above=0, below=1),
        "normalize_targets": boolean,
    }

    def __init__(
        self,
        encoder: VisionTransformer | Mapping[str, Any],
        decoder_hidden_size: int = 512,
        decoder_num_layers: int = 8,
        decoder_num_heads: int = 16,
        decoder_mlp_dim: int | None = None,
        mask_fraction: float = 0.75,
        normalize_targets: bool = True,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
        trainable: bool = True,
    ) -> None:
        self.store_arguments(locals())
        if decoder_hidden_size % decoder_num_heads:
            raise ValueError(
                f"expected a decoder_num_heads that divides decoder_hidden_size {decoder_hidden_size}; got "
                f"{decoder_num_heads}"
            )
        encoder = as_encoder(encoder, dtype)
        _check(encoder)
        policy, prefix = encoder.dtype_policy, encoder.num_prefix_tokens
        embed = keras.Model(encoder.input, _with_positions(encoder), name="embed")

        images = keras.Input(encoder.input.shape[1:], name="images")  # (b, H, W, c)
        x = embed(images)  # (b, p + n, d)
        num_patches = x.shape[1] - prefix
        if num_patches < 2:
            raise ValueError(f"expected an encoder of two patches or more; got {num_patches}")
        num_visible = min(max(int(num_patches * (1 - mask_fraction)), 1), num_patches - 1)
        order = keras.Input((num_patches,), name="order", dtype="int32")  # (b, n)
        visible = ops.expand_dims(order[:, :num_visible], -1)
        x = ops.concatenate([x[:, :prefix], ops.take_along_axis(x[:, prefix:], visible, axis=1)], axis=1)
        for layer in _after_positions(encoder):
            x = layer(x)  # (b, p + v, d)

        decoder_embedding = Dense(decoder_hidden_size, dtype=policy, name="decoder_embedding")
        x = sharded(decoder_embedding, WHOLE)(x)  # (b, p + v, e)
        rank = ops.argsort(order, axis=1)
        sources = ops.where(rank < num_visible, rank, -1)
        mask = keras.initializers.RandomNormal(stddev=0.02)
        patches = MaskTokens(mask, dtype=policy, name="mask_token")(x[:, prefix:], sources)  # (b, n, e)
        x = ops.concatenate([x[:, :prefix], patches], axis=1)
        grid = encoder.get_layer("patch_embedding").output.shape[1:3]
        x = AddPositionEmbs(
            "sincos2d", grid, prefix, endpoint=False, dtype=policy, name="decoder_position_embedding"
        )(x)
        for i in range(decoder_num_layers):
            x = standard_block(
                decoder_num_heads,
                decoder_mlp_dim or 4 * decoder_hidden_size,
                encoder.activation,
                encoder.norm_epsilon,
                encoder.qkv_bias,
                dtype=policy,
                name=f"decoder_block_{i}",
            )(x)
        x = LayerNormalization(encoder.norm_epsilon, dtype=policy, name="decoder_norm")(x)[:, prefix:]
        height, width = patch_pixels(encoder)
        # Losses need float32 under mixed precision.
        pixels = height * width * encoder.in_channels
        x = as_head(Dense(pixels, dtype=policy.variable_dtype, name="prediction"))(x)  # (b, n, k)

        super().__init__({"images": images, "order": order}, x, name=name, trainable=trainable)
        self.dtype_policy = policy
        self.encoder = encoder
        self.num_patches, self.num_visible = num_patches, num_visible

    @staticmethod
    def min_own_parameters(config: dict[str, Any]) -> int:
        size = config["decoder_hidden_size"]
        return config["decoder_num_layers"] * size * (4 * size + 2 * (config["decoder_mlp_dim"] or 4 * size))

    def own_loss(self, x: Any, y_pred: Tensor, sample_weight: Tensor) -> Tensor:
        errors = ops.mean(ops.square(y_pred - self.patch_targets(x["images"])), axis=-1)  # (b, n)
        is_masked = ops.cast(ops.argsort(x["order"], axis=1) >= self.num_visible, errors.dtype)
        losses = ops.sum(is_masked * errors, axis=1) / (self.num_patches - self.num_visible)  # (b,)
        return weighted_mean(losses, sample_weight)

    def patch_targets(self, images: Tensor) -> Tensor:
        """The pixels that are predicted, float32 (batch, patches, pixels · channels).

        Args:
            images: float (batch, height, width, channels), model input.
        """
        targets = self._patches(images)
        if not self.normalize_targets:
            return targets
        mean, std = _statistics(targets)
        return (targets - mean) / std

    def reconstruct(self, images: Images, seed: int = 0) -> dict[str, np.ndarray]:
        """Predict the masked patches of images, to look at.

        Args:
            images: What `model.encoder.preprocessing` takes, or what it returns: floats (batch, height,
                width, channels).
            seed: An int, of the masked patches.

        Returns:
            dict of float32 arrays (batch, height, width, channels) with colors in [0, 1]: the images as
            "image"; with gray masked patches as "visible patches"; with predicted ones as "prediction".
            Normalized predictions get the mean and the standard deviation of their patch.

        Example:
            >>> encoder = keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3)
            >>> mae = MaskedAutoencoder(encoder, 16, decoder_num_layers=1, decoder_num_heads=2)
            >>> {name: x.shape for name, x in mae.reconstruct(np.zeros((1, 32, 32, 3))).items()}
            {'image': (1, 32, 32, 3), 'visible patches': (1, 32, 32, 3), 'prediction': (1, 32, 32, 3)}
        """
        images = self.encoder.preprocessing(images) if is_raw(images) else np.asarray(images, "float32")
        noise = np.random.default_rng(seed).random((len(images), self.num_patches))
        order = np.argsort(noise, axis=1).astype("int32")
        predicted = self.predict_on_batch({"images": images, "order": order})
        patches = ops.convert_to_numpy(self._patches(images))
        if self.normalize_targets:
            mean, std = map(ops.convert_to_numpy, _statistics(patches))
            predicted = predicted * std + mean
        is_masked = (np.argsort(order, axis=1) >= self.num_visible)[..., np.newaxis]
        is_masked = self._images_of(np.broadcast_to(is_masked, patches.shape), images.shape)[..., :1]
        colors = self.encoder.preprocessing.colors
        image = colors(images)
        return {
            "image": image,
            "visible patches": np.where(is_masked, np.float32(0.5), image),
            "prediction": np.where(is_masked, colors(self._images_of(predicted, images.shape)), image),
        }

    def _patches(self, images):
        return patch_targets(images, patch_pixels(self.encoder), "pixels", self.encoder.preprocessing)

    def _images_of(self, patches, shape):
        """Images of a shape from their patches (batch, patches, pixels · channels)."""
        batch, rows, columns, channels = shape
        height, width = patch_pixels(self.encoder)
        x = patches.reshape(batch, rows // height, columns // width, height, width, channels)
        return x.transpose(0, 1, 3, 2, 4, 5).reshape(shape)


def _check(encoder):
    if is_dynamic(encoder.image_size):
        raise ValueError("expected an encoder for one image size; got image_size=(None, None)")
    check_not_causal(encoder)
    for name in ("rotary", "relative_positions"):
        if getattr(encoder, name):
            raise ValueError(
                f"expected an encoder whose positions are added to its tokens; got {name}="
                f"{getattr(encoder, name)!r}"
            )


def _with_positions(encoder):
    """The encoder's tokens before its first block: (batch, prefix + patches, channels)."""
    prefix = [name for name, _, _ in prefix_tokens(encoder._config())]
    last = prefix[-1] if prefix and not encoder.prefix_positions else "position_embedding"
    return encoder.get_layer(last).output


def _after_positions(encoder):
    """The encoder's layers from there to its tokens, in order."""
    layers = {layer.name: layer for layer in encoder.layers}
    blocks = [f"encoder_block_{i}" for i in range(encoder.num_layers)]
    names = ("position_dropout", "pre_norm", *blocks, "encoder_norm", "tokens")
    return [layers[name] for name in names if name in layers]


def _statistics(patches):
    """The mean of each patch and its standard deviation, the square root of the variance with n - 1."""
    count = patches.shape[-1]
    variance = ops.var(patches, axis=-1, keepdims=True) * (count / max(count - 1, 1))
    return ops.mean(patches, axis=-1, keepdims=True), ops.sqrt(variance + _EPSILON)
