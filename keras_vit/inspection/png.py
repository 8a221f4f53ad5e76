"""The contents of PNG files."""

import io

import numpy as np
from PIL import Image


def png_bytes(image):
    """The content of a PNG file of a Pillow image, or of an array: colors (height, width, 3), or gray."""
    file = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(file, "PNG")
    return file.getvalue()
