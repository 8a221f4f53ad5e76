"""Images resized and cropped as a `Preprocessing` says: arrays and tensors, with the same pixels."""

import math

import numpy as np
from keras import ops

from keras_vit.preprocessing import bounds
from keras_vit.preprocessing.tensors import backend_of, to_float32

INTERPOLATIONS = ("bilinear", "bicubic", "nearest")
MAX_ASPECT = 16  # times the aspect ratio of the crop: of longer images the ends are never resized


def resize(pixels, size, preprocessing):
    """Resize images to any (height, width) with the interpolation of a `Preprocessing`.

    Args:
        pixels: Images (…, height, width, channels) in [0, 255]: a float32 array, or a tensor; uint8 ones of
            TensorFlow, too.
        size: Ints, or where the graph alone knows them scalar tensors.
        preprocessing: `Preprocessing`.

    Returns:
        float32 (…, height, width, channels), an array for an array.
    """
    if isinstance(size[0], int) and tuple(pixels.shape[-3:-1]) == tuple(size):
        return to_float32(pixels)
    backend = backend_of(pixels)
    resized = backend.image.resize(
        pixels,
        [side if isinstance(side, int) else backend.cast(side, "int32") for side in size],
        interpolation=preprocessing.interpolation,
        antialias=preprocessing.antialias,
        data_format="channels_last",
    )
    if preprocessing.interpolation == "bicubic":
        # Cubics overshoot. Pillow, which prepared the images in training, clips.
        resized = backend.numpy.clip(resized, 0, 255)
    return ops.convert_to_numpy(resized) if isinstance(pixels, np.ndarray) else to_float32(resized)


def resize_and_crop(pixels, preprocessing):
    """Resize images until they cover `before_crop`, and crop the centre.

    The ends of long and narrow images, which would take much memory at the larger size, are removed first.

    Args:
        pixels, preprocessing: As of `resize`.

    Returns:
        float32 (…, height, width, channels) at `image_size`.
    """
    backend, (height, width) = backend_of(pixels), preprocessing.image_size
    shape, least = backend.shape(pixels), preprocessing.before_crop
    sides, maximum = shape[-3:-1], max
    is_known = all(isinstance(side, int) for side in sides)
    if not is_known:
        sides, maximum = [backend.cast(side, "int64") for side in sides], backend.numpy.maximum
    aspect = min(MAX_ASPECT, bounds.MAX_PIXELS // math.prod(least))
    longest = [aspect * low * side // other for low, side, other in zip(least, sides[::-1], least[::-1])]
    top, left = (maximum(side - most, 0) // 2 for side, most in zip(sides, longest))
    bottom, right = sides[0] - top, sides[1] - left
    pixels = pixels[..., top:bottom, left:right, :]
    enlarged, top, left = preprocessing.crop_window(bottom - top, right - left)
    cropped = resize(pixels, enlarged, preprocessing)[..., top : top + height, left : left + width, :]
    return cropped if is_known else backend.numpy.reshape(cropped, (*shape[:-3], height, width, shape[-1]))
