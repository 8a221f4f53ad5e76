"""`Preprocessing`: how images become model input."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import math
import numbers
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.messages import names_arguments
from keras_vit.preprocessing import bounds
from keras_vit.preprocessing.image_resizing import INTERPOLATIONS, padded, resize, resize_and_crop
from keras_vit.preprocessing.inputs import as_list, as_pixels
from keras_vit.preprocessing.packing import packed, packed_size
from keras_vit.preprocessing.tensors import arithmetic, is_symbolic, is_tensor, is_tensorflow, to_float32
from keras_vit.rules import Rule, boolean, check_fields, field, integer, items, number, one_of, optional
from keras_vit.types import ArrayOrTensor, Images

if TYPE_CHECKING:
    from keras_vit.preprocessing import PreprocessingLayer


def is_float32(value):
    """Whether this is a number that float32 represents, neither as 0 nor as infinity unless it is 0.

    >>> [is_float32(value) for value in (0, 1e-6, 1e-320, 10**400, float("nan"))]
    [True, True, False, False, False]
    """
    limits = np.finfo("float32")
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_number and (value == 0 or float(limits.tiny) <= abs(value) <= float(limits.max))


_SIDE = integer(at_least=1)
_SIZE = Rule(
    "a positive int, (height, width) or None",
    lambda v: v is None or isinstance(v, numbers.Integral) and v > 0 or items(_SIDE, 2).accepts(v),
)
_SCALE = Rule("a number that float32 represents", is_float32)


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """How images are prepared for a model, in inference as in its training.

    Called with images it returns float32 (batch, height, width, channels): resized, then
    (pixel / 255 - mean) / std. With `max_num_patches` (NaFlex) each image is resized to the largest size of
    about its own aspect ratio that has at most so many patches, and these are packed.

    Args:
        image_size: (height, width) or one int; None keeps the images' own size.
        resize: "squash" (the official models: straight to `image_size`), "crop" (the shorter
            side to `image_size` / `crop_fraction`, then the center), "squash_crop" (timm's "squash" with a
            `crop_pct` below 1: straight to `image_size` / `crop_fraction`, then the center) or "pad" (OWLv2:
            with black to the right or below to the aspect ratio of `image_size`, then to it).
        crop_fraction: With "crop" and "squash_crop": the fraction of the resized image's shorter side, or of
            both sides, that the center crop keeps, in (0, 1].
        interpolation: "bilinear", "bicubic" or "nearest".
        antialias: Whether to antialias when downscaling. The official models were trained without.
        mean, std: One number per channel, for pixels in [0, 1].
        patch_size, max_num_patches: (height, width) of a patch or one int, and the number of patches of a
            packed image with its padding; None for images that are not packed.
        crop_rounding: With "crop" and "squash_crop": how half a pixel in the corner of the crop is rounded:
            "down" (big_vision, transformers) or to the nearest "even" number (torchvision: timm, open_clip).

    Call arguments:
        images: An array (height, width[, channels]) or (batch, height, width[, channels]), uint8 or
            float; or an image file: its path, its `http://` or `https://` URL, or its content as bytes; or
            a picture of Pillow; or a list of these of any sizes. Gray images are repeated over the channels,
            an alpha channel is dropped. Or a tensor (height, width, channels) or (batch, height, width,
            channels), also in a `tf.data` pipeline, or a `KerasTensor`; with `max_num_patches` no tensor.
        value_range: (lowest, highest) possible value of float images; None: (0, 1). The range of
            uint8 images is always (0, 255).

    Returns:
        A NumPy array (batch, height, width, channels), a batch of one for one image; for a tensor a
        tensor of the same rank. With `max_num_patches` a dict of `patches` and `grids`: float32 (batch,
        max_num_patches, patch height · patch width · channels), the patches row by row, then padding; and
        int32 (batch, 2), their rows and columns. With mean and std 0.5 arrays and tensors, also in
        `tf.data`, differ by at most 3e-6. Tensors of JAX differ by 5e-6 (bilinear) or 2e-3 (bicubic), and
        with "nearest" may have a neighboring pixel.

    Raises:
        ValueError: for an unknown option; for floats outside `value_range` or a wrong shape; for a
            file that is missing or is not an image. In a TensorFlow graph floats outside the range
            raise `tf.errors.InvalidArgumentError` when it runs; under XLA and in JAX's `jit`, which
            cannot raise, the output is NaN.

    Example:
        >>> Preprocessing(image_size=32)(np.zeros((2, 20, 30, 3), "uint8")).shape
        (2, 32, 32, 3)
        >>> pack = Preprocessing(None, patch_size=8, max_num_patches=16)
        >>> pack([np.zeros((20, 60, 3)), np.zeros((30, 30, 3))])["grids"].tolist()
        [[2, 6], [4, 4]]
        >>> data = tf.data.Dataset.from_tensors((images * 255, np.arange(4)))
        >>> prepare = Preprocessing(image_size=16)
        >>> data.map(lambda x, y: (prepare(x, value_range=(0, 255)), y)).element_spec[0].shape
        TensorShape([4, 16, 16, 3])

    Source: `vit_jax/input_pipeline.py`: squash, bilinear, no antialias, (x - 127.5) / 127.5; packing:
    `big_vision/pp/proj/image_text/ops_naflex.py`.
    """

    image_size: tuple[int, int] | None = field(_SIZE)
    resize: str = field(one_of(("squash", "crop", "squash_crop", "pad")), default="squash")
    crop_fraction: float = field(number(above=0, high=1), default=1.0)
    interpolation: str = field(one_of(INTERPOLATIONS), default="bilinear")
    antialias: bool = field(boolean, default=False)
    mean: tuple[float, ...] = field(items(_SCALE), default=(0.5, 0.5, 0.5))
    std: tuple[float, ...] = field(items(_SCALE), default=(0.5, 0.5, 0.5))
    patch_size: tuple[int, int] | None = field(_SIZE, default=None)
    max_num_patches: int | None = field(optional(_SIDE), default=None)
    crop_rounding: str = field(one_of(("down", "even")), default="down")

    def __post_init__(self):
        check_fields(self)
        size, patch_size = (
            (int(sides),) * 2 if isinstance(sides, numbers.Integral) else sides and tuple(sides)
            for sides in (self.image_size, self.patch_size)
        )
        if self.packs != (patch_size is not None) or self.packs and (size or self.resize != "squash"):
            raise ValueError(
                "max_num_patches and patch_size belong together, with image_size=None and resize='squash'; "
                f"got {self.max_num_patches}, {patch_size}, {size} and {self.resize!r}"
            )
        if self.packs and self.max_num_patches * math.prod(patch_size) > bounds.MAX_PIXELS:
            raise ValueError(
                f"max_num_patches and patch_size must ask for at most {bounds.MAX_PIXELS} pixels; got "
                f"{self.max_num_patches} and {patch_size}"
            )
        if size and size[0] * size[1] > bounds.MAX_PIXELS * self.crop_fraction**2:
            raise ValueError(
                f"image_size and crop_fraction must ask for at most {bounds.MAX_PIXELS} pixels; got {size} "
                f"and {self.crop_fraction!r}"
            )
        if len(self.mean) != len(self.std) or min(self.std, default=0) <= 0:
            raise ValueError(
                "mean and std must have one number per channel, std positive; got "
                f"{self.mean!r} and {self.std!r}"
            )
        mean, std = tuple(map(float, self.mean)), tuple(map(float, self.std))
        fields = {"image_size": size, "mean": mean, "std": std, "patch_size": patch_size}
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def channels(self) -> int:
        return len(self.mean)

    @property
    def packs(self) -> bool:
        """Whether images become a fixed number of patches, whatever their aspect ratio."""
        return self.max_num_patches is not None

    @property
    def crops(self) -> bool:
        """Whether the center of the resized image is cropped."""
        return self.resize in ("crop", "squash_crop")

    @property
    def has_fixed_shape(self) -> bool:
        """Whether images of different sizes become input of one shape, so that they fit in one batch."""
        return self.packs or self.image_size is not None

    @names_arguments
    def __call__(self, images: Images, value_range: tuple[float, float] | None = None) -> Any:
        if is_tensor(images):
            layer = self.as_layer(value_range, dtype="float32")
            # Within a layer's call Keras adds lines of its own to an error.
            return layer(images) if is_symbolic(images) else layer.call(images)
        images = as_list(images, self.channels)
        if not len(images) and not self.packs:
            return np.zeros((0, *(self.image_size or (0, 0)), self.channels), "float32")

        outputs = [None] * len(images)
        if self.image_size is not None:
            outputs = np.empty((len(images), *self.image_size, self.channels), "float32")

        def prepare(image, out=None):
            return self.normalize(self.resized(as_pixels(image, self.channels, value_range)), out)

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            prepared = [*(pool.map if len(images) > 1 else map)(prepare, images, outputs)]
        if self.image_size is not None:
            return outputs
        if self.packs:
            return packed(prepared, self.patch_size, self.max_num_patches, self.channels)
        shapes = {p.shape for p in prepared}
        if len(shapes) > 1:
            raise ValueError(
                f"image_size is None, so all images of a batch must have one size; got {sorted(shapes)}"
            )
        return np.stack(prepared)

    def batches(
        self, images: Images, batch_size: int, value_range: tuple[float, float] | None = None
    ) -> Iterator[Any]:
        """The same in batches, so that many images need not fit in memory together.

        Without an `image_size` a batch has images that follow each other and have one size.
        """
        integer(at_least=1).check("batch_size", batch_size)
        images = as_list(images, self.channels)
        if self.has_fixed_shape or not isinstance(images, Sequence):
            for start in range(0, len(images), batch_size):
                yield self(images[start : start + batch_size], value_range)
            return
        groups = itertools.groupby((self([image], value_range) for image in images), np.shape)
        for _, prepared in groups:
            while batch := [*itertools.islice(prepared, batch_size)]:
                yield np.concatenate(batch)

    def as_layer(self, value_range: tuple[float, float] | None = None, **options: Any) -> PreprocessingLayer:
        """A Keras layer that does the same, to be put before a model and saved with it.

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
        from keras_vit.preprocessing.preprocessing_layer import PreprocessingLayer

        return PreprocessingLayer(self, value_range, **options)

    def normalize(self, pixels: ArrayOrTensor, out: np.ndarray | None = None) -> ArrayOrTensor:
        """Convert pixels in [0, 255], an array or tensor, to model input; an array's is put in `out`."""
        scale = np.asarray(self.std, "float32") * 255
        shift = np.asarray(self.mean, "float32") * 255
        if isinstance(pixels, np.ndarray):  # NumPy is slow along an axis of three values.
            scale, shift = (np.tile(values, (pixels.shape[-2], 1)) for values in (scale, shift))
            out = np.subtract(pixels, shift, out)
            return np.divide(out, scale, out)
        if is_tensorflow(pixels) and pixels.shape.rank == 3 and pixels.shape.is_fully_defined():
            # Of single images, as in tf.data, TensorFlow broadcasts ten times slower than it subtracts.
            scale, shift = (np.broadcast_to(values, pixels.shape) for values in (scale, shift))
        return (pixels - shift) / scale

    def colors(self, x: ArrayOrTensor) -> ArrayOrTensor:
        """Convert model input back to colors (…, height, width, 3) in [0, 1], for display.

        Channel counts other than three become the gray of their mean.

        >>> preprocessing = Preprocessing(32)
        >>> preprocessing.colors(preprocessing(np.full((32, 32, 3), 0.25))).max().round(3).item()
        0.25
        """
        pixels = np.clip(x * np.float32(self.std) + np.float32(self.mean), 0, 1)
        return pixels if self.channels == 3 else np.repeat(pixels.mean(axis=-1, keepdims=True), 3, axis=-1)

    def resized(self, pixels: ArrayOrTensor) -> ArrayOrTensor:
        """Resize images (…, height, width, channels) in [0, 255], an array or tensor, to `image_size`.

        With `max_num_patches` the array of one image, to the size to be packed.
        """
        if self.packs:
            if not isinstance(pixels, np.ndarray):
                raise ValueError(
                    "expected arrays or files of images to pack; got a tensor: pack them before tf.data, or "
                    "load the model with one image_size"
                )
            return resize(pixels, packed_size(*pixels.shape[:2], self.patch_size, self.max_num_patches), self)
        if self.image_size is None:
            return to_float32(pixels)
        if self.crops:
            return resize_and_crop(pixels, self)
        if self.resize == "pad":
            pixels = padded(pixels, self.padded_size)
        return resize(pixels, self.image_size, self)

    def padded_size(self, height: int, width: int) -> tuple[int, int]:
        """With "pad": the size of a padded image; the sides may be scalar tensors.

        >>> Preprocessing(image_size=(32, 64), resize="pad").padded_size(30, 50)
        (30, 60)
        """
        numpy, _ = arithmetic(height, width)
        rows, columns = self.image_size
        least = -(-width * rows // columns), -(-height * columns // rows)  # rounded up
        sides = numpy.maximum(height, least[0]), numpy.maximum(width, least[1])
        return tuple(map(int, sides)) if numpy is np else sides

    def window(self, height: int, width: int) -> tuple[Any, Any]:
        """The part of an image that is in the model's input; with "pad" it is larger than the image.

        Args:
            height, width: Of the image, ints or scalar tensors.

        Returns:
            (corner, size): the upper left corner and the size of the part, float64 (2,) or two tensors:
            (down, right), in fractions of the image's sides.

        Example:
            >>> corner, size = Preprocessing(16, "crop").window(30, 60)
            >>> corner.tolist(), size.tolist()
            ([0.0, 0.25], [1.0, 0.5])
            >>> Preprocessing(16, "pad").window(30, 60)[1].tolist()
            [2.0, 1.0]
        """
        numpy, cast = arithmetic(height, width)
        dtype = "float64" if numpy is np else "float32"

        def fractions(sides, whole):
            return cast(numpy.stack(sides), dtype) / cast(numpy.stack(whole), dtype)

        image = (height, width)
        if self.image_size is None or self.resize == "squash":
            return fractions((0, 0), image), fractions(image, image)
        if self.resize == "pad":
            return fractions((0, 0), image), fractions(self.padded_size(height, width), image)
        resized, top, left = self.crop_window(height, width)
        return fractions((top, left), resized), fractions(self.image_size, resized)

    @property
    def before_crop(self) -> tuple[int, int]:
        """With a crop: the (height, width) that the resized image covers; rounded down, as timm does."""
        return tuple(math.floor(side / self.crop_fraction + 1e-6) for side in self.image_size)

    def crop_window(self, height: int, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """With a crop: the size to resize to, and the top left corner of the crop.

        With antialias the longer side is rounded down, as by torchvision and transformers, and otherwise to
        the nearest number, as by big_vision. The size of an image may be known in the graph alone, as scalar
        tensors.

        >>> Preprocessing(image_size=224, resize="crop", crop_fraction=0.875).crop_window(512, 1024)
        ((256, 512), 16, 144)
        """
        numpy, cast = arithmetic(height, width)
        sides = cast(numpy.stack([height, width]), "int64")

        def covering(axis):
            scaled, side = sides * self.before_crop[axis], sides[axis]
            if self.antialias:
                return scaled // side
            return cast(numpy.round(cast(scaled, "float64") / cast(side, "float64")), "int64")

        size = numpy.maximum(covering(0), covering(1))
        size = tuple(size.tolist()) if numpy is np else (size[0], size[1])
        size = self.before_crop if self.resize == "squash_crop" else size
        rests = (s - side for s, side in zip(size, self.image_size))
        if self.crop_rounding == "even":
            return size, *(rest // 2 + rest % 4 // 3 for rest in rests)  # 1.5 and 2.5 become 2
        return size, *(rest // 2 for rest in rests)

    def get_config(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
