"""What heads for depth add to the encoder: the readout of tokens, a pyramid of maps and its fusion, bins."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.aligned_resize import AlignedResize
from keras_vit.layers.configurable import Configurable
from keras_vit.layers.convolution import Conv2D
from keras_vit.layers.dense import CompositeLayer, Dense
from keras_vit.layers.hints import FREE, sharded
from keras_vit.layers.mlp import ACTIVATIONS
from keras_vit.layers.segmentation_head import batch_norm, resize
from keras_vit.layers.token_grid import TokensToGrid
from keras_vit.rules import boolean, integer, number, one_of
from keras_vit.types import Shape, Tensor

READOUTS = ("ignore", "add", "project", "concatenate")
FACTORS = (4, 2, 1, 0.5)
VALUES = {"sigmoid": ops.sigmoid, "exp": ops.exp, "relu": ops.relu, "linear": lambda x: x}
_BIN_OFFSET = 0.1  # added to the weight of each bin, so that their sum is positive
_LOGITS_SCALE = 4  # how often the bins' weights are finer than patches


@keras.saving.register_keras_serializable("keras_vit")
class Readout(CompositeLayer):
    """The patch tokens as a grid, with what the class token adds to them.

    Args:
        kind: "ignore" for the patch tokens alone; "add" to add the class token to each; "concatenate" to
            append its channels; "project" for a dense layer and an activation after that.
        activation: Of "project", as in `MlpBlock`.

    Call arguments:
        tokens: (batch, prefix + height · width, channels), the class token first.
        grid: (batch, height, width, …), of which only the shape is used.

    Output shape: (batch, height, width, channels), with "concatenate" 2 · channels.

    Raises:
        ValueError: for an unknown kind or activation.

    Example:
        >>> Readout("project")(np.zeros((2, 13, 8)), np.zeros((2, 3, 4, 8))).shape
        TensorShape([2, 3, 4, 8])

    Source: Ranftl et al. 2021 (DPT, arXiv 2103.13413), section 3, "Read"; Oquab et al. 2023 (DINOv2, arXiv
    2304.07193), section 7.4, for "concatenate".
    """

    def __init__(self, kind: str = "ignore", activation: str = "gelu_erf", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kind = one_of(READOUTS).check("kind", kind)
        self.activation = one_of(ACTIVATIONS).check("activation", activation)

    def build(self, tokens_shape: Shape, grid_shape: Shape | None = None) -> None:
        channels: Any = tokens_shape[-1]  # an int
        if self.kind == "project":
            self.dense = sharded(Dense(channels, dtype=self.dtype_policy, name="dense"), FREE)
            self.dense.build((None, None, None, 2 * channels))

    def call(self, tokens: Tensor, grid: Tensor) -> Tensor:
        patches = TokensToGrid(dtype=self.dtype_policy)(tokens, grid)
        if self.kind == "ignore":
            return patches
        token = ops.expand_dims(tokens[:, :1], 1)
        if self.kind == "add":
            return patches + token
        _, height, width, _ = ops.shape(patches)
        x = ops.concatenate([patches, ops.tile(token, (1, height, width, 1))], axis=-1)
        return x if self.kind == "concatenate" else ACTIVATIONS[self.activation](self.dense(x))

    def compute_output_spec(self, tokens: Tensor, grid: Tensor) -> Tensor:
        channels = tokens.shape[-1] * (2 if self.kind == "concatenate" else 1)
        return keras.KerasTensor((*grid.shape[:3], channels), self.compute_dtype)


@keras.saving.register_keras_serializable("keras_vit")
class Reassemble(Configurable):
    """A grid of patches at another resolution and with other channels.

    A linear layer to `size` channels, a transposed convolution (or a convolution with a stride, or neither),
    and a convolution to `channels`.

    Args:
        size: Channels of the map in between.
        channels: Channels of the output.
        factor: 4, 2, 1 or 0.5: the resolution of the output relative to the grid's.

    Input shape: (batch, height, width, any channels).
    Output shape: (batch, factor · height, factor · width, channels), rounded up.

    Raises:
        ValueError: for a factor that is not among these.

    Example:
        >>> Reassemble(8, 16, factor=0.5)(np.zeros((1, 3, 4, 24))).shape
        TensorShape([1, 2, 2, 16])

    Source: Ranftl et al. 2021 (DPT), section 3, "Reassemble".
    """

    def __init__(self, size: int = 96, channels: int = 256, factor: float = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.size = integer(at_least=1).check("size", size)
        self.channels = integer(at_least=1).check("channels", channels)
        self.factor = one_of(FACTORS).check("factor", factor)

    def build(self, grid_shape: Shape) -> None:
        policy, inner = self.dtype_policy, (None, None, None, self.size)
        self.projection = Conv2D(self.size, 1, dtype=policy, name="projection")
        self.projection.build((None, None, None, grid_shape[-1]))
        if self.factor > 1:
            options = {"data_format": "channels_last", "dtype": policy, "name": "resize"}
            self.resize = keras.layers.Conv2DTranspose(self.size, self.factor, self.factor, **options)
            sharded(self.resize, FREE).build(inner)
        elif self.factor < 1:
            stride = round(1 / self.factor)
            self.resize = Conv2D(self.size, 3, strides=stride, dtype=policy, name="resize")
            self.resize.build(inner)
        self.convolution = Conv2D(
            self.channels, 3, padding="same", use_bias=False, dtype=policy, name="convolution"
        )
        self.convolution.build(inner)

    def call(self, grid: Tensor) -> Tensor:
        x = self.projection(grid)
        if self.factor < 1:
            # Padding "same" of a convolution with strides depends on the size.
            x = ops.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        if self.factor != 1:
            x = self.resize(x)
        return self.convolution(x)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, *sides, _ = input_shape
        sides = [side and int(np.ceil(side * self.factor)) for side in sides]
        return (batch, *sides, self.channels)


@keras.saving.register_keras_serializable("keras_vit")
class ResidualUnit(Configurable):
    """Two convolutions, each after a ReLU, whose output is added to their input.

    Args:
        norm: "batch" for a batch norm after each convolution, which then has no bias, or None.

    Input and output shape: (batch, height, width, channels).

    Raises:
        ValueError: for an unknown norm.

    Example:
        >>> ResidualUnit()(np.zeros((1, 2, 3, 8))).shape
        TensorShape([1, 2, 3, 8])

    Source: Ranftl et al. 2021 (DPT), figure 1, "Residual Conv Unit".
    """

    def __init__(self, norm: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.norm = one_of(("batch", None)).check("norm", norm)

    def build(self, input_shape: Shape) -> None:
        policy, channels = self.dtype_policy, input_shape[-1]
        self.convolutions, self.norms = [], []
        for i in range(2):
            options = {"use_bias": self.norm is None, "dtype": policy, "name": f"convolution_{i}"}
            self.convolutions.append(Conv2D(channels, 3, padding="same", **options))
            if self.norm:
                self.norms.append(batch_norm(policy, f"norm_{i}"))
        for layer in (*self.convolutions, *self.norms):
            layer.build((None, None, None, channels))

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        residual = x
        for i, layer in enumerate(self.convolutions):
            x = layer(ops.relu(x))
            if self.norm:
                x = self.norms[i](x, training=training)
        return x + residual


@keras.saving.register_keras_serializable("keras_vit")
class FusionBlock(AlignedResize):
    """Add a map to a coarser one that has its size already, and enlarge the sum.

    Args:
        residual: Whether there is a map to add.
        norm: Of the residual units, "batch" or None.

    Call arguments:
        x: (batch, height, width, channels).
        target: (batch, target height, target width, …), a map whose size the output gets, of which only the
            shape is used; None for twice the size of `x`.
        addend: The map to add, (batch, any height, any width, channels), which is resized to `x`.
        training: Whether batch norms use the batch.

    Output shape: (batch, target height, target width, channels).

    Raises:
        ValueError: for an unknown norm; for a call without an addend if `residual` is true.

    Example:
        >>> x = np.zeros((1, 2, 3, 8))
        >>> FusionBlock()(x, None, x).shape
        TensorShape([1, 4, 6, 8])

    Source: Ranftl et al. 2021 (DPT), figure 1, "Fusion".
    """

    def __init__(self, residual: bool = True, norm: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.residual = boolean.check("residual", residual)
        self.norm = one_of(("batch", None)).check("norm", norm)

    def build(self, x_shape: Shape, **shapes: Shape | None) -> None:
        policy, shape = self.dtype_policy, (None, None, None, x_shape[-1])
        if self.residual:
            self.unit_0 = ResidualUnit(self.norm, dtype=policy, name="unit_0")
            self.unit_0.build(shape)
        self.unit_1 = ResidualUnit(self.norm, dtype=policy, name="unit_1")
        self.unit_1.build(shape)
        self.projection = Conv2D(x_shape[-1], 1, dtype=policy, name="projection")
        self.projection.build(shape)

    def call(
        self,
        x: Tensor,
        target: Tensor | None = None,
        addend: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        if self.residual:
            if addend is None:
                raise ValueError("a FusionBlock with residual=True adds a map to x; got addend=None")
            if x.shape[1:3] != addend.shape[1:3] or None in x.shape[1:3]:
                addend = ops.cast(resize(addend, ops.shape(x)[1:3]), x.dtype)
            x = x + self.unit_0(addend, training=training)
        x = self.unit_1(x, training=training)
        # The linear layer and the interpolation can be exchanged: this order has a fourth of the positions.
        return super().call(self.projection(x), target)


@keras.saving.register_keras_serializable("keras_vit")
class PixelValues(Configurable):
    """The values of pixels, from numbers of any size.

    Args:
        activation: "sigmoid", "exp", "relu" or "linear".
        scale: A factor after it.

    Input and output shape: any; the output is float32.

    Raises:
        ValueError: for an unknown activation.

    Example:
        >>> PixelValues("sigmoid", 20.0)(np.zeros((1, 1, 1, 1))).numpy().item()
        10.0

    Source: Yang et al. 2024 (Depth Anything V2, arXiv 2406.09414), for "sigmoid" and "relu"; Lin et al. 2025
    (Depth Anything 3, arXiv 2511.10647), for "exp".
    """

    def __init__(self, activation: str = "linear", scale: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.activation = one_of(VALUES).check("activation", activation)
        self.scale = number(above=0).check("scale", scale)

    def call(self, x: Tensor) -> Tensor:
        x = VALUES[self.activation](ops.cast(x, "float32"))
        return x if self.scale == 1 else x * self.scale

    def compute_output_spec(self, x: Tensor) -> Tensor:
        return keras.KerasTensor(x.shape, "float32")


@keras.saving.register_keras_serializable("keras_vit")
class DepthBins(Configurable):
    """The expected depth, from scores of depths at equal distances.

    The scores are resized to four times the resolution. The weight of a depth is its score, 0 where that is
    negative, plus 0.1; the weights are divided by their sum.

    Args:
        min_depth: The first depth.
        max_depth: The last one.

    Input shape: (batch, height, width, depths).
    Output shape: (batch, 4 · height, 4 · width, 1), float32, in [min_depth, max_depth].

    Raises:
        ValueError: unless 0 < min_depth < max_depth.

    Example:
        >>> DepthBins(1.0, 3.0)(np.array([[[[0.0, 0.1, 1e6]]]])).numpy()[0, 0, 0].round(3).tolist()
        [3.0]

    Source: Oquab et al. 2023 (DINOv2), section 7.4; Bhat et al. 2021 (AdaBins, arXiv 2011.14141) for depth as
    an expectation.
    """

    def __init__(self, min_depth: float = 0.001, max_depth: float = 10.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.min_depth = number(above=0).check("min_depth", min_depth)
        self.max_depth = number(above=self.min_depth).check("max_depth", max_depth)

    def call(self, scores: Tensor) -> Tensor:
        height, width = (_LOGITS_SCALE * side for side in ops.shape(scores)[1:3])
        weights = ops.relu(resize(scores, (height, width))) + _BIN_OFFSET
        depths = np.linspace(self.min_depth, self.max_depth, scores.shape[-1], dtype="float32")
        # By the mean and not the sum, which is large in float16.
        weights = weights / ops.mean(weights, axis=-1, keepdims=True)
        # No matmul, of which GPUs and TPUs would round the depths.
        return ops.mean(ops.cast(weights, "float32") * depths, axis=-1, keepdims=True)

    def compute_output_spec(self, scores: Tensor) -> Tensor:
        batch, *sides, _ = scores.shape
        return keras.KerasTensor((batch, *(side and _LOGITS_SCALE * side for side in sides), 1), "float32")
