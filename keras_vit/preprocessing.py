"""Images or paths to what a model reads: decode, resize, scale."""

import dataclasses
import math
import numbers
import os
from collections.abc import Sequence

import numpy as np
from keras import ops

RESIZES = ("squash", "crop")
LUMA = (0.299, 0.587, 0.114)  # how bright red, green and blue look (ITU-R BT.601)
INTERPOLATIONS = ("bilinear", "bicubic", "nearest")


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
            float in [0, 1]; or a path to an image file; or a list of arrays and paths of any sizes.
            Grey images are repeated over the channels, an alpha channel is dropped.

    Raises:
        ValueError: for an unknown option; for floats outside [0, 1] or a wrong shape; for a file
            that is missing or is no image.

    Example:
        >>> Preprocessing(image_size=32)(np.zeros((2, 20, 30, 3), "uint8")).shape
        (2, 32, 32, 3)

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
        if not 0 < self.crop_fraction <= 1:
            raise ValueError(f"crop_fraction must be in (0, 1]; got {self.crop_fraction!r}")
        lists = isinstance(self.mean, Sequence) and isinstance(self.std, Sequence)
        mean, std = (tuple(map(float, values)) if lists else () for values in (self.mean, self.std))
        if not lists or len(mean) != len(std) or not all(s > 0 for s in std):
            raise ValueError(
                f"mean and std need one number per channel, std positive; got {self.mean!r} and {self.std!r}"
            )
        for name, value in (("image_size", size), ("mean", mean), ("std", std)):
            object.__setattr__(self, name, value)

    @property
    def channels(self):
        return len(self.mean)

    def __call__(self, images):
        images = _as_list(images, self.channels)
        if not len(images):
            return np.zeros((0, *(self.image_size or (0, 0)), self.channels), "float32")
        prepared = [self.normalise(self.resized(self._pixels(image))) for image in images]
        shapes = {p.shape for p in prepared}
        if len(shapes) > 1:
            raise ValueError(
                f"image_size is None, so all images of a batch must have one size; got {sorted(shapes)}"
            )
        return np.stack(prepared)

    def batches(self, images, batch_size):
        """The same in batches, so that many images need not fit in memory together."""
        images = _as_list(images, self.channels)
        for start in range(0, len(images), batch_size):
            yield self(images[start : start + batch_size])

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
        """One float32 image (height, width, channels) at `image_size`."""
        if self.image_size is None:
            return pixels
        if self.resize == "squash":
            return self._scaled(pixels, self.image_size)
        enlarged, top, left = self.crop_window(*pixels.shape[:2])
        height, width = self.image_size
        return self._scaled(pixels, enlarged)[top : top + height, left : left + width]

    @property
    def before_crop(self):
        """With "crop": the (height, width) that the resized image covers; rounded down, as timm does."""
        return tuple(math.floor(side / self.crop_fraction + 1e-6) for side in self.image_size)

    def crop_window(self, height, width):
        """With "crop": the size to resize to, and the top left corner of the crop.

        >>> Preprocessing(image_size=224, resize="crop", crop_fraction=0.875).crop_window(512, 1024)
        ((256, 512), 16, 144)
        """
        wanted = self.before_crop
        factor = max(wanted[0] / height, wanted[1] / width)
        size = tuple(max(round(side * factor), w) for side, w in zip((height, width), wanted))
        top, left = ((s - side) // 2 for s, side in zip(size, self.image_size))
        return size, top, left

    def _scaled(self, pixels, size):
        if pixels.shape[:2] == tuple(size):
            return pixels
        resized = ops.image.resize(
            pixels,
            size,
            interpolation=self.interpolation,
            antialias=self.antialias,
            data_format="channels_last",
        )
        # Cubics overshoot; Pillow, which the weights were trained with, clips.
        return np.clip(ops.convert_to_numpy(resized), 0, 255)

    def _pixels(self, image):
        if isinstance(image, (str, os.PathLike)):
            image = read_image(image)
        return as_pixels(image, self.channels)

    def get_config(self):
        return dataclasses.asdict(self)


def as_pixels(image, channels):
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
    if image.dtype == np.uint8:
        pixels = image.astype("float32")
    elif np.issubdtype(image.dtype, np.floating):
        if not (image.min() >= 0 and image.max() <= 1):
            raise ValueError(
                f"float images must be in [0, 1]; got values from {image.min():g} to {image.max():g} "
                "(uint8 images may use 0 to 255)"
            )
        pixels = image.astype("float32") * 255
    else:
        raise ValueError(f"images must be uint8 or float in [0, 1]; got {image.dtype}")
    if pixels.shape[-1] == channels + 1 and channels in (1, 3):  # an alpha channel
        pixels = pixels[..., :channels]
    if pixels.shape[-1] == 1:
        pixels = np.repeat(pixels, channels, axis=-1)
    elif pixels.shape[-1] == 3 and channels == 1:
        pixels = pixels @ np.asarray(LUMA, "float32")[:, np.newaxis]
    if pixels.shape[-1] != channels:
        raise ValueError(f"the model reads {channels} channels; got an image with {image.shape[-1]}")
    return pixels


def read_image(path):
    """The pixels of an image file (JPEG, PNG, BMP, GIF, WebP): uint8 (height, width, 3).

    Raises:
        ValueError: if the file is missing or no image that can be read; the message names it.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            if image.mode.startswith("I"):  # 16 bits a pixel, of which TensorFlow keeps the upper 8
                image = Image.fromarray((np.asarray(image) >> 8).astype("uint8"))
            return np.asarray(image.convert("RGB"))
    except FileNotFoundError:
        raise ValueError(f"no such image file: {os.fspath(path)}") from None
    except (
        UnidentifiedImageError,
        OSError,
        SyntaxError,
        ValueError,
        Image.DecompressionBombError,
    ) as error:
        raise ValueError(f"not a readable image: {os.fspath(path)} ({error})") from None


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
    one = ndim == 2 or (ndim == 3 and np.shape(images)[-1] in (1, 3, 4, channels))
    return np.asarray(images)[np.newaxis] if one else np.asarray(images)
