"""The Vision Transformer: image → patches → tokens → encoder → representation → logits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

import keras
from absl import logging

from keras_vit.engine.adapting import copy_with_weights
from keras_vit.layers import ClassToken, EncoderBlock, PatchDropout
from keras_vit.layers.encoder_block import number_stack
from keras_vit.layers.hints import WHOLE, sharded
from keras_vit.models.classifying import classify
from keras_vit.models.configured import ConfiguredModel
from keras_vit.models.features import feature_extractor
from keras_vit.models.vit import front_end
from keras_vit.models.vit.encoder import block_positions, encoder_block, norm_layer
from keras_vit.models.vit.geometry import is_dynamic, patched_size, prefix_tokens, stem_stride
from keras_vit.models.vit.pooling import logits, pooled, representation
from keras_vit.models.vit.resnet_stem import resnet_stem
from keras_vit.models.vit.schema import (
    DEFAULTS,
    INFERENCE,
    ViTConfig,
    class_and_options,
    options_of,
    refuse_unknown,
    with_options,
)
from keras_vit.types import Size, Tensor
from keras_vit.variants import parse_variant

if TYPE_CHECKING:
    import numpy as np

    from keras_vit.models.vit.option_types import VariantOptions, ViTAttributes, ViTOptions
else:
    ViTAttributes = object


@keras.saving.register_keras_serializable("keras_vit")
@with_options
class VisionTransformer(ConfiguredModel, ViTAttributes):
    """A Vision Transformer or ResNet+ViT hybrid as a functional Keras model.

    Args:
        {options}
        dtype: A dtype policy, such as "mixed_bfloat16"; the head always computes in float32.

    Input: `images`, float32 (batch, height, width, in_channels), as `model.preprocessing` makes them:
    in [-1, 1] by default. Models with the same blocks but another input are `PackedVisionTransformer`, for
    images of any aspect ratio in one batch, and `PixelTransformer`.
    Output: logits (batch, num_classes). A new head is zero, as in the paper.

    To copy a model, use `VisionTransformer.from_config(model.get_config())`:
    `keras.models.clone_model` returns a plain functional model without preprocessing and class names. Of
    options that only another class has, such as `max_num_patches`, `from_config` makes a model of that class.

    Raises:
        ValueError: for an unknown option, a value that breaks its option's rule, or options that contradict
            each other; the message says what was expected and what was given.

    Example:
        >>> model = VisionTransformer.from_variant("Ti/16", image_size=32, num_classes=10)
        >>> model(np.zeros((1, 32, 32, 3))).shape
        TensorShape([1, 10])
        >>> features = model.feature_extractor(["encoder_block_3", "representation"])
        >>> features(np.zeros((1, 32, 32, 3)))["encoder_block_3"].shape
        TensorShape([1, 5, 192])

    Source: Dosovitskiy et al. 2021 (arXiv 2010.11929), section 3; `vit_jax/models_vit.py`.
    """

    kind = "classifier"
    exported_stages = ("representation",)

    # What the input decides: a subclass with another one has its own schema and functions.
    schema: type[ViTConfig] = ViTConfig
    _model_inputs: Callable[..., tuple[Any, Tensor, Tensor | None]] = staticmethod(front_end.image_input)
    _patch_embedding: Callable[..., keras.Layer] = staticmethod(front_end.patch_embedding)
    _patch_tokens: Callable[..., Tensor] = staticmethod(front_end.patch_tokens)
    _position_embedding: Callable[..., tuple[keras.Layer, list[Tensor]]] = staticmethod(
        front_end.position_embedding
    )
    _encoder_block: Callable[..., EncoderBlock] = staticmethod(encoder_block)

    def __init__(
        self, *args: Any, dtype: str | keras.DTypePolicy | None = None, **kwargs: Unpack[ViTOptions]
    ) -> None:
        options: dict[str, Any] = {**kwargs}
        identity = {key: options.pop(key) for key in ("name", "trainable") if key in options}
        refuse_unknown(options, type(self))
        _refuse_missing([*options_of(self.schema)], args, options)
        c = self.schema(*args, **options)
        policy = _float_policy(dtype)
        # Each call draws the seeds of its initializers, so that one more would change all weights after it.
        prefix = prefix_tokens(vars(c))
        num_prefix = sum(count for _, count, _ in prefix)
        stages: dict[str, Tensor] = {}

        def stage(name: str, x: Tensor, dtype: str = policy.compute_dtype) -> Tensor:
            # Keras cannot clone an Identity with a policy object.
            stages[name] = keras.layers.Identity(dtype=dtype, name=name)(x)
            return stages[name]

        # image → patches
        inputs, x, bias = self._model_inputs(c, policy)  # (b, H, W, c)
        if c.resnet is not None:
            x = resnet_stem(x, c.resnet, c.resnet_width, c.resnet_form, policy)  # (b, H/s, W/s, c')
        grid = self._patch_embedding(c, policy)(x)  # (b, h, w, d)
        if c.patch_norm:
            grid = norm_layer(c, "patch_norm", policy)(grid)
        # patches → tokens
        x = self._patch_tokens(c, grid, policy)  # (b, n, d)
        if c.num_layers is not None:
            in_table = num_prefix if c.prefix_positions else 0
            add_positions, grids = self._position_embedding(c, inputs, grid, in_table, policy)
            if not c.prefix_positions:
                x = add_positions(x, *grids)
            for name, count, initializer in prefix:
                x = ClassToken(count, initializer, dtype=policy, name=name)(x)  # (b, p + n, d)
            if c.prefix_positions:
                x = add_positions(x, *grids)
            if c.position_embedding != "none":
                x = keras.layers.Dropout(c.dropout_rate, dtype=policy, name="position_dropout")(x)
            # tokens → encoder
            if c.pre_norm:
                x = norm_layer(c, "pre_norm", policy)(x)
            positions_of_blocks = block_positions(c, grid, policy)  # type: ignore[arg-type]
            if c.patch_dropout_rate:
                drop = PatchDropout(c.patch_dropout_rate, num_prefix, dtype=policy, name="patch_dropout")
                if c.rotary:
                    x, positions_of_blocks = drop(x, positions_of_blocks)
                else:
                    x = drop(x)
            for i, positions in enumerate(positions_of_blocks):
                block, block_input = self._encoder_block(c, i, policy), x
                x = block(x, positions, bias=bias)
        encoded = [x]  # (b, p + n, d)
        if c.pooling == "token" and c.num_layers:
            # The pooling reads the first tokens only; the last block computes the others for extractors.
            encoded.append(block(block_input, positions, num_outputs=1 + c.distillation))
        if c.num_layers is not None and c.final_norm and not c.norm_after_pooling:
            encoded = [*map(norm_layer(c, "encoder_norm", policy), encoded)]
        identity_of_tokens = keras.layers.Identity(dtype=policy.compute_dtype, name="tokens")
        encoded = [*map(sharded(identity_of_tokens, WHOLE), encoded)]
        stages["tokens"], tokens = encoded[0], encoded[-1]
        # encoder → representation
        x = stage("pooled", pooled(c, tokens, num_prefix, bias, policy))  # (b, d)
        if c.norm_after_pooling:
            x = norm_layer(c, "pooled_norm", policy)(x)
        x = stage("representation", representation(c, x, policy))  # (b, r)
        # representation → logits
        if c.num_classes is not None:
            x = stage("logits", logits(c, x, tokens, policy), policy.variable_dtype)  # (b, k)

        super().__init__(inputs=inputs, outputs=x, **identity)
        number_stack(self.layers)
        self.dtype_policy = policy
        self._stages = stages  # Layers of stages that no output depends on are not in self.layers.
        # Keras's functional model would try to add or drop an axis of inputs of another rank.
        if not isinstance(inputs, dict):
            self.input_spec = keras.InputSpec(shape=inputs.shape)
        for name, value in vars(c).items():
            setattr(self, name, value)
        if self.ignored_border != (0, 0):
            _warn(_border_note(self.ignored_border))

    @classmethod
    def from_variant(
        cls,
        variant: str,
        image_size: Size = 224,
        num_classes: int | None = None,
        **options: Unpack[VariantOptions],
    ) -> Self:
        """A model of a published size with random weights.

        Args:
            variant: A name such as "B/16", "S/8" or "R50+L/32" (see `keras_vit.variants`).
            image_size, num_classes, **options: As for the class; they win over the variant's.

        Raises:
            ValueError: for an unknown variant.

        Example:
            >>> VisionTransformer.from_variant("Ti/8", image_size=32, num_classes=10).patch_size
            (8, 8)
        """
        sizes: dict[str, Any] = {**parse_variant(variant), **options}
        return cls(image_size=image_size, num_classes=num_classes, **sizes)

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> VisionTransformer:
        if cls is VisionTransformer:
            owner, config = class_and_options(config, cls)
            if owner is not cls:
                return owner.from_config(config, custom_objects)
        return super().from_config(config, custom_objects)

    def check_one_size(self, use: str) -> None:
        """Raise ValueError if the model's input is not of images of one size, which a use of it needs.

        Args:
            use: The subject of the message.
        """

    @property
    def num_prefix_tokens(self) -> int:
        """Number of tokens (class, distillation, registers) before the patch tokens."""
        return sum(count for _, count, _ in prefix_tokens(self._config()))

    @property
    def ignored_border(self) -> tuple[int, int]:
        """(height, width) in pixels at the bottom and right of an image that fill no patch."""
        if is_dynamic(self.image_size):
            return 0, 0
        height, width = patched_size(self.image_size, self.resnet)
        stride = stem_stride(self.resnet)
        return height % self.patch_size[0] * stride, width % self.patch_size[1] * stride

    def finished(self, arrays: dict[str, np.ndarray] | None = None) -> VisionTransformer:
        """A copy of the model for inference, in float32 and without dropout, remat and frozen layers.

        Args:
            arrays: dict of the weights by path; None for the model's, with LoRA factors merged.

        Example:
            >>> VisionTransformer(32, 8, 24, 2, 48, 3, dropout_rate=0.1).finished().dropout_rate
            0.0
        """
        config = {**self._config(), **INFERENCE, "name": self.name}
        return copy_with_weights(self, config, arrays)

    def summary(self, *args: Any, **kwargs: Any) -> None:
        """As `keras.Model.summary`, with a line about pixels that the model ignores."""
        super().summary(*args, **kwargs)
        if self.ignored_border != (0, 0):
            kwargs.get("print_fn", print)(_border_note(self.ignored_border))

    @property
    def is_classifier(self) -> bool:
        """Whether the output is one row of class scores an image."""
        return self.num_classes is not None and self.pooling is not None

    @property
    def head_inputs(self) -> list[Tensor]:  # type: ignore[override]  # an attribute of other models
        """The tensors that the head reads; empty without one, or with two heads."""
        return [self._stages["representation"]] if self.num_classes and not self.distillation else []

    feature_extractor = feature_extractor
    classify = classify

    def get_config(self) -> dict[str, Any]:
        return {
            **self._config(),
            "preprocessing": self.preprocessing.get_config(),
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            **super().get_config(),
        }

    def _config(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in options_of(self.schema)}


def _refuse_missing(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise a TypeError for options without a default that are not given."""
    if missing := [name for name in names[len(args) :] if name not in {**DEFAULTS, **kwargs}]:
        raise TypeError(
            f"missing {', '.join(missing)}, which VisionTransformer.from_variant sets by a name such as "
            f"'B/16'; got {', '.join([*names[: len(args)], *kwargs]) or 'no options'}"
        )


def _float_policy(dtype: str | keras.DTypePolicy | None) -> keras.DTypePolicy:
    """The policy of a dtype, a name or a policy."""
    policy = keras.dtype_policies.get(dtype)
    if policy.quantization_mode:
        raise ValueError(f"dtype must be a float policy; got {policy.name!r}: quantize() quantizes a model")
    return policy


def _border_note(border: tuple[int, int]) -> str:
    bottom, right = border
    return (
        f"This model ignores {bottom} rows of pixels at the bottom and {right} columns at the right of an "
        "image, which fill no patch."
    )


@functools.cache  # The copies of a model, as for exports, say nothing new.
def _warn(note: str) -> None:
    logging.warning(note)
