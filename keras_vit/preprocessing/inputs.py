"""What callers pass as images, arrays of any rank and channel count, paths and pictures, as pixels."""

from collections.abc import Sequence

import numpy as np

from keras_vit.preprocessing.image_files import is_encoded, is_picture, picture_pixels, read_image
from keras_vit.preprocessing.value_range import check_inside, range_of, to_255

LUMA = (0.299, 0.587, 0.114)  # the brightness of red, green and blue (ITU-R BT.601)
# The model's channel count and the channel counts of images that it accepts: gray or RGB, perhaps with alpha.
ACCEPTED_CHANNELS = {1: (1, 2, 3, 4), 3: (1, 3, 4)}
MIN_WIDTH = 16  # A smaller last axis is taken for the channels, unless the images are square.


def as_list(images, channels):
    """A sequence of images; a single image becomes a list of one."""
    if is_encoded(images) or is_picture(images):
        return [images]
    if isinstance(images, Sequence):
        return images
    ndim = np.ndim(images)
    if ndim not in (2, 3, 4):
        raise ValueError(
            "expected images as an array ([batch,] height, width[, channels]), a path, a URL, a file's "
            f"bytes, a picture of Pillow, or a list of these; got {type(images).__name__} of rank {ndim}"
        )
    images = np.asarray(images)
    if ndim == 3 and _is_gray_batch(images.shape, channels):
        return images[..., np.newaxis]
    return images if ndim == 4 else images[np.newaxis]


def is_raw(images):
    """Whether images are as they were taken, and not model input: no array or tensor of floats.

    >>> is_raw(["cat.jpg"]), is_raw(np.zeros((1, 8, 8, 3), "uint8")), is_raw(np.zeros((1, 8, 8, 3)))
    (True, True, False)
    """
    if is_encoded(images) or is_picture(images) or isinstance(images, Sequence):
        return True
    return "uint8" in str(getattr(images, "dtype", ""))


def _is_gray_batch(shape, channels):
    """Whether an array of rank 3 is (batch, height, width) and not one image.

    >>> [_is_gray_batch(shape, 3) for shape in ((60, 28, 28), (28, 28, 3), (3, 64, 64), (64, 64, 5))]
    [True, False, False, False]
    """
    count, height, width = shape
    accepted = accepted_channels(channels)
    channels_first = channels > 1 and count > 1 and count in accepted
    channels_last = width in accepted or (width < MIN_WIDTH and width != height)
    return not channels_first and not channels_last


def as_pixels(image, channels, value_range=None):
    """An image, an array, a picture of Pillow or what `read_image` takes, as pixels in [0, 255].

    They have the shape (height, width, channels), and are float32, or uint8 of an image that is uint8 and has
    the channels.

    >>> as_pixels(np.full((4, 4), 0.5), 3)[0, 0].tolist()
    [127.5, 127.5, 127.5]
    """
    if is_encoded(image):
        image = read_image(image)
    image = picture_pixels(image) if is_picture(image) else np.asarray(image)
    if image.ndim == 2:
        image = image[..., np.newaxis]
    if image.ndim != 3 or 0 in image.shape:
        raise ValueError(
            f"an image must have the shape (height, width) or (height, width, channels); got {image.shape}"
        )
    check_channels(image.shape, channels)
    low, high = range_of(image.dtype.name, value_range)
    if image.dtype != np.uint8:
        check_inside((low, high), image.min(), image.max())
        image = to_255(image.astype("float32"), low, high)
    return with_channels(image, channels, np)


def accepted_channels(channels):
    return ACCEPTED_CHANNELS.get(channels, (1, channels))


def check_channels(shape, channels):
    """Raise ValueError unless a model of so many channels accepts images of this shape."""
    accepted = accepted_channels(channels)
    if shape[-1] not in accepted:
        remedy = (
            " (put the channels last with np.moveaxis(images, -3, -1), or add them to gray images with "
            "images[..., np.newaxis])"
        )
        raise ValueError(
            f"the model reads {channels} channels; got an image with {shape[-1]}, of the shape {shape}"
            f"{remedy * (shape[-3] in accepted)}"
        )


def with_channels(pixels, channels, numpy):
    """Convert images (…, channels) to the model's channels: alpha dropped, gray repeated, RGB mixed.

    Args:
        pixels: An array or tensor.
        channels: The model's channel count.
        numpy: The NumPy-like module for the pixels.

    >>> with_channels(np.ones((4, 4, 4)), 1, np).shape
    (4, 4, 1)
    """
    if channels in ACCEPTED_CHANNELS and pixels.shape[-1] in (2, 4):
        pixels = pixels[..., :-1]
    if pixels.shape[-1] == channels:
        return pixels
    if pixels.shape[-1] == 1:
        return numpy.repeat(pixels, channels, axis=-1)
    # No matmul, of which GPUs would round the weights.
    return numpy.sum(pixels * np.array(LUMA, "float32"), axis=-1, keepdims=True)
