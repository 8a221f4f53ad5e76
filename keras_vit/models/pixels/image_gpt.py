"""iGPT: predict each pixel's color from the pixels before it, and sample images pixel by pixel."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.dense import Dense
from keras_vit.layers.hints import as_head
from keras_vit.layers.palette_embedding import nearest_colors
from keras_vit.models.backbones import check_class
from keras_vit.models.classifying import check_finite
from keras_vit.models.encoder_model import Pretrainer, as_encoder
from keras_vit.models.features import normalized
from keras_vit.models.pixels.pixel_transformer import PixelTransformer
from keras_vit.models.vit.geometry import is_dynamic
from keras_vit.preprocessing.tensors import backend_of
from keras_vit.rules import integer, number, optional
from keras_vit.types import Array, Images, Tensor

if TYPE_CHECKING:
    from keras_vit.models.vit.vision_transformer import VisionTransformer

_MASKED = -1e9  # the logit of a color that is not among the `top_k`
_COLDEST = 1e-30  # float32 has no reciprocal of a temperature far below


@keras.saving.register_keras_serializable("keras_vit")
class ImageGPT(Pretrainer):
    """A generative model of images: the color of each pixel, row by row, from the pixels before it.

    Args:
        encoder: A PixelTransformer with a `palette`, `causal=True` and no layers after its tokens. Its
            layers are shared, so training trains it. Or its constructor arguments.
        dtype: A dtype policy for an encoder that is given by its arguments.
        name, trainable: As of any Keras model.

    Input: `images`, float32 (batch, height, width, channels) as for the encoder.
    Output: float32 (batch, height · width, colors), logits of the color of each pixel. The last layer,
    `prediction`, starts at zero. The labels for `fit` are `model.color_ids(images)`.

    Raises:
        ValueError: for an encoder without a palette, that is not causal, has rotary or relative positions, or
            takes images of any size.

    Example:
        >>> encoder = keras_vit.PixelTransformer(
        ...     4, 1, 24, 2, 48, 3, pooling="gap", palette=16, causal=True, norm="rms")
        >>> model = keras_vit.ImageGPT(encoder)
        >>> model(np.zeros((1, 4, 4, 3))).shape, model.sample(2, seed=0).shape
        (TensorShape([1, 16, 16]), (2, 4, 4, 3))

    Source: Chen et al. 2020, "Generative Pretraining from Pixels"; `model.py` of openai/image-gpt.
    """

    def __init__(
        self,
        encoder: VisionTransformer | Mapping[str, Any],
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
        trainable: bool = True,
    ) -> None:
        encoder = as_encoder(encoder, dtype)
        check_class(encoder, PixelTransformer, "a PixelTransformer as encoder")
        if encoder.palette is None or not encoder.causal or is_dynamic(encoder.image_size):
            raise ValueError(
                "expected an encoder of one image size with a palette and causal=True; got image_size="
                f"{encoder.image_size}, palette={encoder.palette} and causal={encoder.causal}"
            )
        if encoder.rotary is not None or encoder.relative_positions:
            raise ValueError(
                "expected an encoder without rotary or relative positions, whose keys are kept for the next "
                f"pixels; got rotary={encoder.rotary} and relative_positions={encoder.relative_positions}"
            )
        tokens = encoder.feature_extractor("tokens").output["tokens"]  # (b, n, d)
        policy = encoder.dtype_policy
        prediction = Dense(
            encoder.palette,
            use_bias=False,
            kernel_initializer="zeros",
            dtype=policy.variable_dtype,  # losses need float32 under mixed precision
            name="prediction",
        )
        logits = as_head(prediction)(tokens)  # (b, n, k)
        super().__init__(encoder.input, logits, name=name, trainable=trainable)
        self.dtype_policy = policy
        self.encoder = encoder

    @property
    def palette(self) -> np.ndarray:
        """float32 array (colors, channels), the colors in the units of the model's input."""
        return ops.convert_to_numpy(self.encoder.get_layer("patch_embedding").palette)

    def color_ids(self, images: Tensor) -> Tensor:
        """The number of each pixel's nearest color: int32 (batch, height · width) of model input."""
        return color_ids(images, self.palette)

    def images_of(self, ids: Tensor) -> np.ndarray:
        """The images of colors.

        Args:
            ids: int (batch, height · width).

        Returns:
            uint8 (batch, height, width, 3).
        """
        pixels = self.encoder.preprocessing.colors(self.palette[np.asarray(ids)])
        shape = (-1, *self.encoder.image_size, 3)
        return np.round(255 * pixels).astype("uint8").reshape(shape)

    def complete(
        self,
        images: Images,
        rows: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        seed: int = 0,
        batch_size: int = 32,
        value_range: tuple[float, float] | None = None,
    ) -> np.ndarray:
        """Continue images below their first rows.

        Args:
            images: What `model.encoder.preprocessing` takes, such as an array, a path, or a list.
            rows: Number of rows of the model's input that are kept; their pixels get colors of the palette.
            temperature: Divides the logits: below 1 for the more probable colors, above for more variety.
            top_k: Sample among the most probable colors only, this many; None for all.
            seed: An int, which determines the completions.
            batch_size: Number of images that are computed at a time.
            value_range: (lowest, highest) possible value of float images; None for (0, 1).

        Returns:
            uint8 (images, height, width, 3).

        Raises:
            ValueError: for a number of rows that the images do not have, a temperature or batch size that is
                not positive, or a `top_k` that the palette does not have; if an image cannot be read.

        Example:
            >>> encoder = {"image_size": 4, "patch_size": 1, "palette": 16, "causal": True, "pooling": "gap"}
            >>> encoder |= {"hidden_size": 24, "num_layers": 2, "mlp_dim": 48, "num_heads": 3}
            >>> model = keras_vit.ImageGPT(encoder)
            >>> model.complete(np.zeros((3, 4, 4, 3)), rows=2, top_k=8).shape
            (3, 4, 4, 3)
        """
        height, width = self.input.shape[1:3]
        integer(at_least=0).check("rows", rows)
        integer(at_least=1).check("batch_size", batch_size)
        if rows > height:
            raise ValueError(f"rows must be at most {height}, the height of the images; got {rows}")
        batches = self.encoder.preprocessing.batches(images, batch_size, value_range)
        ids = [ops.convert_to_numpy(self.color_ids(batch)) for batch in batches]
        return self._sampled(ids, rows * width, temperature, top_k, seed)

    def sample(
        self,
        count: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        seed: int = 0,
        batch_size: int = 32,
    ) -> np.ndarray:
        """New images.

        Args:
            count: Their number.
            temperature, top_k, seed, batch_size: As for `complete`.

        Returns:
            uint8 (count, height, width, 3).

        Raises:
            ValueError: as `complete`.
        """
        integer(at_least=0).check("count", count)
        integer(at_least=1).check("batch_size", batch_size)
        sizes = [min(batch_size, count - start) for start in range(0, count, batch_size)]
        ids = [np.zeros((size, self.output.shape[1]), "int32") for size in sizes]
        return self._sampled(ids, 0, temperature, top_k, seed)

    def _sampled(
        self, batches: Sequence[np.ndarray], known: int, temperature: float, top_k: int | None, seed: int
    ) -> np.ndarray:
        """The images of colors, of which the first `known` of each are kept and the others sampled."""
        number(above=0).check("temperature", temperature)
        optional(integer(at_least=1)).check("top_k", top_k)
        colors = self.encoder.palette
        if top_k is not None and top_k > colors:
            raise ValueError(f"top_k must be at most {colors}, the colors of the palette; got {top_k}")
        rng, completed = np.random.default_rng(seed), [np.zeros((0, self.output.shape[1]), "int32")]
        for ids in batches:
            inputs = {
                "ids": ids,
                "uniform": rng.random(ids.shape, "float32"),
                "known": np.full((len(ids), 1), known, "int32"),
                "temperature": np.full((len(ids), 1), temperature, "float32"),
                "top_k": np.full((len(ids), 1), top_k or colors, "int32"),
            }
            outputs = {name: np.asarray(value) for name, value in self._predict(inputs).items()}
            check_finite(outputs["logit_sums"])
            completed.append(outputs["ids"])
        return self.images_of(np.concatenate(completed))

    @functools.cached_property
    def _predict(self) -> Callable[[dict[str, np.ndarray]], dict[str, Array]]:
        sampler = _Sampler(self)
        sampler.jit_compile = True  # A step's operations are small, and XLA updates the caches in place.
        return sampler.predict_on_batch  # Keras would save a model that is an attribute.

    def caches(self, batch: int) -> list[tuple[Tensor, Tensor]]:
        """Empty keys and values of each block, for the first `step`, of a batch of this size."""
        encoder, dtype = self.encoder, self.dtype_policy.compute_dtype
        shape = (batch, encoder.num_heads, self.output.shape[1], encoder.hidden_size // encoder.num_heads)  # type: ignore[operator]
        return [(ops.zeros(shape, dtype), ops.zeros(shape, dtype)) for _ in range(encoder.num_layers)]  # type: ignore[arg-type]

    def step(
        self, previous: Tensor, index: Tensor, caches: Sequence[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """The logits of one pixel, from the keys and values of the pixels before it.

        Args:
            previous: int (batch,), the color of the pixel before it; of the first one any.
            index: The pixel's number, a scalar.
            caches: The keys and values of each block, as this method or `caches` returned them.

        Returns:
            (logits float32 (batch, colors), caches). The logits are the model's at this pixel.
        """
        encoder = self.encoder
        embedding, positions, start = (
            encoder.get_layer(name) for name in ("patch_embedding", "position_embedding", "start_token")
        )
        size = encoder.hidden_size
        x = embedding.embed(ops.reshape(previous, (-1, 1, 1)))  # (b, 1, 1, d)
        if encoder.patch_norm:
            x = encoder.get_layer("patch_norm")(x)
        start = ops.cast(start.token, embedding.compute_dtype)
        x = ops.where(index == 0, start, ops.reshape(x, (-1, 1, size)))  # (b, 1, d)
        # Of the grid, which a table of another size is resized to, only the shape is used.
        grid = [] if encoder.position_grid is None else [ops.zeros((1, *encoder.image_size, 1))]
        table = positions(ops.zeros((1, self.output.shape[1], size), x.dtype), *grid)
        x = x + ops.take(table, ops.reshape(index, (1,)), axis=1)
        updated = []
        for i, cache in enumerate(caches):
            x, cache = encoder.get_layer(f"encoder_block_{i}").step(x, cache, index)
            updated.append(cache)
        logits = self.get_layer("prediction")(normalized(encoder, x))  # (b, 1, k)
        return ops.reshape(logits, (-1, encoder.palette)), updated


def color_ids(images: Tensor, palette: Array) -> Tensor:
    """The number of each pixel's nearest color.

    Args:
        images: float (batch, height, width, channels), of `tf.data` or of Keras's backend.
        palette: (colors, channels), in the same units.

    Returns:
        int32 (batch, height · width), row by row.

    Example:
        >>> color_ids(np.full((1, 2, 2, 1), 0.9), np.array([[0.0], [1.0]])).numpy().tolist()
        [[1, 1, 1, 1]]
    """
    backend = backend_of(images)  # In tf.data it is TensorFlow, whatever Keras runs on.
    images, palette = (backend.cast(x, "float32") for x in (images, palette))
    ids = backend.cast(nearest_colors(images, palette, backend.numpy, backend.math), "int32")
    batch, height, width = backend.shape(ids)
    return backend.numpy.reshape(ids, (batch, height * width))


class _Sampler(keras.Model):
    """The loop over the pixels, which `predict_on_batch` compiles."""

    def __init__(self, model: ImageGPT) -> None:
        super().__init__(name=f"{model.name}_sampler")
        self.model = model

    def call(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        first_ids, uniform, known = (inputs[name] for name in ("ids", "uniform", "known"))
        batch, pixels = ops.shape(first_ids)
        numbers = ops.expand_dims(ops.arange(pixels), 0)  # (1, n)

        def pixel(index: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            ids, previous, sums, caches = state
            logits, caches = self.model.step(previous, index, caches)
            at = numbers == index
            random = ops.sum(ops.where(at, uniform, 0.0), axis=1, keepdims=True)
            new = sampled_color(logits, random, inputs["temperature"], inputs["top_k"])
            ids = ops.where(at & (numbers >= known), ops.expand_dims(new, 1), ids)
            sums = sums + ops.sum(0.0 * logits, axis=1)  # NaN if a logit is not finite
            return ids, ops.sum(ops.where(at, ids, 0), axis=1), sums, caches

        ids, previous = ops.cast(first_ids, "int32"), ops.zeros((batch,), "int32")
        state = (ids, previous, ops.zeros((batch,)), self.model.caches(batch))
        ids, _, sums, _ = ops.fori_loop(0, pixels, pixel, state)
        return {"ids": ids, "logit_sums": sums}


def sampled_color(logits: Tensor, uniform: Tensor, temperature: Tensor, top_k: Tensor) -> Tensor:
    """Sample a color by its probability.

    Args:
        logits: (batch, colors).
        uniform: (batch, 1), random numbers in [0, 1).
        temperature: (batch, 1), which divides the logits.
        top_k: int (batch, 1): the number of most probable colors among which is sampled.

    Returns:
        int32 (batch,).

    Example:
        >>> logits, one = np.log([[0.5, 0.3, 0.2]]), np.ones((1, 1))
        >>> [int(sampled_color(logits, u * one, one, np.array([[2]]))[0]) for u in (0.0, 0.6, 0.7, 0.99)]
        [0, 0, 1, 1]
    """
    colors = logits.shape[-1]
    lowest = ops.take_along_axis(ops.sort(logits, axis=-1), colors - ops.cast(top_k, "int32"), axis=-1)
    temperature = ops.maximum(ops.cast(temperature, logits.dtype), _COLDEST)
    # The best color gets 0, so that at no temperature the masked ones are above it.
    divided = (logits - ops.max(logits, axis=-1, keepdims=True)) / temperature
    logits = ops.where(logits < lowest, _MASKED, divided)
    below = ops.cumsum(ops.softmax(logits), axis=-1)
    # Rounded up, the number could exceed the probability of all.
    limit = ops.minimum(ops.cast(uniform, below.dtype), 1 - 1e-6) * below[:, -1:]
    return ops.sum(ops.cast(below <= limit, "int32"), axis=-1)
