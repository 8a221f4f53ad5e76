"""Class maps as pictures: the colors of the classes, palette PNG files, and maps over images."""

from __future__ import annotations

import numpy as np
from PIL import Image

from keras_vit.inspection.class_colors import VALUES, class_colors
from keras_vit.preprocessing.image_files import image_bytes


def palette_png(classes: np.ndarray) -> bytes:
    """A class map as a PNG file, whose values are the classes and whose palette has their colors.

    `folder:` data sets read such files as masks.

    Args:
        classes: Ints (height, width) from 0 to 255.

    Returns:
        The file's content.

    Raises:
        ValueError: for other values.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> with Image.open(io.BytesIO(palette_png(np.array([[0, 2]])))) as mask:
        ...     mask.mode, np.asarray(mask).tolist(), mask.getpalette()[:9]
        ('P', [[0, 2]], [0, 0, 0, 128, 0, 0, 0, 128, 0])
    """
    classes = np.asarray(classes)
    if classes.size and not 0 <= classes.min() <= classes.max() < VALUES:
        raise ValueError(
            f"expected classes from 0 to {VALUES - 1}, which a palette PNG holds; got classes from "
            f"{classes.min()} to {classes.max()}"
        )
    image = Image.fromarray(classes.astype("uint8")).convert("L")
    image.putpalette(class_colors().tobytes())
    return image_bytes(image)


def class_overlay(image: np.ndarray, classes: np.ndarray, opacity: float = 0.5) -> np.ndarray:
    """An image with the colors of a class map over it, but for class 0, whose color is black.

    In most data sets class 0 is the background.

    Args:
        image: (height, width, 3), or 1 channel shown in gray: uint8, or floats in [0, 1].
        classes: Ints (height, width).
        opacity: Of the colors, in [0, 1].

    Returns:
        An array (height, width, 3) of the image's type.

    Example:
        >>> class_overlay(np.full((1, 2, 3), 100, "uint8"), [[0, 1]]).tolist()
        [[[100, 100, 100], [114, 50, 50]]]
    """
    image, classes = np.asarray(image), np.asarray(classes)
    colors = class_colors(max(int(classes.max(initial=0)) + 1, 1)).astype("float32")
    if image.dtype != np.uint8:
        colors /= 255
    opacity = np.where(classes == 0, 0, np.float32(opacity))[..., np.newaxis]
    mixed = (1 - opacity) * image + opacity * colors[classes]
    return np.round(mixed).astype("uint8") if image.dtype == np.uint8 else mixed.astype(image.dtype)


def colors_of(maps, names):
    """The colors of the classes in maps by name, without class 0, which is not drawn.

    >>> colors_of([np.array([[0, 2], [255, 0]])], ["road", "car", "tree"])
    {'tree': [0.0, 0.5, 0.0]}
    """
    numbers = sorted({number for each in maps for number in np.unique(each).tolist()})
    colors = (class_colors(len(names)) / 255).round(2).tolist()
    return {names[number]: colors[number] for number in numbers if 0 < number < len(names)}
