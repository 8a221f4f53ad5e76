"""Images or paths to what a model reads: decode, resize, scale."""

import dataclasses
import math
import numbers
import os
import stat
import struct
import sys
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops
from keras.src.utils.backend_utils import DynamicBackend  # what Keras's own layers use in tf.data: not public
from keras.src.utils.jax_utils import is_in_jax_tracing_scope

RESIZES = ("squash", "crop")
LUMA = (0.299, 0.587, 0.114)  # how bright red, green and blue look (ITU-R BT.601)
INTERPOLATIONS = ("bilinear", "bicubic", "nearest")
MAX_PIXELS = os.environ.get("KERAS_VIT_MAX_PIXELS", str(2**28 // 3))
if not (MAX_PIXELS.isdecimal() and int(MAX_PIXELS)):
    raise ValueError(f"KERAS_VIT_MAX_PIXELS must be a positive int; got {MAX_PIXELS!r}")
MAX_PIXELS = int(MAX_PIXELS)  # the one bound on images, wherever they are decoded
MAX_BYTES = 3 * MAX_PIXELS  # of a file: as many as its pixels may have
MAX_ENLARGEMENT = 16  # times the pixels kept; a larger resized image is not made whole before it is cropped
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF")  # Pillow's names
# Of BMP files those that TensorFlow decodes: with a palette of 256 colours or in full colour.
BMP_WANTED = "a BMP file must have 8, 24 or 32 bits a pixel and no compression"
BMP_MASKED, BMP_MASKS = 3, bytes((0, 0, 255, 0, 0, 255, 0, 0, 255, 0, 0, 0))  # masks that change nothing
# Channel counts of images that a model of 1 or 3 channels reads: grey or RGB, with an alpha channel.
READ_AS = {1: (1, 2, 3, 4), 3: (1, 3, 4)}
NARROWEST = 16  # A last axis below it is taken for channels, unless the images are square.
UNIT_RANGE = (0.0, 1.0)
RANGE_TOLERANCE = 1e-3  # of the range's width: an earlier resize or augmentation may have rounded


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """How images were prepared when the weights were trained, to be done again when they are used.

    Called with images it gives float32 (batch, height, width, channels): resized, then
    (pixel / 255 - mean) / std.

    Args:
        image_size: (height, width) or one int; None keeps the images' own size.
        resize: "squash" (the official models: straight to `image_size`) or "crop" (the shorter
            side to `image_size` / `crop_fraction`, then the centre).
        crop_fraction: With "crop": the share of the resized image's shorter side that the centre
            crop keeps, in (0, 1].
        interpolation: "bilinear", "bicubic" or "nearest".
        antialias: Whether to smooth when shrinking. The official models were trained without.
        mean, std: One number per channel, for pixels in [0, 1].

    Call arguments:
        images: An array (height, width[, channels]) or (batch, height, width[, channels]), uint8 or
            float; or a path to an image file; or a list of arrays and paths of any sizes. Grey images
            are repeated over the channels, an alpha channel is dropped. Or a tensor (height, width,
            channels) or (batch, height, width, channels), also in a `tf.data` pipeline, or a
            `KerasTensor`.
        value_range: (lowest, highest) possible value of float images; None: (0, 1). The range of
            uint8 images is always (0, 255).

    Returns:
        A NumPy array (batch, height, width, channels), in which one image is a batch of one; or for a
        tensor a tensor of the same rank. With mean and std 0.5 the two differ by at most 1e-6. With
        KERAS_BACKEND=jax `tf.data` resizes with TensorFlow all the same, which differs from JAX by
        5e-6 (bilinear) or 2e-3 (bicubic), and with "nearest" may take a neighbouring pixel.

    Raises:
        ValueError: for an unknown option; for floats outside `value_range` or a wrong shape; for a
            file that is missing or is no image. In a TensorFlow graph, where the values are known
            only later, floats outside the range are a `tf.errors.InvalidArgumentError`; under XLA and
            in JAX's `jit`, which cannot raise, the output is NaN.

    Example:
        >>> Preprocessing(image_size=32)(np.zeros((2, 20, 30, 3), "uint8")).shape
        (2, 32, 32, 3)
        >>> data = tf.data.Dataset.from_tensors((images * 255, np.arange(4)))
        >>> prepare = Preprocessing(image_size=16)
        >>> data.map(lambda x, y: (prepare(x, value_range=(0, 255)), y)).element_spec[0].shape
        TensorShape([4, 16, 16, 3])

    Source: `vit_jax/input_pipeline.py`: squash, bilinear, no antialias, (x - 127.5) / 127.5.
    """

    image_size: tuple[int, int] | None
    resize: str = "squash"
    crop_fraction: float = 1.0
    interpolation: str = "bilinear"
    antialias: bool = False
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    def __post_init__(self):
        size = self.image_size
        if isinstance(size, numbers.Integral):
            size = (int(size), int(size))
        if size is not None:
            size = tuple(size) if isinstance(size, Sequence) else ()
            if len(size) != 2 or not all(isinstance(s, int) and s > 0 for s in size):
                raise ValueError(
                    f"image_size must be a positive int, (height, width) or None; got {self.image_size!r}"
                )
        for name, value, known in (
            ("resize", self.resize, RESIZES),
            ("interpolation", self.interpolation, INTERPOLATIONS),
        ):
            if value not in known:
                raise ValueError(f"{name} {value!r} is unknown; choose one of {known}")
        if not (isinstance(self.crop_fraction, numbers.Real) and 0 < self.crop_fraction <= 1):
            raise ValueError(f"crop_fraction must be in (0, 1]; got {self.crop_fraction!r}")
        if self.antialias not in (True, False):
            raise ValueError(f"antialias must be True or False; got {self.antialias!r}")
        if size is not None and size[0] * size[1] > MAX_PIXELS * self.crop_fraction**2:
            raise ValueError(
                f"image_size and crop_fraction must ask for at most {MAX_PIXELS} pixels; got {size} and "
                f"{self.crop_fraction!r}"
            )
        mean, std = (tuple(v) if isinstance(v, Sequence) else (None,) for v in (self.mean, self.std))
        if len(mean) != len(std) or not all(map(is_float32, mean + std)) or not all(s > 0 for s in std):
            raise ValueError(
                "mean and std need one number per channel that float32 holds, std positive; got "
                f"{self.mean!r} and {self.std!r}"
            )
        mean, std = tuple(map(float, mean)), tuple(map(float, std))
        antialias = bool(self.antialias)
        for name, value in (("image_size", size), ("mean", mean), ("std", std), ("antialias", antialias)):
            object.__setattr__(self, name, value)

    @property
    def channels(self):
        return len(self.mean)

    def __call__(self, images, value_range=None):
        if _is_tensor(images):
            layer = self.as_layer(value_range, dtype="float32")
            # Within a layer's call Keras adds lines of its own to an error.
            return layer(images) if isinstance(images, keras.KerasTensor) else layer.call(images)
        images = _as_list(images, self.channels)
        if not len(images):
            return np.zeros((0, *(self.image_size or (0, 0)), self.channels), "float32")
        prepared = [self.normalise(self.resized(self._pixels(image, value_range))) for image in images]
        shapes = {p.shape for p in prepared}
        if len(shapes) > 1:
            raise ValueError(
                f"image_size is None, so all images of a batch must have one size; got {sorted(shapes)}"
            )
        return np.stack(prepared)

    def batches(self, images, batch_size, value_range=None):
        """The same in batches, so that many images need not fit in memory together."""
        images = _as_list(images, self.channels)
        for start in range(0, len(images), batch_size):
            yield self(images[start : start + batch_size], value_range)

    def as_layer(self, value_range=None, **options):
        """A Keras layer that does the same, to stand in front of a model and to be saved with it.

        Args:
            value_range: As in a call.
            **options: Of every Keras layer: `name`, `dtype`.

        Returns:
            A `PreprocessingLayer`.

        Example:
            >>> inputs = keras.Input((None, None, 3), dtype="uint8")
            >>> from_photos = keras.Sequential([inputs, model.preprocessing.as_layer(), model])
            >>> from_photos(np.zeros((2, 40, 50, 3), "uint8")).shape
            TensorShape([2, 10])
        """
        return PreprocessingLayer(self, value_range, **options)

    def normalise(self, pixels):
        """Pixels in [0, 255] to what the model reads; works on arrays and tensors alike."""
        scale = np.asarray(self.std, "float32") * 255
        shift = np.asarray(self.mean, "float32") * 255
        return (pixels - shift) / scale

    def colors(self, x):
        """The way back: model input as colours (…, height, width, 3) in [0, 1], to be looked at.

        Other channels than three, which are no colours, become the grey of their mean.

        >>> preprocessing = Preprocessing(32)
        >>> preprocessing.colors(preprocessing(np.full((32, 32, 3), 0.25))).max().round(3).item()
        0.25
        """
        pixels = np.clip(x * np.float32(self.std) + np.float32(self.mean), 0, 1)
        return pixels if self.channels == 3 else np.repeat(pixels.mean(axis=-1, keepdims=True), 3, axis=-1)

    def resized(self, pixels):
        """float32 images (…, height, width, channels), an array or tensor, at `image_size`."""
        if self.image_size is None:
            return pixels
        if self.resize == "squash":
            return self._scaled(pixels, self.image_size)
        return self.cropped(pixels, lambda size: self._scaled(pixels, size))

    def cropped(self, pixels, resize):
        """With "crop": what is kept of the resized images.

        Where the resized images would be more than `MAX_ENLARGEMENT` times as large, as of long and narrow
        ones, only what is kept is computed: with TensorFlow the same pixels, with antialias to 0.02 of 255.

        Args:
            pixels: Images (…, height, width, channels) in [0, 255], an array or tensor.
            resize: The function from a (height, width) to the resized images, float32.

        Returns:
            float32 (…, height, width, channels) at `image_size`.
        """
        backend, (height, width) = _backend_of(pixels), self.image_size
        shape = backend.shape(pixels) if None in pixels.shape else tuple(pixels.shape)
        enlarged, top, left = self.crop_window(*shape[-3:-1])
        is_large = enlarged[0] * enlarged[1] > min(MAX_ENLARGEMENT * height * width, MAX_PIXELS)

        def of_whole():
            return resize(enlarged)[..., top : top + height, left : left + width, :]

        def of_part():
            return _resized_part(pixels, zip(shape[-3:-1], enlarged, (top, left), self.image_size), self)

        if isinstance(top, int):
            return of_part() if is_large else of_whole()
        cropped = backend.cond(is_large, of_part, of_whole)
        return backend.numpy.reshape(cropped, (*shape[:-3], height, width, shape[-1]))

    @property
    def before_crop(self):
        """With "crop": the (height, width) that the resized image covers; rounded down, as timm does."""
        return tuple(math.floor(side / self.crop_fraction + 1e-6) for side in self.image_size)

    def crop_window(self, height, width):
        """With "crop": the size to resize to, and the top left corner of the crop.

        The size of an image may be known in the graph alone, as scalar tensors.

        >>> Preprocessing(image_size=224, resize="crop", crop_fraction=0.875).crop_window(512, 1024)
        ((256, 512), 16, 144)
        """
        wanted = self.before_crop
        if isinstance(height, numbers.Integral) and isinstance(width, numbers.Integral):
            factor = max(wanted[0] / height, wanted[1] / width)
            size = tuple(max(round(side * factor), w) for side, w in zip((height, width), wanted))
        else:
            backend = _backend_of(height, width)
            sides = backend.cast(backend.numpy.stack([height, width]), "float64")
            factor = backend.numpy.max(np.array(wanted, "float64") / sides)
            size = backend.cast(backend.numpy.round(sides * factor), "int64")
            size = backend.numpy.maximum(size, np.array(wanted, "int64"))
            size = size[0], size[1]
        top, left = ((s - side) // 2 for s, side in zip(size, self.image_size))
        return size, top, left

    def _scaled(self, pixels, size):
        if isinstance(size[0], int) and tuple(pixels.shape[-3:-1]) == tuple(size):
            return pixels
        backend = _backend_of(pixels)
        resized = backend.image.resize(
            pixels,
            [side if isinstance(side, int) else backend.cast(side, "int32") for side in size],
            interpolation=self.interpolation,
            antialias=self.antialias,
            data_format="channels_last",
        )
        if self.interpolation == "bicubic":
            # Cubics overshoot; Pillow, which the weights were trained with, clips.
            resized = backend.numpy.clip(resized, 0, 255)
        return ops.convert_to_numpy(resized) if isinstance(pixels, np.ndarray) else resized

    def _pixels(self, image, value_range):
        if isinstance(image, (str, os.PathLike)):
            image = read_image(image)
        return as_pixels(image, self.channels, value_range)

    def get_config(self):
        return dataclasses.asdict(self)


@keras.saving.register_keras_serializable("keras_vit")
class PreprocessingLayer(keras.layers.Layer):
    """A `Preprocessing` as a layer, to stand in front of a model and to be saved with it.

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

    def __init__(self, preprocessing, value_range=None, **kwargs):
        super().__init__(autocast=False, **kwargs)
        if isinstance(preprocessing, dict):
            preprocessing = Preprocessing(**preprocessing)
        self.preprocessing = preprocessing
        self.value_range = _checked_range(value_range)
        # XLA on TensorFlow cannot resize with "bicubic" or antialias, and drops assertions.
        self.supports_jit = keras.backend.backend() != "tensorflow"

    def __call__(self, images, **kwargs):
        if _is_tensorflow(images) and not ops.is_tensor(images):
            return self.call(images)  # in tf.data on another backend, to whose tensors Keras would convert
        return super().__call__(images, **kwargs)

    def call(self, images):
        if _is_tensorflow(images) and not isinstance(images, _tensorflow().Tensor | _tensorflow().Variable):
            raise ValueError(f"images must be a dense tensor, all of one size; got a {type(images).__name__}")
        self.compute_output_shape(images.shape)
        backend, channels = _backend_of(images), self.preprocessing.channels
        dtype = keras.backend.standardize_dtype(images.dtype)
        low, high = _range_of(dtype, self.value_range)
        pixels = backend.cast(images, "float32")
        unchecked = dtype == "uint8" or 0 in images.shape
        invalid = 0.0 if unchecked else self._check_range(pixels)
        pixels = _with_channels(_scaled_to_255(pixels, low, high), channels, backend.numpy)
        output = self.preprocessing.normalise(self.preprocessing.resized(pixels)) + invalid
        return backend.cast(output, self.compute_dtype)

    def _check_range(self, pixels):
        """Refuse values outside the range. In a graph: what to add to the output, NaN for such values."""
        backend = _backend_of(pixels)
        lowest, highest = backend.numpy.min(pixels), backend.numpy.max(pixels)
        inside = _is_inside(self.value_range, lowest, highest)
        if _is_tensorflow(pixels) and not hasattr(pixels, "numpy"):
            words = f"{_range_rule(self.value_range)}; got values from", lowest, "to", highest
            _tensorflow().debugging.Assert(inside, words)
        elif not is_in_jax_tracing_scope(pixels):
            _check_inside(self.value_range, float(lowest), float(highest))
            return 0.0
        return backend.numpy.where(inside, 0.0, float("nan"))

    def compute_output_shape(self, shape):
        """The shape of the output.

        Raises:
            ValueError: unless images can have this shape.
        """
        if getattr(shape, "rank", 4) is None or len(shape) not in (3, 4) or shape[-1] is None:
            raise ValueError(
                "a tensor of images must have the shape (height, width, channels) or (batch, height, width, "
                f"channels), of a known rank and channel count; got {shape}"
            )
        *batch, height, width, _ = shape
        _check_channels(tuple(shape), self.preprocessing.channels)
        return (*batch, *(self.preprocessing.image_size or (height, width)), self.preprocessing.channels)

    def get_config(self):
        config = {"preprocessing": self.preprocessing.get_config(), "value_range": self.value_range}
        return {**super().get_config(), **config}


def is_float32(value):
    """Whether this is a number that float32 holds, and does not take for 0 or infinity.

    >>> [is_float32(value) for value in (0, 1e-6, 1e-320, 10**400, float("nan"))]
    [True, True, False, False, False]
    """
    limits = np.finfo("float32")
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_number and (value == 0 or float(limits.tiny) <= abs(value) <= float(limits.max))


# By interpolation: how many pixels a pixel reaches, and its weight at a signed distance in pixels.
KERNELS = {
    "nearest": (0.5, lambda x, numpy: numpy.where((x > -0.5) & (x <= 0.5), 1.0, 0.0)),
    "bilinear": (1, lambda x, numpy: numpy.maximum(1 - numpy.abs(x), 0)),
    "bicubic": (2, lambda x, numpy: _cubic(numpy.abs(x), numpy)),
}


def _cubic(x, numpy):
    """Keys's cubic with a = -1/2, as TensorFlow and Pillow have it."""
    near, far = (1.5 * x - 2.5) * x * x + 1, ((2.5 - 0.5 * x) * x - 4) * x + 2
    return numpy.where(x < 1, near, numpy.where(x < 2, far, 0))


def _resized_part(pixels, axes, preprocessing):
    """A part of resized images, computed from the pixels that it depends on.

    Args:
        pixels: As of `Preprocessing.cropped`.
        axes: For height and width: the size, the resized one, and the start and size of the part of that;
            ints, or where only the graph knows them scalar tensors.
        preprocessing: Preprocessing.

    Returns:
        float32 (…, height, width, channels).
    """
    backend = _backend_of(pixels)
    reach, kernel = KERNELS[preprocessing.interpolation]
    smooth = preprocessing.antialias and preprocessing.interpolation != "nearest"
    part, weights = [...], []
    for old, new, start, count in axes:
        known = isinstance(start, int)
        numpy, cast = (np, np.asarray) if known else (backend.numpy, backend.cast)
        scale = cast(old, "float64") / cast(new, "float64")
        width = cast(numpy.maximum(scale, 1), "float64") if smooth else 1  # JAX's rules make it float32
        # In float32, as TensorFlow computes them for whole images, so that no pixel is another.
        centres = cast(cast(start, "float64") + np.arange(count) + 0.5, "float32") * cast(scale, "float32")
        centres = cast(centres, "float64")
        first = numpy.maximum(cast(numpy.floor(centres[0] - reach * width), "int64"), 0)
        stop = numpy.minimum(cast(numpy.ceil(centres[-1] + reach * width), "int64"), cast(old, "int64"))
        inputs = cast(numpy.arange(first, stop), "float64") + 0.5
        distances = (inputs - centres[:, np.newaxis]) / width
        if preprocessing.interpolation == "bicubic" and not smooth:
            distances = numpy.round(distances * 1024) / 1024  # TensorFlow has a table of the weights
        weight = cast(kernel(distances, numpy), "float32")
        weights.append(weight / numpy.sum(weight, axis=1, keepdims=True))
        part.append(slice(int(first), int(stop)) if known else slice(first, stop))
    numpy, cast = (np, np.asarray) if isinstance(pixels, np.ndarray) else (backend.numpy, backend.cast)
    part = cast(pixels[(*part, slice(None))], "float32")
    by_rows = numpy.einsum("ij,...jkc->...ikc", weights[0], part)
    return numpy.clip(numpy.einsum("lk,...ikc->...ilc", weights[1], by_rows), 0, 255)


def as_pixels(image, channels, value_range=None):
    """An image as float32 (height, width, channels) in [0, 255].

    >>> as_pixels(np.full((4, 4), 0.5), 3)[0, 0].tolist()
    [127.5, 127.5, 127.5]
    """
    image = np.asarray(image)
    if image.ndim == 2:
        image = image[..., np.newaxis]
    if image.ndim != 3 or 0 in image.shape:
        raise ValueError(
            f"an image must have the shape (height, width) or (height, width, channels); got {image.shape}"
        )
    _check_channels(image.shape, channels)
    low, high = _range_of(image.dtype.name, value_range)
    if image.dtype != np.uint8:
        _check_inside((low, high), image.min(), image.max())
    return _with_channels(_scaled_to_255(image.astype("float32"), low, high), channels, np)


def _check_channels(shape, channels):
    known = READ_AS.get(channels, (1, channels))
    if shape[-1] not in known:
        remedy = (
            " (put the channels last with np.moveaxis(images, -3, -1), or add them to grey images with "
            "images[..., np.newaxis])"
        )
        raise ValueError(
            f"the model reads {channels} channels; got an image with {shape[-1]}, of the shape {shape}"
            f"{remedy * (shape[-3] in known)}"
        )


def _with_channels(pixels, channels, numpy):
    """Images (…, channels) with the channels that the model reads.

    Args:
        pixels: float32 array or tensor of an alpha channel more, or of grey or RGB pixels.
        channels: The model's.
        numpy: The module of the functions for it.

    >>> _with_channels(np.ones((4, 4, 4)), 1, np).shape
    (4, 4, 1)
    """
    if channels in READ_AS and pixels.shape[-1] in (2, 4):
        pixels = pixels[..., :-1]
    if pixels.shape[-1] == channels:
        return pixels
    if pixels.shape[-1] == 1:
        return numpy.repeat(pixels, channels, axis=-1)
    return numpy.matmul(pixels, np.array(LUMA, "float32")[:, np.newaxis])


def _range_of(dtype, value_range):
    """The (lowest, highest) possible value of images of a dtype."""
    low, high = _checked_range(value_range)
    if "float" not in dtype and dtype != "uint8":
        raise ValueError(f"images must be uint8 or float in [{low:g}, {high:g}]; got {dtype}")
    return (0, 255) if dtype == "uint8" else (low, high)


def _checked_range(value_range):
    if value_range is None:
        return UNIT_RANGE
    numbers_only = isinstance(value_range, Sequence) and all(isinstance(v, numbers.Real) for v in value_range)
    if (
        not numbers_only
        or len(value_range) != 2
        or not -math.inf < value_range[0] < value_range[1] < math.inf
    ):
        raise ValueError(f"value_range must be (lowest, highest), such as (0, 255); got {value_range!r}")
    return tuple(value_range)


def _scaled_to_255(pixels, low, high):
    if low:
        pixels = pixels - low
    return pixels if high - low == 255 else pixels * (255 / (high - low))


def _is_inside(value_range, lowest, highest):
    low, high = value_range
    tolerance = RANGE_TOLERANCE * (high - low)
    return (lowest >= low - tolerance) & (highest <= high + tolerance)


def _range_rule(value_range):
    low, high = value_range
    return (
        f"float images must be in [{low:g}, {high:g}] (give the range that they use as value_range, such as "
        "value_range=(0, 255), or give uint8 images)"
    )


def _check_inside(value_range, lowest, highest):
    if not _is_inside(value_range, lowest, highest):  # nor is NaN
        raise ValueError(f"{_range_rule(value_range)}; got values from {lowest:g} to {highest:g}")


def _is_tensor(images):
    """Whether these are a tensor of Keras's backend, a symbolic one, or in `tf.data` one of TensorFlow's."""
    return ops.is_tensor(images) or isinstance(images, keras.KerasTensor) or _is_tensorflow(images)


def _is_tensorflow(images):
    return _tensorflow() is not None and _tensorflow().is_tensor(images)


def _tensorflow():
    """TensorFlow if it has been imported: else there are no tensors of its own."""
    return sys.modules.get("tensorflow")


def _backend_of(*values):
    """The functions for these arrays or tensors: TensorFlow's for its own, else those of Keras's backend."""
    return DynamicBackend("tensorflow" if any(map(_is_tensorflow, values)) else None)


def read_image(path):
    """The pixels of an image file (JPEG, PNG, BMP, GIF, WebP, TIFF) in its EXIF orientation.

    Args:
        path: Path of the file.

    Returns:
        uint8 (height, width, 3), of the first frame, as `keras_vit.data.images.decode` gives them. Of 16
        bits a channel the upper 8 are kept.

    Raises:
        ValueError: if the file is missing, is not a readable image, or has more than `MAX_PIXELS`; the
            message names it.

    Example:
        >>> keras.utils.save_img(tmp / "grey.png", np.full((8, 9, 3), 128), scale=False)
        >>> read_image(tmp / "grey.png").shape
        (8, 9, 3)
    """
    from PIL import Image, UnidentifiedImageError

    if Image.MAX_IMAGE_PIXELS is not None:  # Pillow's own bound, which is ours where ours is not set
        Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, MAX_PIXELS)
    try:
        check_image_file(path)
        # Not by its name: Pillow 13 would map uncompressed TIFFs into memory, which garbles turned ones.
        with open(path, "rb") as file, Image.open(file, formats=FORMATS) as image:
            pixels = _stored_pixels(image, file)
            orientation = exif_orientation(image.info.get("exif", b""))
    except FileNotFoundError:
        raise ValueError(f"no such image file: {os.fspath(path)}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ValueError(
            f"not a readable image: {os.fspath(path)} (it has more than {MAX_PIXELS} pixels)"
        ) from None
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"not a readable image: {os.fspath(path)} ({error})") from None
    pixels = pixels.swapaxes(0, 1) if orientation >= 5 else pixels
    return pixels[:: -1 if orientation in (3, 4, 7, 8) else 1, :: -1 if orientation in (2, 3, 6, 7) else 1]


def check_image_file(path):
    """Raise ValueError for what is no plain file, such as a pipe, which never ends, or is too large.

    >>> check_image_file("/dev/null")
    Traceback (most recent call last):
    ValueError: it is no plain file
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no plain file")
    if status.st_size > MAX_BYTES:
        raise ValueError(f"it has {status.st_size} bytes; at most {MAX_BYTES} are read")


def _stored_pixels(image, file):
    """The pixels of an image that Pillow has opened, as TensorFlow decodes them, or ValueError."""
    from PIL import Image

    if image.width * image.height > MAX_PIXELS:
        raise ValueError(f"it has {image.width}×{image.height} pixels; at most {MAX_PIXELS} are decoded")
    if image.format == "BMP" and not _is_read_bmp(file):
        raise ValueError(BMP_WANTED)
    if image.format == "WEBP" and image.is_animated:
        raise ValueError("it is animated")
    if image.format == "GIF":
        return _first_frame(image)
    image.load()  # PNG may have EXIF data after the pixels
    if image.mode in ("I", "F") and image.format != "PNG":
        raise ValueError("it has 32 bits a channel; wanted 8 or 16")
    if image.mode.startswith("I"):  # 16 bits, of which TensorFlow keeps the upper 8
        image = Image.fromarray((np.asarray(image) >> 8).astype("uint8"))
    if image.mode == "CMYK":
        light = np.asarray(image).astype("uint16")
        if image.format == "TIFF" or "adobe" in image.info:  # Pillow inverts other JPEGs, too, as if Adobe's
            light = 255 - light
        return (light[..., :3] * light[..., 3:] // 255).astype("uint8")  # as TensorFlow rounds
    return np.asarray(image.convert("RGB"))


def _is_read_bmp(file):
    """Whether TensorFlow decodes this form of a BMP."""
    file.seek(0)
    head = file.read(66)
    (size,) = struct.unpack_from("<I", head, 14)
    bits, compression = struct.unpack_from("<HI", head, 28)
    plain = compression == 0 and bits in (8, 24, 32)
    return size >= 40 and (plain or compression == BMP_MASKED and bits == 32 and head[54:] == BMP_MASKS)


def _first_frame(image):
    """A GIF's first frame where it lies on the canvas; what it leaves open is black."""
    left, top, right, bottom = image.tile[0][1]
    colours, alpha = np.split(np.asarray(image.convert("RGBA"))[top:bottom, left:right], [3], axis=-1)
    canvas = np.zeros((image.height, image.width, 3), "uint8")
    canvas[top:bottom, left:right] = colours * (alpha > 0)
    return canvas


def exif_orientation(exif):
    """The orientation in EXIF data (bytes): 1 to 8, and 1 where there is none or the data is malformed.

    >>> from PIL import Image
    >>> exif = Image.Exif()
    >>> exif[0x0112] = 6
    >>> exif_orientation(exif.tobytes())
    6
    """
    tiff = exif.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None:
        return 1
    value = 1
    try:
        (directory,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, directory)
        for start in range(directory + 2, directory + 2 + 12 * count, 12):
            tag, kind, _, number, _ = struct.unpack_from(f"{order}HHIHH", tiff, start)
            if (tag, kind) == (0x0112, 3):
                value = max(value, number)
    except struct.error:  # The data ends early.
        pass
    return value if value <= 8 else 1


def _as_list(images, channels):
    """A sequence of images: one image alone becomes a list of one."""
    if isinstance(images, (str, os.PathLike)):
        return [images]
    if isinstance(images, Sequence):
        return images
    ndim = np.ndim(images)
    if ndim not in (2, 3, 4):
        raise ValueError(
            "images must be an array (height, width[, channels]) or (batch, height, width[, channels]), "
            f"a path, or a list of these; got {type(images).__name__} of rank {ndim}"
        )
    images = np.asarray(images)
    if ndim == 3 and _is_grey_batch(images.shape, channels):
        return images[..., np.newaxis]
    return images if ndim == 4 else images[np.newaxis]


def _is_grey_batch(shape, channels):
    """Whether an array of rank 3 is (batch, height, width), and not one image, whatever its channels are.

    >>> [_is_grey_batch(shape, 3) for shape in ((60, 28, 28), (28, 28, 3), (3, 64, 64), (64, 64, 5))]
    [True, False, False, False]
    """
    count, height, width = shape
    known = READ_AS.get(channels, (1, channels))
    channels_first = channels > 1 and count > 1 and count in known
    channels_last = width in known or (width < NARROWEST and width != height)
    return not channels_first and not channels_last
