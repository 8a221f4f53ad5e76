"""Masks, images of class numbers, and samples that have one each."""

from __future__ import annotations

import dataclasses
import io
import struct
import zlib

import numpy as np
import tensorflow as tf
from PIL import Image

from keras_vit.data.files import CLASSES
from keras_vit.data.maps import MapReader, MapSamples
from keras_vit.data.png_chunks import check_chunks
from keras_vit.data.samples import content_of, not_converted
from keras_vit.labels import IGNORE
from keras_vit.messages import listed
from keras_vit.preprocessing import bounds
from keras_vit.preprocessing.image_files import check_file

# What Pillow raises for a damaged PNG file.
PNG_ERRORS = (OSError, SyntaxError, IndexError, EOFError, OverflowError, struct.error, zlib.error)
# Pillow scales gray PNGs of fewer than 8 bits to 255, so by its form the factor of a class number.
SCALES = {"L;2": 85, "L;4": 17}


@dataclasses.dataclass(frozen=True)
class MaskReader(MapReader):
    """How PNG files become class maps.

    Args:
        values: The class of each of 256 values of a mask, 255 for those to ignore, None for those that are
            refused; None: the value itself.
        colors: As for `read_mask`.
        red: As for `read_mask`.

    Example:
        >>> png = tf.io.encode_png(tf.constant([[[0], [2]]], tf.uint8))
        >>> MaskReader(values=(255, 0, 1)).decode(png).numpy().tolist()
        [[[255], [1]]]
    """

    task = "segmentation"
    values: tuple[int | None, ...] | None = None
    colors: tuple[int, ...] | None = None
    red: bool = False

    @property
    def label_values(self):
        classes = self.values and [IGNORE if number is None else number for number in self.values]
        return [classes, self.colors and list(self.colors)] if classes or self.colors else None

    def read(self, source):
        return read_mask(source, self.red, self.colors)

    def label(self, source):
        mask = self.read(source)
        if self.values is not None:
            numbers = np.array([-1 if number is None else number for number in self.values], "int16")[mask]
            if (unknown := np.unique(mask[numbers < 0])).size:
                classes = {*self.values} - {None, IGNORE}
                raise ValueError(
                    f"expected values of the {len(classes)} classes in {CLASSES}; got {listed(unknown)}"
                )
            mask = numbers.astype("uint8")
        return mask[..., np.newaxis]


@dataclasses.dataclass(frozen=True)
class MaskSamples(MapSamples):
    """Encoded images and their masks.

    Args:
        images: Paths (str) or file contents (bytes), all of one kind.
        masks: Paths or contents of PNG files, of the sizes of the images.
        values, colors: As for `MaskReader`.
        exif: As for `Samples`.

    Example:
        >>> png = tf.io.encode_png(tf.constant([[[0], [2]]], tf.uint8)).numpy()
        >>> samples = MaskSamples((png,), (png,), values=(255, 0, 1))
        >>> encoded, mask = next(iter(samples.evaluation_records()))
        >>> mask.numpy().tolist()
        [[[255], [1]]]
    """

    images: tuple[str | bytes, ...]
    masks: tuple[str | bytes, ...]
    values: tuple[int | None, ...] | None = None
    colors: tuple[int, ...] | None = None
    exif: bool = True
    members = ("images", "masks")

    @property
    def reader(self) -> MaskReader:
        return MaskReader(self.values, self.colors)


def read_mask(source, red=False, colors=None):
    """The values of a mask: uint8 (height, width).

    Args:
        source: The path of a PNG file (str) or its content (bytes); palette or gray, up to 8 bits.
        red: Whether the values are the red channel of a color image.
        colors: The color of each value, as the number 0xrrggbb, of masks in color; None for others.

    Raises:
        ValueError: if it is no such image, with the reason alone.

    Example:
        >>> Image.fromarray(np.uint8([[0, 2], [1, 255]])).save(tmp / "mask.png")
        >>> read_mask(str(tmp / "mask.png")).tolist()
        [[0, 2], [1, 255]]
    """
    try:
        if isinstance(source, str):
            check_file(source)
        source = content_of(source)
        check_chunks(source)
        with Image.open(io.BytesIO(source), formats=("PNG",)) as image:
            if image.width * image.height > bounds.MAX_PIXELS:
                raise ValueError(f"more than {bounds.MAX_PIXELS} pixels")
            if getattr(image, "n_frames", 1) > 1:
                raise ValueError(f"expected one image; got {image.n_frames} frames")
            if colors is not None:
                return _values_of_colors(np.asarray(image.convert("RGB"), "int32"), colors)
            if image.mode not in (("RGB", "RGBA") if red else ("1", "L", "P")):
                expected = "a color PNG" if red else "a palette or gray PNG of up to 8 bits"
                raise ValueError(f"expected {expected}; got one of Pillow's mode {image.mode}")
            if not image.tile:
                raise ValueError("a PNG file without pixels")
            form = image.tile[0][3]
            pixels = np.asarray(image).astype("uint8")
    except FileNotFoundError:
        raise ValueError("no such file") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ValueError(f"more than {bounds.MAX_PIXELS} pixels") from None
    except PNG_ERRORS as error:
        is_damaged = isinstance(error, (struct.error, Image.UnidentifiedImageError))
        raise ValueError("a damaged PNG file" if is_damaged else str(error)) from None
    return pixels[..., 0] if red else pixels // np.uint8(SCALES.get(form, 1))


def _values_of_colors(pixels, colors):
    """The index of each pixel's color: uint8 (height, width) of int32 (height, width, 3)."""
    numbers = (pixels << np.array([16, 8, 0], "int32")).sum(axis=-1)
    order = np.argsort(colors)
    known = np.array(colors)[order]
    places = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
    if (unknown := numbers[known[places] != numbers]).size:
        raise ValueError(f"a color without a class: #{unknown[0]:06x}")
    return order[places].astype("uint8")


def with_pixel_weights(batches):
    """Add the weight of each pixel's loss to batches: 1, or 0 where it is ignored.

    Args:
        batches: tf.data.Dataset of (images, class maps).

    Returns:
        tf.data.Dataset of (images, class maps, float32 (batch, height, width)). Their sum is the weight of a
        batch, by which devices and micro-batches with different numbers of labeled pixels are averaged.

    Example:
        >>> batches = tf.data.Dataset.from_tensors((tf.zeros((1, 1, 2, 3)), tf.constant([[[0, 255]]])))
        >>> next(iter(with_pixel_weights(batches)))[2].numpy().tolist()
        [[[1.0, 0.0]]]
    """

    @not_converted
    def weighted(images, labels):
        return images, labels, tf.cast(labels != IGNORE, tf.float32)

    return batches.map(weighted, tf.data.AUTOTUNE)
