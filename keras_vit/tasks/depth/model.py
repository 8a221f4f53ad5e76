"""Depth estimation: an encoder's patch tokens → a head → a depth, or other values, at each pixel."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from keras_vit.layers.aligned_resize import AlignedResize
from keras_vit.layers.convolution import Conv2D
from keras_vit.layers.dense import Dense
from keras_vit.layers.depth_head import (
    FACTORS,
    READOUTS,
    VALUES,
    DepthBins,
    FusionBlock,
    PixelValues,
    Readout,
    Reassemble,
)
from keras_vit.layers.hints import CLASSES, WHOLE, sharded
from keras_vit.layers.mlp import ACTIVATIONS
from keras_vit.layers.segmentation_head import ResizeToImage, batch_norm
from keras_vit.models.encoder_model import as_encoder
from keras_vit.models.features import tokens_of_blocks
from keras_vit.models.headed_model import HeadedModel
from keras_vit.rules import integer, items, number, one_of, optional
from keras_vit.tasks.depth.estimating import estimate

if TYPE_CHECKING:
    from keras_vit.models.vit.vision_transformer import VisionTransformer

HEADS = ("dpt", "linear")
# The activation of each quantity, by which "metric" is multiplied by `max_depth` if it is "sigmoid".
QUANTITIES = {"metric": "sigmoid", "relative": "exp", "disparity": "relu", "values": "linear"}
UPSAMPLINGS = ("match", "double")
LEVELS = len(FACTORS)
_POSITIVE = integer(at_least=1)


@keras.saving.register_keras_serializable("keras_vit")
class DepthEstimator(HeadedModel):
    """Depth estimation with a plain Vision Transformer, or the regression of other values at each pixel.

    The heads are

    * "dpt": the tokens of four blocks become maps of 4, 2, 1 and 0.5 times the patches' resolution, which
      residual units and interpolation fuse, from the coarsest to the finest. Three convolutions follow, of
      which the last two are at the image's resolution (DPT, Depth Anything);
    * "linear": a linear layer for each patch, or for the concatenated tokens of several blocks. A "metric"
      output is the expectation over `bins` depths at equal distances (DINOv2's and DINOv3's evaluation).

    Depths are along the optical axis: larger values are farther away.

    Args:
        encoder: A VisionTransformer without layers after its tokens: no `num_classes`,
            `representation_size`, "map" pooling or `norm_after_pooling`. Its layers are shared, so
            training trains it. Or its constructor arguments. If it has a norm after its last block, this is
            applied to the tokens of all blocks that are read.
        num_classes: Number of values of each pixel: 1, or any number for the quantity "values".
        head: "dpt" or "linear".
        quantity: "metric" for depth in the unit of the labels, above 0 and at most `max_depth`; "relative"
            for positive depth up to a factor; "disparity" for inverse depth of at least 0, up to a factor and
            an addend; "values" for any numbers.
        activation: "sigmoid" (times `max_depth`), "exp", "relu" or "linear"; None for that of `quantity`:
            "sigmoid", "exp", "relu" and "linear" in the order above.
        blocks: Numbers of the blocks, from 0, whose tokens are read. None: the last one for "linear"; for
            "dpt" four at equal distances, such as 2, 5, 8 and 11 of 12, and 4, 11, 17 and 23 of 24.
        readout: What is made of the class token: "ignore", "add" (to each patch token), "project" (a dense
            layer of both) or "concatenate".
        readout_activation: Of "project", as in `MlpBlock`.
        neck_sizes: Channels of the four maps of "dpt" before `decoder_size`; None for 1/8, 1/4, 1/2 and all
            of the encoder's.
        decoder_size: Channels in which "dpt" fuses its maps.
        head_size: Channels of the last convolution but one of "dpt".
        upsampling: How "dpt" enlarges a map: "match" to the size of the next one, and at last to the image
            (Depth Anything), or "double" (DPT), where the output is resized to the image.
        head_norm: "batch" or None: the norm before the layer of "linear", and after each convolution of the
            residual units of "dpt". It is of the batch on all devices, and not defined for
            `accumulation_steps` above 1.
        bins: Number of depths of the quantity "metric" of "linear"; None, or an `activation`, for none.
        min_depth: The smallest of these depths.
        max_depth: The largest one, or the factor of a "metric" output's "sigmoid".
        variance_focus, gradient_weight: Of the loss in training, see `loss.DepthLoss`.
        class_names: One name per value, such as ("depth",), or None.
        split_seed: Seed of the split of the training data; None if unknown.
        dtype: A dtype policy for an encoder that is given by its arguments.
        name, trainable: As of any Keras model.

    Input: `images`, float32 (batch, height, width, in_channels), as for the encoder.
    Output: float32 (batch, height, width, num_classes), at the size of the images.

    Raises:
        ValueError: for an unknown head, quantity or other choice, blocks that the encoder does not have,
            another number than four of blocks or `neck_sizes` of "dpt", a readout of an encoder without a
            class token, several values of an output that is a depth, an encoder with layers after its tokens
            or without a Transformer, or image sides that patches do not divide; by `compile` for
            micro-batches of a batch norm.

    Example:
        >>> encoder = keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3)
        >>> estimator = keras_vit.DepthEstimator(encoder, decoder_size=16, max_depth=5.0)
        >>> estimator(np.zeros((1, 32, 32, 3))).shape
        TensorShape([1, 32, 32, 1])

    Source: Ranftl et al. 2021 (DPT, arXiv 2103.13413), section 3; Yang et al. 2024 (Depth Anything V2, arXiv
    2406.09414); Oquab et al. 2023 (DINOv2, arXiv 2304.07193), section 7.4, for "linear".
    """

    kind = "depth_estimator"
    head_reads_images = True
    exported_stages = ()
    task = "depth"
    head_layers = r"(readout|reassemble|fusion)_\d+|(decoder|head|output)_convolution|head(_norm)?"
    class_layers = ("head", "output_convolution")
    head_options = ("head", "blocks", "readout", "upsampling")
    class_options = ("value_activation", "quantity", "max_depth")
    without_head = "this model estimates depth; use its `estimate` method"
    rules = {
        **dict.fromkeys(("num_classes", "decoder_size", "head_size"), _POSITIVE),
        "head": one_of(HEADS),
        "quantity": one_of(QUANTITIES),
        "activation": optional(one_of(VALUES)),
        "blocks": optional(items(integer(at_least=0))),
        "readout": one_of(READOUTS),
        "readout_activation": one_of(ACTIVATIONS),
        "neck_sizes": optional(items(_POSITIVE, LEVELS)),
        "upsampling": one_of(UPSAMPLINGS),
        "head_norm": one_of(("batch", None)),
        "bins": optional(integer(at_least=2)),
        "min_depth": number(above=0),
        "max_depth": number(above=0),
        "variance_focus": number(0, 1),
        "gradient_weight": number(0),
    }

    def __init__(
        self,
        encoder: VisionTransformer | Mapping[str, Any],
        num_classes: int = 1,
        head: str = "dpt",
        quantity: str = "metric",
        activation: str | None = None,
        blocks: Sequence[int] | None = None,
        readout: str = "ignore",
        readout_activation: str = "gelu_erf",
        neck_sizes: Sequence[int] | None = None,
        decoder_size: int = 256,
        head_size: int = 32,
        upsampling: str = "match",
        head_norm: str | None = None,
        bins: int | None = 256,
        min_depth: float = 0.001,
        max_depth: float = 10.0,
        variance_focus: float = 0.5,
        gradient_weight: float = 0.5,
        class_names: Sequence[str] | None = None,
        split_seed: int | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
        trainable: bool = True,
    ) -> None:
        encoder = as_encoder(encoder, dtype)
        self.store_arguments(locals())
        self.blocks, self.neck_sizes = blocks and tuple(blocks), neck_sizes and tuple(neck_sizes)
        if num_classes > 1 and quantity != "values":
            raise ValueError(
                f"quantity={quantity!r} is one number for each pixel; got num_classes={num_classes}"
            )
        if readout != "ignore" and not encoder.class_token:
            raise ValueError(f"readout={readout!r} needs an encoder with a class token; got one without")
        maps, head_inputs = _readouts(self, encoder)
        build = _fused if head == "dpt" else _linear
        values = build(self, maps, encoder)
        values = keras.layers.Identity(dtype=encoder.dtype_policy.variable_dtype, name="logits")(values)
        super().__init__(encoder, values, {"logits": values}, head_inputs, name, trainable)

    @staticmethod
    def min_own_parameters(config: dict[str, Any]) -> int:
        hidden = config["encoder"]["hidden_size"]
        if config.get("head", "dpt") == "linear":
            return hidden
        return hidden * sum(_neck_sizes(config.get("neck_sizes"), hidden))

    estimate = estimate

    @classmethod
    def with_stored(cls, stored: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        if options.get("head", stored["head"]) != stored["head"]:
            return options
        kept = {name: value for name, value in stored.items() if name not in ("class_names", "split_seed")}
        if options.get("quantity", kept["quantity"]) != kept["quantity"]:
            kept["activation"] = None
        return {**kept, **options}

    @property
    def value_activation(self) -> str:
        """The activation of the output."""
        return self.activation or QUANTITIES[self.quantity]

    @property
    def read_blocks(self) -> tuple[int, ...]:
        """Numbers of the blocks, from 0, whose tokens are read."""
        return self.blocks or default_blocks(self.head, self.encoder.num_layers)


def _neck_sizes(sizes, hidden_size):
    return tuple(sizes or (max(hidden_size // fraction, 1) for fraction in (8, 4, 2, 1)))


def default_blocks(head, count):
    if head == "linear":
        return (count - 1,)
    if count == 24:
        return (4, 11, 17, 23)  # of the authors of DINOv2 and Depth Anything
    return tuple(max(-(-count * part // LEVELS) - 1, 0) for part in range(1, LEVELS + 1))


def _readouts(model, encoder):
    """The grids of the blocks that are read, and the tensors from which the head computes them."""
    blocks = model.blocks or default_blocks(model.head, encoder.num_layers)
    if model.head == "dpt" and len(blocks) != LEVELS:
        raise ValueError(f"head='dpt' reads {LEVELS} blocks; got blocks={blocks}")
    # An encoder of few blocks is read several times.
    distinct = sorted({*blocks}) if model.blocks is None else [*blocks]
    tokens = dict(zip(distinct, tokens_of_blocks(encoder, distinct)))
    encoder.check_one_size("a grid of patches")
    patches = encoder.get_layer("patch_embedding").output
    options = {"activation": model.readout_activation, "dtype": encoder.dtype_policy}
    grids = [
        Readout(model.readout, **options, name=f"readout_{i}")(tokens[block], patches)
        for i, block in enumerate(blocks)
    ]
    return grids, [*tokens.values(), patches]


def _fused(model, grids, encoder):
    """The values of the head "dpt"."""
    policy, images = encoder.dtype_policy, encoder.input
    sizes = _neck_sizes(model.neck_sizes, encoder.hidden_size)
    maps = [
        Reassemble(size, model.decoder_size, factor, dtype=policy, name=f"reassemble_{i}")(grid)
        for i, (size, factor, grid) in enumerate(zip(sizes, FACTORS, grids))
    ]
    match, x = model.upsampling == "match", maps[-1]
    for i in reversed(range(LEVELS)):
        is_first = i == LEVELS - 1
        fusion = FusionBlock(not is_first, model.head_norm, dtype=policy, name=f"fusion_{i}")
        x = fusion(x, maps[i - 1] if match and i else None, None if is_first else maps[i])
    convolution = functools.partial(Conv2D, kernel_size=3, padding="same", dtype=policy)
    x = convolution(max(model.decoder_size // 2, 1), name="decoder_convolution")(x)
    x = AlignedResize(dtype=policy, name="resize")(x, images if match else None)
    x = convolution(model.head_size, activation="relu", name="head_convolution")(x)
    options = {"name": "output_convolution", **_of_head(model, encoder)}
    x = sharded(Conv2D(model.num_classes, 1, **options), CLASSES)(x)
    x = _values(model, encoder)(x)
    return x if match else _resized(encoder)(x, images)


def _linear(model, grids, encoder):
    """The values of the head "linear"."""
    policy, images = encoder.dtype_policy, encoder.input
    x = ops.concatenate(grids, axis=-1) if len(grids) > 1 else grids[0]  # (b, h, w, blocks · d)
    if model.head_norm == "batch":
        x = sharded(batch_norm(policy, "head_norm"), WHOLE)(x)
    has_bins = model.quantity == "metric" and model.activation is None and model.bins is not None
    units = model.bins if has_bins else model.num_classes
    x = sharded(Dense(units, name="head", **_of_head(model, encoder)), CLASSES)(x)
    if has_bins:
        x = DepthBins(model.min_depth, model.max_depth, dtype=policy.variable_dtype, name="depth_bins")(x)
    else:
        x = _values(model, encoder)(x)
    return _resized(encoder)(x, images)


def _of_head(model, encoder):
    """The options of the last layer, whose values begin near its bias: a ReLU lets gradients of 1 through."""
    is_relu = model.value_activation == "relu"
    return {
        "kernel_initializer": keras.initializers.RandomNormal(stddev=0.01),
        "bias_initializer": "ones" if is_relu else "zeros",
        "dtype": encoder.dtype_policy.variable_dtype,
    }


def _values(model, encoder):
    scale = model.max_depth if model.value_activation == "sigmoid" else 1.0
    return PixelValues(
        model.value_activation, scale, dtype=encoder.dtype_policy.variable_dtype, name="values"
    )


def _resized(encoder):
    return ResizeToImage(dtype=encoder.dtype_policy.variable_dtype, name="resize_to_image")
