"""Pixels as colors of a palette: each pixel is embedded by the vector of its nearest color."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import keras
from keras import ops

from keras_vit.layers.configurable import Configurable
from keras_vit.layers.hints import Sharding
from keras_vit.rules import integer
from keras_vit.types import Shape, Tensor


def nearest_colors(
    images: Tensor, palette: Tensor, numpy: ModuleType = ops, math: ModuleType = ops
) -> Tensor:
    """The nearest color of a palette for each pixel, by the squared distance.

    Args:
        images: float32 (…, channels).
        palette: float32 (colors, channels), in the same units.
        numpy, math: Modules with the functions of NumPy's names, and with `top_k`.

    Returns:
        int (…,) from 0 to colors - 1; the first of several nearest.

    Example:
        >>> nearest_colors(np.array([[0.1], [0.8]]), np.array([[0.0], [1.0]])).numpy().tolist()
        [0, 1]

    Source: Chen et al. 2020, section 3.2; `ImageGPTImageProcessor` of transformers.
    """
    # GPUs and TPUs would round the pixels of a matmul. ONNX and LiteRT have no operations for Keras's argmin
    # on TensorFlow, which compares bits.
    channels = range(palette.shape[-1])
    distances = sum(numpy.square(images[..., i : i + 1] - palette[:, i]) for i in channels)
    return math.top_k(-distances, 1)[1][..., 0]


@keras.saving.register_keras_serializable("keras_vit")
class PaletteEmbedding(Configurable):
    """A learned vector for each pixel, that of the nearest color of a palette.

    Args:
        hidden_size: Size of a vector.
        colors: Number of colors in the palette, a weight that is not trained; it starts random in [-1, 1].

    Input shape: (batch, height, width, channels), in the palette's units.
    Output shape: (batch, height, width, hidden_size).

    Raises:
        ValueError: for sizes that are no positive ints.

    Example:
        >>> PaletteEmbedding(hidden_size=8, colors=16)(np.zeros((1, 4, 4, 3))).shape
        TensorShape([1, 4, 4, 8])

    Source: Chen et al. 2020, "Generative Pretraining from Pixels" (iGPT), section 3.2.
    """

    sharding = Sharding({"table": -1}, "parts")

    def __init__(self, hidden_size: int, colors: int, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)  # of the images
        self.hidden_size = integer(at_least=1).check("hidden_size", hidden_size)
        self.colors = integer(at_least=1).check("colors", colors)

    def build(self, input_shape: Shape) -> None:
        self.palette = self.add_weight(
            shape=(self.colors, input_shape[-1]),
            initializer=keras.initializers.RandomUniform(-1.0, 1.0),
            trainable=False,
            autocast=False,  # 16 bits could not distinguish near colors.
            name="palette",
        )
        self.table = self.add_embeddings("table", (self.colors, self.hidden_size))

    def call(self, images: Tensor) -> Tensor:
        return self.embed(nearest_colors(ops.cast(images, "float32"), self.palette))

    def embed(self, ids: Tensor) -> Tensor:
        """The vectors of colors: int (…,) to (…, hidden_size)."""
        return ops.take(ops.cast(self.table, self.compute_dtype), ids, axis=0)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:-1], self.hidden_size)
