"""The Vision Transformer: image → patches → tokens → encoder → representation → logits."""

import keras
from absl import logging
from keras import ops

from keras_vit.layers import (
    AddPositionEmbs,
    AttentionPooling,
    ClassToken,
    GridToTokens,
    PackedPositionEmbs,
    PaddingBias,
    StartToken,
)
from keras_vit.layers.dense import Dense
from keras_vit.models.adapting import copy_with_weights
from keras_vit.models.classifying import classify
from keras_vit.models.config import (
    DEFAULTS,
    INFERENCE,
    OPTIONS,
    ViTConfig,
    is_dynamic,
    patched_size,
    prefix_tokens,
    refuse_unknown,
    stem_stride,
    with_options,
)
from keras_vit.models.configured import ConfiguredModel
from keras_vit.models.encoder import block_positions, encoder_block, norm_layer, patch_embedding
from keras_vit.models.features import feature_extractor
from keras_vit.models.resnet_stem import resnet_stem
from keras_vit.variants import parse_variant


@keras.saving.register_keras_serializable("keras_vit")
@with_options
class VisionTransformer(ConfiguredModel):
    """A Vision Transformer or ResNet+ViT hybrid as a functional Keras model.

    Args:
        {options}
        dtype: A dtype policy, such as "mixed_bfloat16"; the head always computes in float32.

    Input: `images`, float32 (batch, height, width, in_channels), as `model.preprocessing` makes them:
    in [-1, 1] by default. With `max_num_patches` it makes a dict of `patches`, float32 (batch,
    max_num_patches, patch height · patch width · in_channels), and `grids`, int32 (batch, 2), the rows and
    columns of each image's patches.
    Output: logits (batch, num_classes). A new head is zero, as in the paper.

    To copy a model, use `VisionTransformer.from_config(model.get_config())`:
    `keras.models.clone_model` returns a plain functional model without preprocessing and class names.

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

    def __init__(self, *args, dtype=None, **kwargs):
        identity = {key: kwargs.pop(key) for key in ("name", "trainable") if key in kwargs}
        refuse_unknown(kwargs)
        if missing := [name for name in [*OPTIONS][len(args) :] if name not in {**DEFAULTS, **kwargs}]:
            raise TypeError(
                f"missing {', '.join(missing)}, which VisionTransformer.from_variant sets by a name such as "
                f"'B/16'; got {', '.join([*[*OPTIONS][: len(args)], *kwargs]) or 'no options'}"
            )
        c = ViTConfig(*args, **kwargs)
        dtype = keras.dtype_policies.get(dtype)
        if dtype.quantization_mode:
            raise ValueError(
                f"dtype must be a float policy; got {dtype.name!r}: quantize() quantizes a model"
            )
        prefix = prefix_tokens(vars(c))
        num_prefix = sum(count for _, count, _ in prefix)

        stages = {}

        def stage(name, x, dtype=dtype.compute_dtype):  # Keras cannot clone an Identity with a policy object
            stages[name] = keras.layers.Identity(dtype=dtype, name=name)(x)
            return stages[name]

        bias = None
        if c.max_num_patches is None:
            x = inputs = keras.Input((*c.image_size, c.in_channels), name="images")  # (b, H, W, c)
        else:
            n, (height, width) = c.max_num_patches, c.patch_size
            patches = keras.Input((n, height * width * c.in_channels), name="patches")
            grids = keras.Input((2,), dtype="int32", name="grids")  # rows and columns of each image's patches
            inputs = {"patches": patches, "grids": grids}
            bias = PaddingBias(dtype=dtype, name="padding_bias")(patches, grids)  # (b, 1, 1, n)
            # One below the other, the patches are an image.
            column = (n * height, width, c.in_channels)
            x = keras.layers.Reshape(column, dtype=dtype, name="patch_column")(patches)  # (b, H, W, c)
        if c.resnet is not None:
            x = resnet_stem(x, c.resnet, c.resnet_width, c.resnet_form, dtype)  # (b, H/s, W/s, c')
        grid = patch_embedding(c, dtype)(x)  # (b, h, w, d)
        if c.patch_norm:
            grid = norm_layer(c, "patch_norm", dtype)(grid)
        x = GridToTokens(dtype=dtype, name="patch_tokens")(grid)  # (b, n, d)
        if c.causal:
            x = StartToken(dtype=dtype, name="start_token")(x)

        if c.num_layers is not None:
            if c.max_num_patches is None:
                add_positions = AddPositionEmbs(
                    c.position_embedding,
                    c.position_grid or grid.shape[1:3],
                    num_prefix if c.prefix_positions else 0,
                    interpolation=c.position_interpolation,
                    dtype=dtype,
                    name="position_embedding",
                )
                # With a position_grid the table is resized to the image's grid, which the layer has to know.
                image_grid = [] if c.position_grid is None else [grid]
            else:
                add_positions = PackedPositionEmbs(c.position_grid, dtype=dtype, name="position_embedding")
                image_grid = [grids]
            if not c.prefix_positions:
                x = add_positions(x, *image_grid)
            for name, count, initializer in prefix:
                x = ClassToken(count, initializer, dtype=dtype, name=name)(x)  # (b, p + n, d)
            if c.prefix_positions:
                x = add_positions(x, *image_grid)
            if c.position_embedding != "none":
                x = keras.layers.Dropout(c.dropout_rate, dtype=dtype, name="position_dropout")(x)

            if c.pre_norm:
                x = norm_layer(c, "pre_norm", dtype)(x)
            for i, positions in enumerate(block_positions(c, grid, dtype)):
                block, block_input = encoder_block(c, i, dtype), x
                x = block(x, positions, bias=bias)
        encoded = [x]  # (b, p + n, d)
        if c.pooling == "token" and c.num_layers:
            # The pooling reads the first tokens only; the last block computes the others for extractors.
            encoded.append(block(block_input, positions, num_outputs=1 + c.distillation))
        if c.num_layers is not None and c.final_norm and not c.norm_after_pooling:
            encoded = [*map(norm_layer(c, "encoder_norm", dtype), encoded)]
        encoded = [*map(keras.layers.Identity(dtype=dtype.compute_dtype, name="tokens"), encoded)]
        stages["tokens"] = encoded[0]
        x = tokens = encoded[-1]

        def token(i):  # tokens[:, i]; runtimes for GPUs do not compute a slice that drops an axis.
            return ops.reshape(tokens[:, i : i + 1], (-1, c.hidden_size))

        if c.pooling == "token":
            x = ops.mean(tokens[:, :2], axis=1) if c.distillation else token(0)
        elif c.pooling == "gap":
            x = ops.mean(tokens[:, num_prefix:], axis=1)
        elif c.pooling == "token_gap":
            x = ops.concatenate([token(0), ops.mean(tokens[:, num_prefix:], axis=1)], axis=-1)  # (b, 2d)
        elif c.pooling == "map":
            x = AttentionPooling(
                c.pooling_heads or c.num_heads,
                c.pooling_mlp_dim or c.mlp_dim,
                c.activation,
                c.norm_epsilon,
                c.qkv_bias,
                dtype=dtype,
                name="attention_pooling",
            )(tokens if c.pool_prefix else tokens[:, num_prefix:], bias=bias)
        x = stage("pooled", x)  # (b, d)
        if c.norm_after_pooling:
            x = norm_layer(c, "pooled_norm", dtype)(x)
        if c.representation_size is not None:
            x = Dense(
                c.representation_size,
                activation=c.representation_activation,
                kernel_initializer="lecun_normal",
                dtype=dtype,
                name="pre_logits",
            )(x)
        if c.unit_representation:
            x = keras.layers.UnitNormalization(dtype=dtype.variable_dtype, name="unit_representation")(x)
        x = stage("representation", x)  # (b, r)

        if c.num_classes is not None:
            # A head starts at zero, as in the paper, and computes in float32, which losses need.
            head = {"units": c.num_classes, "kernel_initializer": "zeros", "dtype": dtype.variable_dtype}
            if c.distillation:
                x = Dense(**head, name="head")(token(0))
                y = Dense(**head, name="head_distillation")(token(1))
                # Keras's TensorFlow backend would take y in x + y for a bias if the batch is empty.
                x = ops.mean(ops.stack([x, y], axis=1), axis=1)
            else:
                x = Dense(**head, name="head")(x)
            x = stage("logits", x, dtype.variable_dtype)  # (b, k)

        super().__init__(inputs=inputs, outputs=x, **identity)
        self.dtype_policy = dtype
        self._stages = stages  # Layers of stages that no output depends on are not in self.layers.
        # Keras's functional model would try to add or drop an axis of inputs of another rank.
        if c.max_num_patches is None:
            self.input_spec = keras.InputSpec(shape=inputs.shape)
        for name, value in vars(c).items():
            setattr(self, name, value)
        if self.ignored_border != (0, 0):
            logging.log_first_n(logging.WARNING, self._border_note(), 1)

    @classmethod
    def from_variant(cls, variant, image_size=224, num_classes=None, **options):
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
        sizes = {**parse_variant(variant), **options}
        return cls(image_size=image_size, num_classes=num_classes, **sizes)

    @property
    def num_prefix_tokens(self):
        """Number of tokens (class, distillation, registers) before the patch tokens."""
        return sum(count for _, count, _ in prefix_tokens(self._config()))

    @property
    def ignored_border(self):
        """(height, width) in pixels at the bottom and right of an image that fill no patch."""
        if is_dynamic(self.image_size):
            return 0, 0
        sides = zip(patched_size(self.image_size, self.resnet), self.patch_size)
        return tuple(side % patch * stem_stride(self.resnet) for side, patch in sides)

    def finished(self, arrays=None):
        """A copy of the model for inference, in float32 and without dropout, remat and frozen layers.

        Args:
            arrays: dict of the weights by path; None for the model's, with LoRA factors merged.

        Example:
            >>> VisionTransformer(32, 8, 24, 2, 48, 3, dropout_rate=0.1).finished().dropout_rate
            0.0
        """
        config = {**self._config(), **INFERENCE, "name": self.name}
        return copy_with_weights(self, config, arrays)

    def summary(self, *args, **kwargs):
        """As `keras.Model.summary`, with a line about pixels that the model ignores."""
        super().summary(*args, **kwargs)
        if self.ignored_border != (0, 0):
            kwargs.get("print_fn", print)(self._border_note())

    def _border_note(self):
        bottom, right = self.ignored_border
        return (
            f"{self.name} ignores {bottom} rows of pixels at the bottom and {right} columns at the right of "
            "an image, which fill no patch."
        )

    @property
    def is_classifier(self):
        """Whether the output is one row of class scores an image."""
        return self.num_classes is not None and self.pooling is not None

    @property
    def head_inputs(self):
        """The tensors that the head reads; empty without one, or with two heads."""
        return [self._stages["representation"]] if self.num_classes and not self.distillation else []

    feature_extractor = feature_extractor
    classify = classify

    def get_config(self):
        return {
            **self._config(),
            "preprocessing": self.preprocessing.get_config(),
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            **super().get_config(),
        }

    def _config(self):
        return {name: getattr(self, name) for name in OPTIONS}
