"""Semantic segmentation: an encoder's patch tokens → a head → the logits of the classes at each pixel."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from keras_vit.layers import ClassToken, GridToTokens, LayerNormalization, TokensToGrid
from keras_vit.layers.dense import Dense
from keras_vit.layers.hints import CLASSES, FREE, WHOLE, sharded
from keras_vit.layers.mlp import ACTIVATIONS
from keras_vit.layers.segmentation_head import (
    QueryAttentionBias,
    ResizeToImage,
    SemanticScores,
    UpscaleBlock,
    batch_norm,
)
from keras_vit.losses import MEAN
from keras_vit.models.encoder_model import as_encoder
from keras_vit.models.features import grids_of_blocks, normalized, patch_grid
from keras_vit.models.headed_model import HeadedModel
from keras_vit.models.vit.geometry import patch_pixels
from keras_vit.models.windows import segment
from keras_vit.rules import boolean, integer, items, one_of, optional
from keras_vit.tasks.segmentation.instances import instances
from keras_vit.tasks.segmentation.loss import query_loss
from keras_vit.tasks.segmentation.panoptic_segments import panoptic
from keras_vit.types import Tensor

if TYPE_CHECKING:
    import numpy as np

    from keras_vit.models.vit.vision_transformer import VisionTransformer

HEADS = ("linear", "multi", "up", "mask")
NORMS = ("layer", "batch", None)
_ANNEALING_POWER = 0.9
_POSITIVE = integer(at_least=1)


@keras.saving.register_keras_serializable("keras_vit")
class ImageSegmenter(HeadedModel):
    """Semantic segmentation with a plain Vision Transformer: the class of each pixel.

    The heads are

    * "linear": a norm and a linear layer for each patch token of the last block (DINOv2's evaluation);
    * "multi": the same for the concatenated tokens of several blocks;
    * "up": these tokens, a linear layer to `decoder_size` channels, convolutions that double the resolution
      until a position covers at most 4 pixels, and a linear layer;
    * "mask": learned queries join the tokens before the last `query_blocks` blocks. Each predicts a mask, at
      the resolution of "up", and a class (EoMT). With `masked_attention`, a query attends to the patches of
      its mask only, in training with a probability that falls to 0, one block after the other, over the
      compiled `total_steps`. `fit` and `evaluate` use the matching loss of `loss.py` for this head,
      whatever loss was compiled.

    Maps are resized to the image bilinearly.

    Args:
        encoder: A VisionTransformer without layers after its tokens: no `num_classes`,
            `representation_size`, "map" pooling or `norm_after_pooling`. Its layers are shared, so
            training trains it. Or its constructor arguments.
        num_classes: Number of classes.
        head: "linear", "multi", "up" or "mask".
        blocks: Numbers of the blocks, from 0, whose tokens are read. None: the last one for "linear", the
            last four for "multi", four at equal distances for "up". "mask" reads none of these.
        head_norm: "layer", "batch" or None: the norm before the linear layer of "linear" and "multi". "batch"
            is of the batch on all devices, and not defined for `accumulation_steps` above 1.
        decoder_size: Channels of the convolutions of "up".
        num_queries: Number of queries of "mask", of masks that an image can have.
        query_blocks: Number of blocks that have the queries.
        upscale_blocks: Number of `UpscaleBlock`s of "up" and "mask"; None: to 4 pixels a position, at
            least 1.
        head_activation: Activation of the heads "up" and "mask"; None: the encoder's, but "gelu_erf" where
            that is "silu".
        masked_attention: Whether masks restrict the attention of the queries. Without, as after training,
            masks are predicted once only.
        loss_points: Number of points at which the loss of "mask" compares two masks.
        class_names: One name per class, or None.
        split_seed: Seed of the split of the training data; None if unknown.
        dtype: A dtype policy for an encoder that is given by its arguments.
        name, trainable: As of any Keras model.

    Input: `images`, float32 (batch, height, width, in_channels), as for the encoder.
    Output: float32 (batch, height, width, num_classes), logits. With `training=True`, "mask" returns a list
    of them and the queries' predictions.

    Raises:
        ValueError: for an unknown head or norm, blocks that the encoder does not have, an encoder with
            layers after its tokens or without a Transformer, "mask" with relative positions, or image sides
            that patches do not divide; by `compile` for micro-batches of a batch norm.

    Example:
        >>> segmenter = ImageSegmenter(keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3), num_classes=4)
        >>> segmenter(np.zeros((1, 32, 32, 3))).shape
        TensorShape([1, 32, 32, 4])

    Source: Oquab et al. 2023 (DINOv2, arXiv 2304.07193), section 7.4, for "linear" and "multi"; Kerssies et
    al. 2025 (EoMT, arXiv 2503.19108), for "mask".
    """

    kind = "segmenter"
    head_layers = r"head(_norm|_projection)?|upscale_\d+|queries|(mask_dense|query_mask)_\d+|class_head"
    class_layers = ("head", "class_head")
    head_reads_images = True
    exported_stages = ()
    task = "segmentation"
    without_head = "this model segments images; use its `segment` method"
    other_norm = "layer"
    rules = {
        **dict.fromkeys(("num_classes", "decoder_size", "loss_points"), _POSITIVE),
        **dict.fromkeys(("num_queries", "query_blocks"), _POSITIVE),
        "head": one_of(HEADS),
        "blocks": optional(items(integer(at_least=0))),
        "head_norm": one_of(NORMS),
        "upscale_blocks": optional(integer(at_least=0)),
        "head_activation": optional(one_of(ACTIVATIONS)),
        "masked_attention": boolean,
    }

    def __init__(
        self,
        encoder: VisionTransformer | Mapping[str, Any],
        num_classes: int,
        head: str = "linear",
        blocks: Sequence[int] | None = None,
        head_norm: str = "layer",
        decoder_size: int = 256,
        num_queries: int = 100,
        query_blocks: int = 4,
        upscale_blocks: int | None = None,
        head_activation: str | None = None,
        masked_attention: bool = True,
        loss_points: int = 12544,
        class_names: Sequence[str] | None = None,
        split_seed: int | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
        trainable: bool = True,
    ) -> None:
        encoder = as_encoder(encoder, dtype)
        self.store_arguments(locals())
        self.blocks = blocks and tuple(blocks)
        images = encoder.input
        build = _queries if head == "mask" else _decoder
        logits, predictions, head_inputs = build(self, encoder, images)
        logits = keras.layers.Identity(dtype=encoder.dtype_policy.variable_dtype, name="logits")(logits)
        super().__init__(encoder, logits, {"logits": logits}, head_inputs, name, trainable)
        vars(self)["_training"] = predictions and keras.Model(images, [logits, predictions])
        # A seed generator of the model itself: `override_seeds` and checkpoints see it.
        self._point_seeds = keras.random.SeedGenerator() if predictions else None
        self._query_losses = {
            # All evaluations compare masks at the same points.
            training: _QueryLoss(seed, loss_points)
            for training, seed in ((True, self._point_seeds), (False, 0))
        }
        self._evaluates = False

    @property
    def matches(self) -> bool:
        return self._training is not None

    @property
    def trains_other_outputs(self) -> bool:
        return self._training is not None

    @staticmethod
    def min_own_parameters(config: dict[str, Any]) -> int:
        hidden, classes = config["encoder"]["hidden_size"], config["num_classes"]
        if config["head"] == "up":
            return config["decoder_size"] * (hidden + classes)
        return hidden * (classes + (config["num_queries"] if config["head"] == "mask" else 0))

    def call(self, inputs: Tensor, training: bool | None = None, mask: Tensor | None = None) -> Tensor:
        if self._training and (training or self._evaluates):
            return self._training(inputs, training=training)
        return super().call(inputs, training=training, mask=mask)

    def compute_metrics(
        self, x: Any, y: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> dict[str, Any]:
        logits, _ = _logits_and_queries(y_pred)
        return super().compute_metrics(x, y, logits, sample_weight)

    def compute_loss(
        self,
        x: Any = None,
        y: Tensor | None = None,
        y_pred: Tensor | None = None,
        sample_weight: Tensor | None = None,
        training: bool = True,
    ) -> Tensor:
        logits, predictions = _logits_and_queries(y_pred)
        if predictions is None:
            return super().compute_loss(x, y, logits, sample_weight, training)
        loss = self._query_losses[training](y, predictions, sample_weight)
        return ops.sum([loss, *map(self._aggregate_additional_loss, self.losses)])

    def test_step(self, *args: Any) -> Any:
        self._evaluates = True
        try:
            return super().test_step(*args)
        finally:
            self._evaluates = False

    if keras.backend.backend() == "jax":

        def train_step(self, state: Any, data: Any) -> Any:
            trainable, non_trainable, optimizer, metrics = state
            if masks := self._annealed():
                places = {id(variable): i for i, variable in enumerate(self.non_trainable_variables)}
                counters = [variable is self.optimizer._iterations for variable in self.optimizer.variables]
                step, non_trainable = optimizer[counters.index(True)], list(non_trainable)
                for variable, start, end in masks:
                    non_trainable[places[id(variable)]] = self._probability(step, start, end)
            return super().train_step((trainable, non_trainable, optimizer, metrics), data)

    else:

        def train_step(self, data: Any) -> Any:
            for variable, start, end in self._annealed():
                variable.assign(self._probability(self.optimizer._iterations, start, end))
            return super().train_step(data)

    def _annealed(self):
        """(variable, first step, last step) for each block with a probability that falls in training."""
        if not self.total_steps or self._training is None:
            return []
        masks = [layer for layer in self.layers if isinstance(layer, QueryAttentionBias)]
        parts = len(masks) + 2
        steps = [self.total_steps * i / parts for i in range(1, parts)]
        return [
            (layer.probability, start, end)
            for layer, start, end in zip(masks, steps, steps[1:])
            if layer.trainable
        ]

    def _probability(self, step, start, end):
        progress = (ops.cast(step, "float32") - start) / (end - start)
        return ops.power(1 - ops.clip(progress, 0.0, 1.0), _ANNEALING_POWER)

    segment = segment
    panoptic = panoptic
    instances = instances

    def query_predictions(self) -> keras.Model:
        """A model from images to the queries' predictions: a dict of logits, `masks` and `classes`.

        The masks are (batch, rows, columns, queries), the classes (batch, queries, classes + 1), of which the
        last stands for no object.

        Raises:
            ValueError: for another head than "mask".
        """
        if self._training is None:
            raise ValueError(f"only head='mask' has queries; got {self.head!r}")
        # A function that Keras has compiled computes with the weights that there were: LoRA adds others.
        weights = self.weights
        known, model = vars(self).get("_query_predictions", ((), None))
        if [*map(id, known)] != [*map(id, weights)]:
            masks, classes = self._training.output[1][-1]
            model = keras.Model(self.input, {"masks": masks, "classes": classes}, name="query_predictions")
            vars(self)["_query_predictions"] = weights, model
        return model

    def finished(self, arrays: dict[str, np.ndarray] | None = None) -> ImageSegmenter:
        """A copy of the model for inference, in float32 and without dropout, remat and frozen layers.

        Masks do not restrict the attention of its queries if all probabilities have fallen below 0.5.

        Args:
            arrays: dict of the weights by path; None for the model's, with LoRA factors merged.

        Example:
            >>> segmenter = ImageSegmenter(keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3), num_classes=4)
            >>> segmenter.finished().encoder.dropout_rate
            0.0
        """
        masks = [layer for layer in self.layers if isinstance(layer, QueryAttentionBias)]
        masked = any(float(layer.probability.numpy()) >= 0.5 for layer in masks)
        return super().finished(arrays, masked_attention=masked)


class _QueryLoss(keras.losses.Loss):
    """The sum of `query_loss` over the blocks that predict, weighted by the samples or their pixels."""

    def __init__(self, seed, num_points):
        super().__init__(name="query_loss", reduction=MEAN)
        self.draw = functools.partial(keras.random.uniform, seed=seed)
        self.num_points = num_points

    def __call__(self, y_true, y_pred, sample_weight=None):
        if sample_weight is not None and len(sample_weight.shape) > 1:
            sample_weight = ops.sum(ops.cast(sample_weight, "float32"), axis=(1, 2))
        return super().__call__(y_true, y_pred, sample_weight)

    def call(self, y_true, y_pred):
        return sum(query_loss(*each, y_true, self.draw, self.num_points) for each in y_pred)


def _logits_and_queries(outputs):
    """The parts of a model's outputs: in training and evaluation, the head "mask" returns both."""
    return outputs if isinstance(outputs, (list, tuple)) else (outputs, None)


def _upscale_blocks(model, encoder):
    if model.upscale_blocks is not None:
        return model.upscale_blocks
    return max(1, round(math.log2(max(patch_pixels(encoder)))) - 2)


def _activation(model, encoder):
    """The name of the head's activation."""
    usual = "gelu_erf" if encoder.activation == "silu" else encoder.activation
    return model.head_activation or usual


def _decoder(model, encoder, images):
    """The logits of the heads without queries, and as `head_inputs` the tokens that they read."""
    policy, last = encoder.dtype_policy, encoder.num_layers - 1
    default = {
        "linear": [last],
        "multi": range(max(last - 3, 0), last + 1),
        "up": [last - last * i // 4 for i in (3, 2, 1, 0)],
    }[model.head]
    grids = grids_of_blocks(encoder, model.blocks or sorted({*default}))
    x = ops.concatenate(grids, axis=-1) if len(grids) > 1 else grids[0]  # (b, h, w, blocks · d)
    if model.head == "up":
        x = sharded(Dense(model.decoder_size, dtype=policy, name="head_projection"), WHOLE)(x)
        for i in range(_upscale_blocks(model, encoder)):
            x = UpscaleBlock(_activation(model, encoder), dtype=policy, name=f"upscale_{i}")(x)
    elif model.head_norm == "layer":
        x = LayerNormalization(dtype=policy, name="head_norm")(x)
    elif model.head_norm == "batch":
        x = sharded(batch_norm(policy, "head_norm"), WHOLE)(x)
    head = {"kernel_initializer": "zeros", "dtype": policy.variable_dtype, "name": "head"}
    x = sharded(Dense(model.num_classes, **head), CLASSES)(x)  # (b, h', w', k)
    return ResizeToImage(dtype=policy.variable_dtype, name="resize")(x, images), None, grids


def _queries(model, encoder, images):
    """The logits, and the masks and classes that each block with queries, and the end, predict."""
    c, policy = encoder, encoder.dtype_policy
    if c.relative_positions:
        raise ValueError("head='mask' adds queries to the tokens, for which there are no relative positions")
    if model.query_blocks > c.num_layers:
        raise ValueError(f"query_blocks must be at most num_layers={c.num_layers}; got {model.query_blocks}")
    patches = c.get_layer("patch_embedding").output
    float32 = policy.variable_dtype
    activation = _activation(model, c)
    upscale = [
        UpscaleBlock(activation, dtype=policy, name=f"upscale_{i}")  # epsilon 1e-6 for any encoder
        for i in range(_upscale_blocks(model, c))
    ]
    mask_head = [
        Dense(c.hidden_size, ACTIVATIONS[activation] if i < 2 else None, dtype=policy, name=f"mask_dense_{i}")
        for i in range(3)
    ]
    class_head = Dense(model.num_classes + 1, dtype=float32, name="class_head")

    def predict(tokens):
        x = queries = normalized(c, tokens)[:, : model.num_queries]
        for layer in mask_head:
            x = layer(x)
        grid = patch_grid(c, normalized(c, tokens))
        for layer in upscale:
            grid = layer(grid)
        # With three axes each, as LiteRT's delegate for GPUs needs them.
        masks = ops.einsum("bnc,bqc->bnq", GridToTokens()(grid), x)
        # (b, h', w', q) and (b, q, k + 1)
        return TokensToGrid()(masks, grid), class_head(queries)

    first = c.num_layers - model.query_blocks
    tokens, *positions = keras.tree.flatten(c.get_layer(f"encoder_block_{first}").input)
    normal = keras.initializers.RandomNormal(stddev=1.0)
    queries = ClassToken(model.num_queries, normal, dtype=policy, name="queries")
    for layer in (*mask_head, class_head, queries):
        layer.sharding = FREE
    tokens = queries(tokens)
    predictions = []
    for i in range(first, c.num_layers):
        block = c.get_layer(f"encoder_block_{i}")
        _, *positions = keras.tree.flatten(block.input)
        bias = None
        if model.masked_attention:
            predictions.append(predict(tokens))
            mask = QueryAttentionBias(c.num_prefix_tokens, dtype=float32, name=f"query_mask_{i}")
            bias = mask(predictions[-1][0], patches)
        tokens = block(tokens, *positions, bias=bias)
    predictions.append(predict(tokens))
    masks, classes = predictions[-1]
    return SemanticScores(dtype=float32, name="scores")(masks, classes, images), predictions, None
