"""Encoded images with EXIF data, as cameras and phones write them."""

import io
import struct

import numpy as np
from PIL import Image

ORIENTATIONS = range(1, 9)
FORMATS = {"JPEG": {}, "PNG": {}, "WEBP": {"lossless": True}}


def waves(height=20, width=33):
    """An image without symmetry: uint8 (height, width, 3)."""
    y, x = np.mgrid[:height, :width] / 7
    return (np.stack([np.sin(x + y), np.cos(2 * x), np.sin(y * x / 3)], -1) * 120 + 128).astype("uint8")


def exif(orientation, order="<", kind=3, entries=1):
    """EXIF data with an orientation in the last entry, in the byte order "<" or ">"."""
    data = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}IH", 8, entries)
    for tag in range(0x0100, 0x0100 + entries - 1):
        data += struct.pack(f"{order}HHII", tag, 4, 1, 7)
    value = f"{order}HxxI" if kind == 3 else f"{order}II"
    return (
        b"Exif\0\0" + data + struct.pack(f"{order}HHI", 0x0112, kind, 1) + struct.pack(value, orientation, 0)
    )


def photo(orientation, name="JPEG", pixels=None, **options):
    """The content of a file of an image with an orientation, by Pillow."""
    file = io.BytesIO()
    options = {"exif": exif(orientation), **FORMATS[name], **options}
    Image.fromarray(waves() if pixels is None else pixels).save(file, name, **options)
    return file.getvalue()
