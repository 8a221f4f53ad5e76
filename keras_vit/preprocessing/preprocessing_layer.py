"""A `Preprocessing` as a Keras layer."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops
from keras.src.utils.jax_utils import is_in_jax_tracing_scope

from keras_vit.lazy import LazyModule
from keras_vit.preprocessing.image_preprocessing import Preprocessing
from keras_vit.preprocessing.inputs import check_channels, with_channels
from keras_vit.preprocessing.tensors import backend_of, is_tensorflow
from keras_vit.preprocessing.value_range import (
    check_inside,
    checked_range,
    is_inside,
    range_of,
    requirement,
    to_255,
)
from keras_vit.types import Shape, Tensor

tf = LazyModule("tensorflow")  # which another backend does without


@keras.saving.register_keras_serializable("keras_vit")
class PreprocessingLayer(keras.layers.Layer):
    """A `Preprocessing` as a layer, to be put before a model and saved with it.

    It has no weights. Whatever its dtype policy, it computes in float32 and casts its output.

    Args:
        preprocessing: A `Preprocessing`, or its configuration.
        value_range: (lowest, highest) possible value of float images; None: (0, 1). The range of
            uint8 images is always (0, 255).

    Call arguments:
        images: A tensor (height, width, channels) or (batch, height, width, channels), uint8 or float.
            Declare uint8 images as such, `keras.Input((None, None, 3), dtype="uint8")`: without
            `keras.Input` a `keras.Sequential` casts them to float32 first, for which value_range is
            (0, 255).

    Output: float of the same rank, at `preprocessing.image_size`, as the model reads it.

    Raises:
        ValueError: for a wrong shape or dtype, or floats outside `value_range`; in a graph as
            `Preprocessing` does.

    Example:
        >>> layer = PreprocessingLayer(Preprocessing(16), value_range=(0, 255))
        >>> layer(np.full((2, 20, 30, 3), 255.0)).numpy().min().item()
        1.0

    Source: as of `Preprocessing`.
    """

    def __init__(
        self, preprocessing: Preprocessing, value_range: tuple[float, float] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(autocast=False, **kwargs)
        if isinstance(preprocessing, dict):
            preprocessing = Preprocessing(**preprocessing)
        self.preprocessing = preprocessing
        self.value_range = checked_range(value_range)
        # XLA on TensorFlow cannot resize with "bicubic" or antialias, and drops assertions.
        self.supports_jit = keras.backend.backend() != "tensorflow"

    def __call__(self, images: Any, **kwargs: Any) -> Any:
        if is_tensorflow(images) and not ops.is_tensor(images):
            return self.call(images)  # In tf.data on another backend Keras would convert to its tensors.
        return super().__call__(images, **kwargs)

    def call(self, images: Tensor) -> Tensor:
        if is_tensorflow(images) and not isinstance(images, tf.Tensor | tf.Variable):
            raise ValueError(
                f"images must be a dense tensor of one image size; got a {type(images).__name__}"
            )
        self.compute_output_shape(images.shape)
        backend, channels = backend_of(images), self.preprocessing.channels
        dtype = keras.backend.standardize_dtype(images.dtype)
        low, high = range_of(dtype, self.value_range)
        pixels = backend.cast(images, "float32")
        unchecked = dtype == "uint8" or 0 in images.shape
        invalid = 0.0 if unchecked else self._check_range(pixels)
        pixels = with_channels(to_255(pixels, low, high), channels, backend.numpy)
        output = self.preprocessing.normalize(self.preprocessing.resized(pixels)) + invalid
        return backend.cast(output, self.compute_dtype)

    def _check_range(self, pixels):
        """Refuse values outside the range; a graph gets NaN for them, to be added to the output, else 0."""
        backend = backend_of(pixels)
        lowest, highest = backend.numpy.min(pixels), backend.numpy.max(pixels)
        inside = is_inside(self.value_range, lowest, highest)
        if is_tensorflow(pixels) and not hasattr(pixels, "numpy"):
            message = f"{requirement(self.value_range)}; got values from", lowest, "to", highest
            tf.debugging.Assert(inside, message)
        elif not is_in_jax_tracing_scope(pixels):
            check_inside(self.value_range, float(lowest), float(highest))
            return 0.0
        return backend.numpy.where(inside, 0.0, float("nan"))

    def compute_output_shape(self, shape: Shape) -> Shape:
        """The shape of the output.

        Raises:
            ValueError: unless images can have this shape.
        """
        if getattr(shape, "rank", 4) is None or len(shape) not in (3, 4) or shape[-1] is None:
            raise ValueError(
                "expected a tensor of images ([batch,] height, width, channels) of known rank and channels; "
                f"got the shape {shape}"
            )
        *batch, height, width, _ = shape
        check_channels(tuple(shape), self.preprocessing.channels)
        return (*batch, *(self.preprocessing.image_size or (height, width)), self.preprocessing.channels)

    def get_config(self) -> dict[str, Any]:
        config = {"preprocessing": self.preprocessing.get_config(), "value_range": self.value_range}
        return {**super().get_config(), **config}
