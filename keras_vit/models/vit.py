"""The Vision Transformer: image → patches → tokens → encoder → representation → logits."""

import inspect
import types

import keras
from keras import ops

from keras_vit.layers import (
    AddPositionEmbs,
    AttentionPooling,
    ClassToken,
    EncoderBlock,
    GridToTokens,
    LayerNormalization,
    PatchEmbedding,
)
from keras_vit.layers.dense import STATE, Dense, restoring, state_config
from keras_vit.models.arguments import prefix_tokens, resolve_arguments
from keras_vit.models.classifying import classify
from keras_vit.models.distributed import DistributedModel
from keras_vit.models.features import feature_extractor
from keras_vit.models.resnet_stem import resnet_stem
from keras_vit.variants import parse_variant


@keras.saving.register_keras_serializable("keras_vit")
class VisionTransformer(DistributedModel):
    """A Vision Transformer or ResNet+ViT hybrid as a functional Keras model.

    Args:
        image_size: (height, width) in pixels, or one int. (None, None) accepts any size that the
            patch divides: the stored position grid is resized at each call.
        patch_size: Side of a patch in pixels (of the stem's output for a hybrid), or (height, width).
        hidden_size, num_layers, mlp_dim, num_heads: The paper's table 1. `num_layers=None` leaves
            out the Transformer: the embedded grid is pooled as it is (a BiT-like ResNet).
        num_classes: Size of the output; None for no head, so that the output is the representation.
        pooling: "token" (the class token), "gap" (mean over the patches' tokens), "map" (a learned
            probe attends to all tokens) or None (every token goes through the head).
        representation_size: Size of a tanh layer `pre_logits` before the head; None for none.
        resnet: Bottleneck units per stage of the ResNet stem, such as (3, 4, 9); () for its root
            block alone; None for no stem.
        resnet_width: Channels of the stem's root block.
        resnet_form: "vit_jax" or "timm": whose epsilons the stem computes with.
        position_embedding: "learned", "sincos2d" or "none".
        position_grid: (rows, columns) of the learned table, resized at each call where it is not the
            image's. By default the grid of `image_size`, or that of a 224-pixel image if the size is
            free.
        prefix_positions: Whether the class, distillation and register tokens have rows of their own
            in the table (the paper) or join after the positions are added (`big_vision`, DeiT III).
        activation: "gelu_tanh" (official), "gelu_erf" (timm, Hugging Face) or "quick_gelu" (CLIP).
        norm_epsilon: Added to the variance in every layer norm.
        qkv_bias: Whether query, key and value have biases.
        class_token: Whether there is one; None: if `pooling` is "token".
        num_registers: Number of register tokens.
        distillation: Whether there are DeiT's distillation token and second head; the logits are
            the mean of both.
        layer_scale: Start value of a learned factor per channel on each residual branch, or None.
        pre_norm: Whether a layer norm `pre_norm` stands before the first block (CLIP); the patch
            embedding has no bias then.
        norm_after_pooling: Whether the last norm follows the pooling (`pooled_norm`) instead of
            preceding it (`encoder_norm`).
        in_channels: Channels of the image.
        preprocessing: How images become input, a `Preprocessing`; by default the official one.
        class_names: One name per class, or None.
        task: What the outputs mean: "single_label", "multi_label" or "regression"; None if unknown.
        split_seed: Seed by which the data set that it was trained on was split; None if unknown.
        dropout_rate, attention_dropout_rate: As in `EncoderBlock`; the first also after the positions.
        stochastic_depth_rate: Of the last block; the others' grow linearly up to it from 0.
        dtype: A dtype policy, such as "mixed_bfloat16"; the head computes in float32 all the same.

    Input: `images`, float32 (batch, height, width, in_channels), as `model.preprocessing` makes them:
    in [-1, 1] by default.
    Output: logits (batch, num_classes). A new head is zero, as the authors start it.

    To copy a model, use `VisionTransformer.from_config(model.get_config())`:
    `keras.models.clone_model` makes a plain functional model, without preprocessing and class names.

    Raises:
        ValueError: for unknown arguments, ones that contradict each other, or ones that no model
            exists for; the message states what was received and the rule.

    Example:
        >>> model = VisionTransformer.from_variant("Ti/16", image_size=32, num_classes=10)
        >>> model(np.zeros((1, 32, 32, 3))).shape
        TensorShape([1, 10])
        >>> features = model.feature_extractor(["encoder_block_3", "representation"])
        >>> features(np.zeros((1, 32, 32, 3)))["encoder_block_3"].shape
        TensorShape([1, 5, 192])

    Source: Dosovitskiy et al. 2021 (arXiv 2010.11929), section 3; `vit_jax/models_vit.py`.
    """

    def __init__(
        self,
        image_size,
        patch_size,
        hidden_size,
        num_layers,
        mlp_dim,
        num_heads,
        num_classes=None,
        pooling="token",
        representation_size=None,
        resnet=None,
        resnet_width=64,
        resnet_form="vit_jax",
        position_embedding="learned",
        position_grid=None,
        prefix_positions=True,
        activation="gelu_tanh",
        norm_epsilon=1e-6,
        qkv_bias=True,
        class_token=None,
        num_registers=0,
        distillation=False,
        layer_scale=None,
        pre_norm=False,
        norm_after_pooling=False,
        in_channels=3,
        preprocessing=None,
        class_names=None,
        task=None,
        split_seed=None,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        stochastic_depth_rate=0.0,
        dtype=None,
        **kwargs,
    ):
        given = {name: value for name, value in dict(locals()).items() if name in ARGUMENTS}
        if unknown := kwargs.keys() - {"name", "trainable"}:
            raise ValueError(f"VisionTransformer has no {', '.join(sorted(unknown))}; it takes {ARGUMENTS}")
        config = resolve_arguments(**given)
        c = types.SimpleNamespace(**config)
        dtype = keras.dtype_policies.get(dtype)
        if dtype.quantization_mode:
            raise ValueError(
                f"dtype must be a float policy; got {dtype.name!r}: quantize() quantizes a model"
            )
        prefix = prefix_tokens(config)
        num_prefix = sum(count for _, count, _ in prefix)
        norm = {"epsilon": norm_epsilon, "dtype": dtype}
        block = {
            "num_heads": num_heads,
            "mlp_dim": mlp_dim,
            "activation": activation,
            "norm_epsilon": norm_epsilon,
            "qkv_bias": qkv_bias,
            "dtype": dtype,
        }

        stages = {}

        def stage(name, x, dtype=dtype.compute_dtype):  # Keras cannot clone an Identity with a policy object
            stages[name] = keras.layers.Identity(dtype=dtype, name=name)(x)
            return stages[name]

        images = keras.Input((*c.image_size, in_channels), name="images")  # (b, H, W, c)
        x = images
        if resnet is not None:
            x = resnet_stem(x, c.resnet, resnet_width, resnet_form, dtype)  # (b, H/s, W/s, c')
        grid = PatchEmbedding(
            hidden_size, c.patch_size, use_bias=not pre_norm, dtype=dtype, name="patch_embedding"
        )(x)  # (b, h, w, d)
        x = GridToTokens(dtype=dtype, name="patch_tokens")(grid)  # (b, n, d)

        if num_layers is not None:
            add_positions = AddPositionEmbs(
                position_embedding,
                c.position_grid or grid.shape[1:3],
                num_prefix if prefix_positions else 0,
                dtype=dtype,
                name="position_embedding",
            )
            # A table of another grid than the image's is resized; the others hold to theirs.
            where = [] if c.position_grid is None else [grid]
            if not prefix_positions:
                x = add_positions(x, *where)
            for name, count, start in prefix:
                x = ClassToken(count, start, dtype=dtype, name=name)(x)  # (b, p + n, d)
            if prefix_positions:
                x = add_positions(x, *where)
            if position_embedding != "none":
                x = keras.layers.Dropout(dropout_rate, dtype=dtype, name="position_dropout")(x)

            if pre_norm:
                x = LayerNormalization(**norm, name="pre_norm")(x)
            for i in range(num_layers):
                x = EncoderBlock(
                    **block,
                    layer_scale=layer_scale,
                    dropout_rate=dropout_rate,
                    attention_dropout_rate=attention_dropout_rate,
                    stochastic_depth_rate=stochastic_depth_rate * i / max(num_layers - 1, 1),
                    name=f"encoder_block_{i}",
                )(x)
            if not norm_after_pooling:
                x = LayerNormalization(**norm, name="encoder_norm")(x)
        x = tokens = stage("tokens", x)  # (b, p + n, d)

        if pooling == "token":
            x = ops.mean(tokens[:, :2], axis=1) if distillation else tokens[:, 0]
        elif pooling == "gap":
            x = ops.mean(tokens[:, num_prefix:], axis=1)
        elif pooling == "map":
            x = AttentionPooling(**block, name="attention_pooling")(tokens)
        x = stage("pooled", x)  # (b, d)
        if norm_after_pooling:
            x = LayerNormalization(**norm, name="pooled_norm")(x)
        if representation_size is not None:
            x = Dense(
                representation_size,
                activation="tanh",
                kernel_initializer="lecun_normal",
                dtype=dtype,
                name="pre_logits",
            )(x)
        x = stage("representation", x)  # (b, r)

        if num_classes is not None:
            # Zero, as the authors start it; float32 under mixed precision, as losses need it.
            head = {"kernel_initializer": "zeros", "dtype": dtype.variable_dtype}
            if distillation:
                x = Dense(num_classes, **head, name="head")(tokens[:, 0])
                y = Dense(num_classes, **head, name="head_distillation")(tokens[:, 1])
                # Not x + y, which Keras's TensorFlow backend takes for a bias if the batch is empty.
                x = stage("logits", ops.mean(ops.stack([x, y]), axis=0), head["dtype"])
            else:
                x = Dense(num_classes, **head, name="head")(x)
                x = stage("logits", x, head["dtype"])  # (b, k)

        super().__init__(inputs=images, outputs=x, **kwargs)
        self.dtype_policy = dtype
        self._stages = stages  # the layers of those that no output depends on are not in self.layers
        # Strict about the rank, where a functional model would try to add or drop an axis.
        self.input_spec = keras.InputSpec(shape=images.shape)
        for name, value in config.items():
            setattr(self, name, value)

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
        """How many tokens (class, distillation, registers) stand before the grid's."""
        return sum(count for _, count, _ in prefix_tokens(self._config()))

    @property
    def is_classifier(self):
        """Whether the output is one row of class scores an image."""
        return self.num_classes is not None and self.pooling is not None

    feature_extractor = feature_extractor
    classify = classify

    def get_config(self):
        return {
            **self._config(),
            "preprocessing": self.preprocessing.get_config(),
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "name": self.name,
            "trainable": self.trainable,
            **state_config(self.layers),
        }

    def _config(self):
        return {name: getattr(self, name) for name in ARGUMENTS}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        with restoring(config) as freeze:
            model = cls(**{name: value for name, value in config.items() if name not in STATE})
            freeze(model.layers)
        return model


DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(VisionTransformer.__init__).parameters.items()
    if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and name not in ("self", "dtype")
}
ARGUMENTS = tuple(DEFAULTS)
