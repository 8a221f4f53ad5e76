"""Depth maps in files: PNG, TIFF, PFM, OpenEXR and NumPy's arrays, and samples that have one each."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import os
import re
import struct
import threading
import tokenize
import zipfile
import zlib

import numpy as np
import tensorflow as tf
from PIL import Image

from keras_vit.data.files import read_text
from keras_vit.data.maps import MapReader, MapSamples
from keras_vit.data.png_chunks import check_chunks
from keras_vit.data.samples import content_of, not_converted
from keras_vit.messages import did_you_mean, one_line
from keras_vit.preprocessing import bounds
from keras_vit.preprocessing.image_files import check_file
from keras_vit.rules import one_of, optional
from keras_vit.tasks.depth.labels import CROPS

SETTINGS = "depth.json"
QUANTITIES = ("depth", "disparity", "values")
SUFFIXES = (".png", ".npy", ".npz", ".pfm", ".tif", ".tiff", ".exr")
ARRAYS = ("depth", "disparity", "values")  # names of the array in a .npz file with several
GRAY = ("L", "I", "I;16", "I;16B", "I;16L", "F")  # Pillow's modes of one channel
MAX_CHANNELS = 64
MAX_BYTES = 8 * bounds.MAX_PIXELS  # of an array in a .npz file
# NumPy's headers are Python literals; before 3.11.8 Python parses them in one thread only, as
# https://github.com/python/cpython/issues/106905 says.
_HEADERS = threading.Lock()
# What NumPy, zipfile and Pillow's reader of TIFF raise for damaged or hostile files.
DAMAGED = (
    *(ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RuntimeError, MemoryError),
    *(OSError, EOFError, SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error, struct.error),
)


class NoScaleError(ValueError):
    """A file has integers, and nobody says what they mean."""


@dataclasses.dataclass(frozen=True)
class DepthReader(MapReader):
    """How files become depth maps: float32 (height, width, channels), NaN where there is no measurement.

    Args:
        quantity: "depth": depth = value / scale; "disparity": depth = scale / value; "values": any numbers,
            value / scale.
        scale: The stored value of one unit, such as 1000 for millimeters in a file and meters as unit; of
            disparities in pixels, the focal length in pixels times the baseline in the unit. None: 1, of
            floating-point numbers only.
        unit: Of depth, such as "m"; None if it is unknown, or arbitrary.
        min, max: The range of measurements, in the unit; others are invalid. None: any.
        invalid: A stored value that stands for no measurement; of several channels, where all of them have
            it. Depths and disparities that are not above 0, and numbers that are not finite, are always
            invalid.
        names: A name for each channel.
        crop: The part of each image that evaluation scores, a name of `labels.CROPS`; None: all of
            it.

    Raises:
        ValueError: for a value out of range, or several channels that are no "values".

    Example:
        >>> reader = DepthReader(scale=1000, unit="m", max=10)
        >>> values = np.uint16([[0, 500], [2000, 20000]])
        >>> reader.converted(values)[..., 0].tolist()
        [[nan, 0.5], [2.0, nan]]
        >>> DepthReader("disparity", scale=20.0).converted(np.float32([[0, 5]]))[..., 0].tolist()
        [[nan, 4.0]]
    """

    task = "depth"
    quantity: str = "depth"
    scale: float | None = None
    unit: str | None = None
    min: float | None = None
    max: float | None = None
    invalid: float | None = None
    names: tuple[str, ...] = ("depth",)
    crop: str | None = None
    dtype = "float32"

    def __post_init__(self):
        if self.quantity not in QUANTITIES:
            hint = did_you_mean(str(self.quantity), QUANTITIES)
            raise ValueError(f"expected a quantity of {', '.join(QUANTITIES)}; got {self.quantity!r}{hint}")
        for name in ("scale", "min", "max", "invalid"):
            value = getattr(self, name)
            if value is not None and (not _is_number(value) or name == "scale" and value <= 0):
                raise ValueError(
                    f"expected {name} to be a{' positive' * (name == 'scale')} number; got {value!r}"
                )
        if not (self.unit is None or isinstance(self.unit, str) and self.unit.strip()):
            raise ValueError(f"expected unit to be a text; got {self.unit!r}")
        if None not in (self.min, self.max) and self.min >= self.max:
            raise ValueError(f"expected a min below max; got {self.min:g} and {self.max:g}")
        optional(one_of(CROPS)).check("crop", self.crop)
        names, are_texts = self.names, isinstance(self.names, list | tuple)
        are_texts = are_texts and all(isinstance(name, str) and name.strip() for name in names)
        if not are_texts or not 0 < len({*names}) == len(names) <= MAX_CHANNELS:
            raise ValueError(f"expected 1 to {MAX_CHANNELS} different names of channels; got {names!r}")
        object.__setattr__(self, "names", tuple(names))
        if len(names) > 1 and self.quantity != "values":
            raise ValueError(
                f"expected the quantity values of {len(names)} channels; got {self.quantity!r}, which has one"
            )

    @property
    def channels(self):
        return len(self.names)

    @property
    def label_values(self):
        """The arguments that are known, as a JSON value."""
        values = dataclasses.asdict(self) | {"names": [*self.names]}
        return {name: value for name, value in values.items() if value is not None}

    def read(self, source):
        """The stored numbers: (height, width, channels) in the dtype of the file.

        Raises:
            NoScaleError: for integers without a scale.
        """
        values = read_depth_file(source)
        if values.shape[2] != self.channels:
            raise ValueError(f"expected {self.channels} channel(s); got {values.shape[2]}")
        if self.scale is None and values.dtype.kind != "f":
            raise NoScaleError(
                f"{values.dtype} numbers, and {SETTINGS} has no scale, the stored value of one unit"
            )
        return values

    def label(self, source):
        return self.converted(self.read(source))

    def converted(self, values):
        """The depth map of stored numbers, an array (height, width) or (height, width, channels)."""
        values = values[..., np.newaxis] if values.ndim == 2 else values
        numbers = values.astype(
            "float64" if values.dtype.itemsize > 4 or values.dtype.kind != "f" else "float32"
        )
        with np.errstate(all="ignore"):
            scale = self.scale or 1
            depths = scale / numbers if self.quantity == "disparity" else numbers / scale
            depths = depths.astype("float32", copy=False)
        low = self.min if self.quantity == "values" else max(self.min or 0, np.finfo("float32").tiny)
        is_valid = np.isfinite(depths)
        if low is not None:
            is_valid &= depths >= np.float32(low)
        if self.max is not None:
            is_valid &= depths <= np.float32(self.max)
        if self.invalid is not None:
            is_valid &= (values != self.invalid).any(axis=-1, keepdims=True)
        return np.where(is_valid, depths, np.float32("nan"))


@dataclasses.dataclass(frozen=True)
class DepthSamples(MapSamples):
    """Encoded images and their depth maps.

    Args:
        images: Paths (str) or file contents (bytes), all of one kind.
        depths: Paths or contents of files, of the sizes of the images.
        reader: A `DepthReader`.
        exif: As for `Samples`.

    Example:
        >>> files = io.BytesIO(), io.BytesIO()
        >>> Image.new("RGB", (2, 1)).save(files[0], "PNG")
        >>> np.save(files[1], np.float32([[1.5, 0.0]]))
        >>> image, depth = (file.getvalue() for file in files)
        >>> DepthSamples((image,), (depth,))[0][1].tolist()
        [[[1.5], [nan]]]
    """

    images: tuple[str | bytes, ...]
    depths: tuple[str | bytes, ...]
    reader: DepthReader = DepthReader()
    exif: bool = True
    members = ("images", "depths")


def read_settings(root, **defaults):
    """The `DepthReader` of a folder's `depth.json`.

    Args:
        root: The folder, pathlib.Path. The file has an object with any arguments of `DepthReader`; without a
            file these are the defaults.
        defaults: Arguments that the file may replace.

    Raises:
        ValueError: for a damaged file, or an unknown or a wrong value, with the path.

    Example:
        >>> _ = (tmp / "depth.json").write_text('{"scale": 1000, "unit": "m"}')
        >>> read_settings(tmp).scale
        1000
    """
    path, known = root / SETTINGS, [field.name for field in dataclasses.fields(DepthReader)]
    if not path.is_file():
        return DepthReader(**defaults)
    try:
        settings = json.loads(read_text(path))
        if not isinstance(settings, dict):
            raise ValueError(f"expected an object; got {type(settings).__name__}")
        if unknown := [name for name in settings if name not in known]:
            hint = did_you_mean(unknown[0], known)
            raise ValueError(f"expected keys of {', '.join(known)}; got {unknown[0]!r}{hint}")
        return DepthReader(
            **defaults | {name: value for name, value in settings.items() if value is not None}
        )
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from None


def read_depth_file(source):
    """The numbers in a file: an array (height, width, channels) of integers or floating-point numbers.

    The format is that of the first bytes: a gray PNG of 8 or 16 bits or TIFF of 8, 16 or 32 bits, a PFM file,
    a `.npy` array (height, width) or (height, width, channels), or a `.npz` file with one array, or with one
    named depth, disparity or values. OpenEXR is read by OpenCV, where it is installed with this format.

    Args:
        source: The path of a file (str) or its content (bytes).

    Raises:
        ValueError: if it is no such file, with the reason alone.

    Example:
        >>> np.save(tmp / "depth.npy", np.float32([[0.5, 2]]))
        >>> read_depth_file(str(tmp / "depth.npy"))[..., 0].tolist()
        [[0.5, 2.0]]
    """
    try:
        if isinstance(source, str):
            check_file(source)
        source = content_of(source)
    except FileNotFoundError:
        raise ValueError("no such file") from None
    read = next((read for start, read in READERS.items() if source.startswith(start)), None)
    if read is None:
        raise ValueError(f"expected a file of {', '.join(SUFFIXES)}; got {len(source)} bytes of another kind")
    values = read(source)
    if values.dtype.kind not in "iuf" or values.dtype.itemsize > 8:
        raise ValueError(f"expected integers or floating-point numbers; got {values.dtype}")
    if values.ndim not in (2, 3) or 0 in values.shape:
        raise ValueError(
            f"expected an array (height, width) or (height, width, channels); got {values.shape}"
        )
    _check_size(values.shape[:2])
    return values[..., np.newaxis] if values.ndim == 2 else values


def _read_picture(content):
    """The pixels of a gray PNG or TIFF file."""
    is_png = content.startswith(b"\x89")
    try:
        if is_png:
            check_chunks(content)
        with Image.open(io.BytesIO(content), formats=("PNG" if is_png else "TIFF",)) as image:
            size, mode, frames = image.size, image.mode, getattr(image, "n_frames", 1)
            is_small = is_png and image.tile and re.fullmatch("L;[124]", str(image.tile[0][3]))
            is_gray = mode in GRAY and not is_small and frames == 1
            pixels = np.asarray(image) if is_gray and math.prod(size) <= bounds.MAX_PIXELS else None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ValueError(f"more than {bounds.MAX_PIXELS} pixels") from None
    except DAMAGED:
        raise ValueError(f"a damaged {'PNG' if is_png else 'TIFF'} file") from None
    _check_size(size)
    if pixels is None:
        expected = "a gray image of 8 or 16 bits, or in TIFF of 32 bits"
        raise ValueError(f"expected {expected}; got {frames} frame(s) of Pillow's mode {mode}")
    # Pillow's mode I, of PNG files with 16 bits in some versions, has 32.
    return pixels.astype("uint16") if is_png and pixels.dtype == "int32" else pixels


def _read_array(content):
    """The array of a `.npy` file; no more is allocated than the file has."""
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        if version > (2, 0):
            raise ValueError(f"version {version}")
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        with _HEADERS:
            shape, by_columns, dtype = read(file)
        count = math.prod(shape)
        if dtype.hasobject or len(content) - file.tell() != count * dtype.itemsize:
            raise ValueError("another number of bytes than its header says")
        values = np.frombuffer(content, dtype, count, file.tell())
        values = values.reshape(shape, order="F" if by_columns else "C")
    except DAMAGED as error:
        raise ValueError(f"a damaged .npy file ({one_line(error)})") from None
    return values.astype(dtype.newbyteorder("="))


def _read_archive(content):
    """The array of a `.npz` file."""
    array = None
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            arrays = {name.removesuffix(".npy"): name for name in archive.namelist()}
            names = [*arrays] if len(arrays) == 1 else [name for name in ARRAYS if name in arrays]
            if len(names) == 1:
                with archive.open(arrays[names[0]]) as file:
                    array = file.read(MAX_BYTES)
    except DAMAGED as error:
        raise ValueError(f"a damaged .npz file ({one_line(error)})") from None
    if array is None:
        has = ", ".join(arrays) or "none"
        raise ValueError(f"expected one array, or one named {' or '.join(ARRAYS)}; got {has}")
    return _read_array(array)


def _read_pfm(content):
    """The pixels of a PFM file, whose first row is the lowest.

    Source: https://www.pauldebevec.com/Research/HDR/PFM/
    """
    header = re.match(rb"P([Ff])\s+(\d{1,9})\s+(\d{1,9})\s+([-+]?[0-9.]+(?:[eE][-+]?\d+)?)\s", content)
    if header is None:
        raise ValueError("a damaged PFM file (its header)")
    channels, (width, height) = 3 if header[1] == b"F" else 1, map(int, header.group(2, 3))
    count, start = width * height * channels, header.end()
    if len(content) - start != 4 * count:
        raise ValueError("a damaged PFM file (another number of bytes than its header says)")
    order = "<" if header[4].startswith(b"-") else ">"
    values = np.frombuffer(content, f"{order}f4", count, start).reshape(height, width, channels)
    return values[::-1].astype("float32")


def _read_exr(content):
    """The channel of an OpenEXR file, by OpenCV."""
    os.environ.setdefault("OPENCV_IO_ENABLE_OPENEXR", "1")  # OpenCV reads it when it is imported.
    try:
        import cv2
    except ImportError:
        cv2 = None
    pixels = None
    if cv2 is not None:
        with contextlib.suppress(cv2.error):
            pixels = cv2.imdecode(np.frombuffer(content, "uint8"), cv2.IMREAD_UNCHANGED)
    if pixels is None:
        raise ValueError("an OpenEXR file, which OpenCV cannot read here; convert it to .npy")
    # OpenCV has blue first, and an alpha channel last.
    return pixels[..., [2, 1, 0, 3][: pixels.shape[2]]] if pixels.ndim == 3 else pixels


def _check_size(shape):
    if math.prod(shape) > bounds.MAX_PIXELS:
        raise ValueError(f"more than {bounds.MAX_PIXELS} pixels")


def _is_number(value):
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value)


# By first bytes.
READERS = {
    b"\x89PNG": _read_picture,
    **dict.fromkeys((b"II*\0", b"MM\0*"), _read_picture),
    b"\x93NUMPY": _read_array,
    b"PK": _read_archive,
    b"PF": _read_pfm,
    b"Pf": _read_pfm,
    b"\x76\x2f\x31\x01": _read_exr,
}


def with_image_weights(batches, farthest=math.inf):
    """Add the weight of each image's loss to batches: 1, or 0 without a measurement.

    Args:
        batches: tf.data.Dataset of (images, depth maps).
        farthest: The largest depth that counts.

    Returns:
        tf.data.Dataset of (images, depth maps, float32 (batch,)). The sum of these weights is that of a
        batch, by which devices and micro-batches are averaged.

    Example:
        >>> batches = tf.data.Dataset.from_tensors((tf.zeros((1, 1, 2, 3)), tf.constant([[[[math.nan]]]])))
        >>> next(iter(with_image_weights(batches)))[2].numpy().tolist()
        [0.0]
    """

    @not_converted
    def weighted(images, maps):
        is_measured = tf.reduce_any(tf.abs(maps) <= farthest, axis=(1, 2, 3))
        return images, maps, tf.cast(is_measured, tf.float32)

    return batches.map(weighted, tf.data.AUTOTUNE)
