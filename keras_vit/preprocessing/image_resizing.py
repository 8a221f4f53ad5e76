"""Images resized and cropped as a `Preprocessing` says: arrays and tensors, with the same pixels."""

import numpy as np
from keras import ops

from keras_vit.preprocessing import bounds
from keras_vit.preprocessing.tensors import backend_of, to_float32


def hat(x, numpy=np):
    """The weight of a pixel at a distance, in bilinear interpolation."""
    return numpy.maximum(1 - numpy.abs(x), 0)


def cubic(x, numpy=np):
    """Keys's cubic kernel with a = -1/2, as in Pillow, TensorFlow and torch's antialiased resize."""
    x = numpy.abs(x)
    near, far = (1.5 * x - 2.5) * x * x + 1, ((2.5 - 0.5 * x) * x - 4) * x + 2
    return numpy.where(x < 1, near, numpy.where(x < 2, far, 0))


# By interpolation: the radius of its kernel in pixels, and the weight of a pixel at a signed distance.
KERNELS = {
    "bilinear": (1, hat),
    "bicubic": (2, cubic),
    "nearest": (0.5, lambda x, numpy: numpy.where((x > -0.5) & (x <= 0.5), 1.0, 0.0)),
}
INTERPOLATIONS = tuple(KERNELS)
MAX_ENLARGEMENT = 16  # A resized image of more times the pixels kept is not computed as a whole.


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
    """Resize images until they cover `before_crop`, and crop the center.

    Where the resized images would be more than `MAX_ENLARGEMENT` times as large, as of long and narrow
    ones, only the crop is computed: with TensorFlow the same pixels, with antialias to 0.02 of 255.

    Args:
        pixels, preprocessing: As of `resize`.

    Returns:
        float32 (…, height, width, channels) at `image_size`.
    """
    backend, (height, width) = backend_of(pixels), preprocessing.image_size
    shape = backend.shape(pixels) if None in pixels.shape else tuple(pixels.shape)
    enlarged, top, left = preprocessing.crop_window(*shape[-3:-1])
    is_large = enlarged[0] * enlarged[1] > min(MAX_ENLARGEMENT * height * width, bounds.MAX_PIXELS)

    def of_whole():
        return resize(pixels, enlarged, preprocessing)[..., top : top + height, left : left + width, :]

    def of_part():
        axes = zip(shape[-3:-1], enlarged, (top, left), preprocessing.image_size)
        return _resized_part(pixels, axes, preprocessing)

    if isinstance(top, int):
        return of_part() if is_large else of_whole()
    cropped = backend.cond(is_large, of_part, of_whole)
    return backend.numpy.reshape(cropped, (*shape[:-3], height, width, shape[-1]))


def _resized_part(pixels, axes, preprocessing):
    """A part of resized images, computed from the pixels that it depends on.

    Args:
        pixels, preprocessing: As of `resize`.
        axes: For height and width: the size, the resized one, and the start and size of the part of that;
            ints, or where the graph alone knows them scalar tensors.

    Returns:
        float32 (…, height, width, channels).
    """
    backend = backend_of(pixels)
    radius, kernel = KERNELS[preprocessing.interpolation]
    smooth = preprocessing.antialias and preprocessing.interpolation != "nearest"
    part, weights = [...], []
    for old, new, start, count in axes:
        known = isinstance(start, int)
        numpy, cast = (np, np.asarray) if known else (backend.numpy, backend.cast)
        scale = cast(old, "float64") / cast(new, "float64")
        width = cast(numpy.maximum(scale, 1), "float64") if smooth else 1  # JAX's rules make it float32.
        # In float32, as TensorFlow computes them for whole images, so that the pixels are the same.
        centers = cast(cast(start, "float64") + np.arange(count) + 0.5, "float32") * cast(scale, "float32")
        centers = cast(centers, "float64")
        first = numpy.maximum(cast(numpy.floor(centers[0] - radius * width), "int64"), 0)
        stop = numpy.minimum(cast(numpy.ceil(centers[-1] + radius * width), "int64"), cast(old, "int64"))
        inputs = cast(numpy.arange(first, stop), "float64") + 0.5
        distances = (inputs - centers[:, np.newaxis]) / width
        if preprocessing.interpolation == "bicubic" and not smooth:
            distances = numpy.round(distances * 1024) / 1024  # TensorFlow has a table of the weights.
        weight = cast(kernel(distances, numpy), "float32")
        weights.append(weight / numpy.sum(weight, axis=1, keepdims=True))
        part.append(slice(int(first), int(stop)) if known else slice(first, stop))
    numpy, cast = (np, np.asarray) if isinstance(pixels, np.ndarray) else (backend.numpy, backend.cast)
    part = cast(pixels[(*part, slice(None))], "float32")
    by_rows = numpy.einsum("ij,...jkc->...ikc", weights[0], part)
    return numpy.clip(numpy.einsum("lk,...ikc->...ilc", weights[1], by_rows), 0, 255)
