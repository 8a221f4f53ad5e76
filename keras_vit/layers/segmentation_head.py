"""What heads for segmentation add to the encoder: upscaling, and masks of queries."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops
from keras.src import backend  # keras.ops.image.resize refuses sizes that only the graph knows

from keras_vit.layers.attention import MASKED
from keras_vit.layers.configurable import Configurable
from keras_vit.layers.dense import CompositeLayer
from keras_vit.layers.hints import FREE, sharded
from keras_vit.layers.layer_norm import LayerNormalization
from keras_vit.layers.mlp import ACTIVATIONS
from keras_vit.rules import one_of
from keras_vit.types import Shape, Tensor

_SMALLEST = 1e-12  # of a score whose logarithm is taken


def resize(x: Tensor, size: tuple[int | Tensor, int | Tensor]) -> Tensor:
    """Resize grids (batch, height, width, channels) bilinearly, without antialiasing, in float32.

    >>> resize(np.array([0.0, 1.0]).reshape(1, 1, 2, 1), (1, 4)).numpy().ravel().tolist()
    [0.0, 0.25, 0.75, 1.0]
    """
    x = ops.cast(x, "float32")
    return backend.image.resize(x, size, "bilinear", antialias=False, data_format="channels_last")


def batch_norm(policy: str | keras.DTypePolicy, name: str) -> keras.layers.BatchNormalization:
    """A batch norm of a dtype policy, over the batch on all devices.

    >>> batch_norm("float32", "head_norm").momentum
    0.9
    """
    # torch's momentum of 0.1 and epsilon. On JAX the batch is that of all devices anyway.
    options = {"momentum": 0.9, "epsilon": 1e-5, "synchronized": keras.backend.backend() == "tensorflow"}
    return sharded(keras.layers.BatchNormalization(**options, dtype=policy, name=name), FREE)


@keras.saving.register_keras_serializable("keras_vit")
class UpscaleBlock(CompositeLayer):
    """Double the resolution of a grid: a transposed convolution, an activation, a convolution and a norm.

    Args:
        activation: As in `MlpBlock`.
        norm_epsilon: Of the norm.

    Input shape: (batch, height, width, channels).
    Output shape: (batch, 2 · height, 2 · width, channels).

    Raises:
        ValueError: for an unknown activation.

    Example:
        >>> UpscaleBlock()(np.zeros((1, 2, 3, 8))).shape
        TensorShape([1, 4, 6, 8])

    Source: Kerssies et al. 2025 (EoMT, arXiv 2503.19108), section 3.3; `ScaleBlock` of its code.
    """

    def __init__(self, activation: str = "gelu_erf", norm_epsilon: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.activation = one_of(ACTIVATIONS).check("activation", activation)
        self.norm_epsilon = norm_epsilon

    def build(self, input_shape: Shape) -> None:
        policy, channels = self.dtype_policy, input_shape[-1]
        options = {"data_format": "channels_last", "dtype": policy}
        transposed = keras.layers.Conv2DTranspose(channels, 2, 2, name="transposed", **options)
        depthwise = keras.layers.DepthwiseConv2D(
            3, padding="same", use_bias=False, name="depthwise", **options
        )
        self.transposed, self.depthwise = sharded(transposed, FREE), sharded(depthwise, FREE)
        self.norm = LayerNormalization(self.norm_epsilon, dtype=policy, name="norm")
        for layer in (self.transposed, self.depthwise, self.norm):
            layer.build((None, None, None, channels))

    def call(self, grid: Tensor) -> Tensor:
        return self.norm(self.depthwise(ACTIVATIONS[self.activation](self.transposed(grid))))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, height, width, channels = input_shape
        return (batch, height and 2 * height, width and 2 * width, channels)


@keras.saving.register_keras_serializable("keras_vit")
class ResizeToImage(Configurable):
    """Resize a grid to the height and width of the images, bilinearly.

    Call arguments:
        grid: (batch, rows, columns, channels).
        images: (batch, height, width, …), of which only the shape is used.

    Output shape: (batch, height, width, channels), float32.

    Example:
        >>> ResizeToImage()(np.zeros((1, 2, 2, 8)), np.zeros((1, 16, 24, 3))).shape
        TensorShape([1, 16, 24, 8])

    Source: Oquab et al. 2023 (DINOv2), section 7.4.
    """

    def call(self, grid: Tensor, images: Tensor) -> Tensor:
        return resize(grid, ops.shape(images)[1:3])

    def compute_output_spec(self, grid: Tensor, images: Tensor) -> Tensor:
        return keras.KerasTensor((*images.shape[:3], grid.shape[-1]), "float32")


@keras.saving.register_keras_serializable("keras_vit")
class QueryAttentionBias(Configurable):
    """A bias of the attention's scores, by which each query attends to the patches of its mask only.

    Queries attend to each other and to the prefix tokens as before, and so do all other tokens to all tokens.
    In training each query of each image is masked with the probability `probability`, a weight that
    training does not change; in inference all queries are, if it is at least 0.5.

    Args:
        num_prefix_tokens: Number of tokens between queries and patches.

    Call arguments:
        masks: Logits of the queries' masks (batch, height, width, queries).
        grid: (batch, rows, columns, …) of the patches, of which only the shape is used.
        training: Whether to draw random numbers.

    Output shape: (batch, 1, tokens, tokens), float32, where the tokens are the queries, the prefix tokens and
    the patches, in this order.

    Example:
        >>> masks = np.array([1.0, -1.0]).reshape(1, 1, 2, 1)
        >>> QueryAttentionBias(0)(masks, masks)[0, 0].numpy().tolist()
        [[0.0, 0.0, -1000000000.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]

    Source: Kerssies et al. 2025 (EoMT), section 3.2; Cheng et al. 2022 (Mask2Former), equation 1.
    """

    sharding = FREE

    def __init__(self, num_prefix_tokens: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_prefix_tokens = num_prefix_tokens
        self.seed_generator = keras.random.SeedGenerator()

    def build(self, masks_shape: Shape, grid_shape: Shape | None = None) -> None:
        self.probability = self.add_weight(
            shape=(), initializer="ones", trainable=False, dtype="float32", name="probability"
        )

    def call(self, masks: Tensor, grid: Tensor, training: bool | None = None) -> Tensor:
        batch, rows, columns = ops.shape(grid)[:3]
        queries = ops.shape(masks)[-1]
        inside = ops.reshape(resize(masks, (rows, columns)) > 0, (batch, rows * columns, queries))
        probability = ops.cast(self.probability, "float32")
        if training:
            masked = keras.random.uniform((batch, 1, queries), seed=self.seed_generator) <= probability
        else:
            masked = probability >= 0.5
        # Of booleans LiteRT's delegate for GPUs has only the choice.
        outside = ops.where(masked, MASKED, 0.0)
        bias = ops.transpose(ops.where(inside, 0.0, outside), (0, 2, 1))  # (b, q, n)
        before = queries + self.num_prefix_tokens
        bias = ops.pad(bias, ((0, 0), (0, self.num_prefix_tokens + rows * columns), (before, 0)))
        return ops.expand_dims(bias, 1)

    def compute_output_spec(self, masks: Tensor, grid: Tensor, training: bool | None = None) -> Tensor:
        batch, rows, columns = grid.shape[:3]
        tokens = rows and columns and masks.shape[-1] + self.num_prefix_tokens + rows * columns
        return keras.KerasTensor((batch, 1, tokens, tokens), "float32")


@keras.saving.register_keras_serializable("keras_vit")
class SemanticScores(Configurable):
    """The scores of the classes at each pixel, from the masks and classes of queries.

    The score of a class is the sum over the queries of the probability of the class and the probability that
    the pixel is in the mask. The output is the logarithm of the scores, whose softmax are the scores in
    proportion to their sum.

    Call arguments:
        masks: Logits (batch, rows, columns, queries).
        classes: Logits (batch, queries, classes + 1); the last stands for no object.
        images: (batch, height, width, …), of which only the shape is used.

    Output shape: (batch, height, width, classes), float32.

    Example:
        >>> masks, classes = np.zeros((1, 2, 2, 5)), np.zeros((1, 5, 4))
        >>> SemanticScores()(masks, classes, np.zeros((1, 8, 8, 3))).shape
        TensorShape([1, 8, 8, 3])

    Source: `to_per_pixel_logits_semantic` of EoMT's code, which does not take the logarithm.
    """

    def call(self, masks: Tensor, classes: Tensor, images: Tensor) -> Tensor:
        inside = ops.sigmoid(resize(masks, ops.shape(images)[1:3]))
        probabilities = ops.softmax(ops.cast(classes, "float32"))[..., :-1]
        scores = ops.einsum("bhwq,bqk->bhwk", inside, probabilities)
        return ops.log(ops.maximum(scores, _SMALLEST))

    def compute_output_spec(self, masks: Tensor, classes: Tensor, images: Tensor) -> Tensor:
        return keras.KerasTensor((*images.shape[:3], classes.shape[-1] - 1), "float32")
