"""Boxes and objectness from patch tokens."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.configurable import Configurable
from keras_vit.layers.dense import CompositeLayer, Dense
from keras_vit.layers.hints import FREE
from keras_vit.layers.mlp import ACTIVATIONS
from keras_vit.rules import integer, one_of
from keras_vit.types import ArrayOrTensor, Shape, Tensor

_SMALLEST = 1e-4  # added to a fraction and to its complement before their logarithms


@keras.saving.register_keras_serializable("keras_vit")
class PatchMlp(CompositeLayer):
    """An MLP with two hidden layers of the tokens' size, whose last layer begins with zeros.

    Args:
        units: Number of outputs.
        activation: Of the hidden layers, as in `MlpBlock`.

    Input shape: (batch, patches, channels).
    Output shape: (batch, patches, units), float32.

    Raises:
        ValueError: for an unknown activation.

    Example:
        >>> PatchMlp(1)(np.zeros((1, 4, 8))).shape
        TensorShape([1, 4, 1])

    Source: `PredictorMLP` of OWL-ViT's `layers.py`.
    """

    def __init__(self, units: int = 1, activation: str = "gelu_erf", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = integer(at_least=1).check("units", units)
        self.activation = one_of(ACTIVATIONS).check("activation", activation)

    def build(self, tokens_shape: Shape) -> None:
        channels = tokens_shape[-1]
        self.hidden = [
            Dense(channels, ACTIVATIONS[self.activation], dtype=self.dtype_policy, name=f"dense_{number}")
            for number in range(2)
        ]
        float32 = self.dtype_policy.variable_dtype
        self.out = Dense(self.units, kernel_initializer="zeros", dtype=float32, name="dense_2")
        for layer in (*self.hidden, self.out):
            layer.sharding = FREE
            layer.build((None, None, channels))

    def call(self, tokens: Tensor) -> Tensor:
        x = tokens
        for layer in self.hidden:
            x = layer(x)
        return self.out(x)

    def compute_output_spec(self, tokens: Tensor) -> Tensor:
        return keras.KerasTensor((*tokens.shape[:2], self.units), "float32")


@keras.saving.register_keras_serializable("keras_vit")
class BoxHead(PatchMlp):
    """A box for each patch: the output of a `PatchMlp`, added to the patch's own box.

    A new head predicts the box of each patch.

    Args:
        activation: Of the hidden layers, as in `MlpBlock`.

    Call arguments:
        tokens: (batch, patches, channels), row by row.
        grid: (batch, rows, columns, …) of the patches, of which only the shape is used.

    Output shape: (batch, patches, 4), float32 in (0, 1): the center's x and y, the width and the height, as
    fractions of the image's sides.

    Raises:
        ValueError: for an unknown activation.

    Example:
        >>> head, grid = BoxHead(), np.zeros((1, 2, 2, 8), "float32")
        >>> head(grid.reshape(1, 4, 8), grid).numpy()[0, 0].round(2).tolist()
        [0.5, 0.5, 0.5, 0.5]

    Source: Minderer et al. 2022 (OWL-ViT, arXiv 2205.06230), section 3.1; `compute_box_bias` of its code,
    which takes the lower right corner of a patch for the center of its box.
    """

    def __init__(self, activation: str = "gelu_erf", **kwargs: Any) -> None:
        super().__init__(4, activation, **kwargs)

    def build(self, tokens_shape: Shape, grid_shape: Shape | None = None) -> None:
        super().build(tokens_shape)

    # It is called with a grid, which the MLP alone does not need.
    def call(self, tokens: Tensor, grid: Tensor) -> Tensor:  # type: ignore[override]
        return ops.sigmoid(super().call(tokens) + patch_boxes(*ops.shape(grid)[1:3]))

    def compute_output_spec(self, tokens: Tensor, grid: Tensor) -> Tensor:  # type: ignore[override]
        return super().compute_output_spec(tokens)

    def get_config(self) -> dict[str, Any]:
        return {name: value for name, value in super().get_config().items() if name != "units"}


def patch_boxes(rows: int | Tensor, columns: int | Tensor) -> ArrayOrTensor:
    """What `BoxHead` adds to the output of its MLP: the logits of the box of each patch.

    Args:
        rows, columns: Of the grid of patches, ints or scalar tensors.

    Returns:
        float32 (1, rows · columns, 4).

    Example:
        >>> [round(x, 2) for x in patch_boxes(1, 2)[0, 1].tolist()]
        [9.21, 9.21, 0.0, 9.21]
    """
    xp = np if isinstance(rows, int) and isinstance(columns, int) else ops
    number = xp.arange(rows * columns)
    height, width = (ops.cast(side, "float32") if xp is ops else np.float32(side) for side in (rows, columns))
    cast = (lambda x: ops.cast(x, "float32")) if xp is ops else np.float32
    x, y = cast(number % columns + 1) / width, cast(number // columns + 1) / height
    fractions = xp.stack([x, y, 0 * x + 1 / width, 0 * y + 1 / height], axis=1)[None]
    # ONNX has no log1p. The sum is exact near an edge, so that it rounds as the authors' log1p does.
    return xp.log(fractions + _SMALLEST) - xp.log(1 + (_SMALLEST - fractions))


@keras.saving.register_keras_serializable("keras_vit")
class ConcatenateDetections(Configurable):
    """Boxes and logits in one tensor.

    Call arguments:
        boxes: (batch, patches, 4).
        logits: (batch, patches, classes).
        objectness: (batch, patches, 1), which is part of the model without being part of its output, or None.

    Output shape: (batch, patches, 4 + classes), float32.

    Example:
        >>> ConcatenateDetections()(np.zeros((1, 9, 4)), np.zeros((1, 9, 3)), np.zeros((1, 9, 1))).shape
        TensorShape([1, 9, 7])
    """

    sharding = FREE

    def call(self, boxes: Tensor, logits: Tensor, objectness: Tensor | None = None) -> Tensor:
        boxes, logits = ops.cast(boxes, "float32"), ops.cast(logits, "float32")
        return ops.concatenate([boxes, logits], axis=-1)

    def compute_output_spec(self, boxes: Tensor, logits: Tensor, objectness: Tensor | None = None) -> Tensor:
        return keras.KerasTensor((*boxes.shape[:2], 4 + logits.shape[-1]), "float32")


@keras.saving.register_keras_serializable("keras_vit")
class MergeClassToken(Configurable):
    """Multiply the patch tokens by the class token.

    Call arguments:
        tokens: (batch, 1 + others + patches, channels), the class token first.
        patches: (batch, patches, channels).

    Output shape: As of the patches.

    Example:
        >>> tokens = np.array([[[2.0], [3.0], [5.0]]])
        >>> MergeClassToken()(tokens, tokens[:, 1:]).numpy().ravel().tolist()
        [6.0, 10.0]

    Source: "mul-ln" of OWL-ViT's `layers.py`, without the norm.
    """

    sharding = FREE

    def call(self, tokens: Tensor, patches: Tensor) -> Tensor:
        return patches * tokens[:, :1]

    def compute_output_spec(self, tokens: Tensor, patches: Tensor) -> Tensor:
        return keras.KerasTensor(patches.shape, self.compute_dtype)
