"""Images resized and cropped as a `Preprocessing` says, arrays and tensors with the same pixels.

Arrays are resized by TensorFlow, as in `tf.data`. Where it is not imported they are resized by NumPy, with
differences of at most 1e-3 of 255.
"""

import numpy as np

from keras_vit.interpolation import cubic, hat
from keras_vit.lazy import LazyModule
from keras_vit.preprocessing import bounds
from keras_vit.preprocessing.tensors import arithmetic, backend_of, is_imported, to_float32

# By interpolation: the radius of its kernel in pixels, and the weight of a pixel at a signed distance.
KERNELS = {
    "bilinear": (1, hat),
    "bicubic": (2, cubic),
    "nearest": (0.5, lambda x, numpy: numpy.where((x > -0.5) & (x <= 0.5), 1.0, 0.0)),
}
INTERPOLATIONS = tuple(KERNELS)
tf = LazyModule("tensorflow")
MAX_ENLARGEMENT = 16  # A resized image of more times the pixels kept is not computed as a whole.
_CHUNK = 16  # rows of a resized array that a matmul computes


def resize(pixels, size, preprocessing):
    """Resize images to any (height, width) with the interpolation of a `Preprocessing`.

    Args:
        pixels: Images (…, height, width, channels) in [0, 255]: a float32 or uint8 array or tensor of
            TensorFlow, or a float32 tensor of another backend.
        size: Ints, or where the graph alone knows them scalar tensors.
        preprocessing: `Preprocessing`.

    Returns:
        float32 (…, height, width, channels), an array for an array.
    """
    if isinstance(size[0], int) and tuple(pixels.shape[-3:-1]) == tuple(size):
        return to_float32(pixels)
    is_array = isinstance(pixels, np.ndarray)
    if is_array and not is_imported("tensorflow"):
        axes = [(old, new, 0, new) for old, new in zip(pixels.shape[-3:-1], size)]
        return _resized_array(pixels, axes, preprocessing)
    if is_array:
        pixels = tf.convert_to_tensor(pixels)
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
    return np.asarray(resized) if is_array else to_float32(resized)


def padded(pixels, size_of, value=0):
    """Pad images below and to the right.

    Args:
        pixels: As for `resize`.
        size_of: Function of a height and a width to those of the padded image.
        value: Of the padding.

    Returns:
        The same type of array or tensor.
    """
    numpy = np if isinstance(pixels, np.ndarray) else backend_of(pixels).numpy
    shape = backend_of(pixels).shape(pixels) if None in pixels.shape else pixels.shape
    height, width = shape[-3:-1]
    rows, columns = size_of(height, width)
    axes = [(0, 0)] * (len(pixels.shape) - 3) + [(0, rows - height), (0, columns - width), (0, 0)]
    return numpy.pad(pixels, axes, constant_values=value)


def resize_and_crop(pixels, preprocessing):
    """Resize images until they cover `before_crop`, and crop the center.

    Where the resized images would be more than `MAX_ENLARGEMENT` times as large, as of long and narrow
    ones, only the crop is computed: with TensorFlow the same pixels, to 1e-3 of 255.

    Args:
        pixels, preprocessing: As for `resize`.

    Returns:
        float32 (…, height, width, channels) at `image_size`.
    """
    height, width = preprocessing.image_size
    shape = backend_of(pixels).shape(pixels) if None in pixels.shape else tuple(pixels.shape)
    enlarged, top, left = preprocessing.crop_window(*shape[-3:-1])
    axes = [*zip(shape[-3:-1], enlarged, (top, left), preprocessing.image_size)]
    is_large = enlarged[0] * enlarged[1] > min(MAX_ENLARGEMENT * height * width, bounds.MAX_PIXELS)

    def of_whole():
        return resize(pixels, enlarged, preprocessing)[..., top : top + height, left : left + width, :]

    def of_part():
        resized = _resized_array if isinstance(pixels, np.ndarray) else _resized_part
        return resized(pixels, axes, preprocessing)

    if isinstance(top, int):
        return of_part() if is_large else of_whole()
    backend = backend_of(pixels)
    cropped = backend.cond(is_large, of_part, of_whole)
    return backend.numpy.reshape(cropped, (*shape[:-3], height, width, shape[-1]))


# Below, an axis is (size, resized size, start, count), the last two of the part that is kept: ints, or scalar
# tensors where the graph alone knows them.
def _resized_array(pixels, axes, preprocessing):
    """Resize arrays, of which a part is kept.

    Args:
        pixels, preprocessing: As for `resize`.
        axes: The axes of height and width.

    Returns:
        float32 (…, height, width, channels) of the part.
    """
    used = [_used(axis, preprocessing) for axis in axes]
    pixels = pixels[..., used[0], used[1], :]
    # The rows are contiguous; if there are more of them afterwards, there should be few columns.
    for i in (0, 1) if axes[0][-1] <= pixels.shape[-3] else (1, 0):
        pixels = _resized_axis(pixels, i - 3, axes[i], used[i].start, preprocessing)
    return np.clip(pixels, 0, 255) if preprocessing.interpolation == "bicubic" else pixels


def _used(axis, preprocessing):
    """The slice of an axis that its resized part depends on."""
    old, new, start, count = axis
    first, last = (_weights((old, new, i, 1), preprocessing)[0] for i in (start, start + count - 1))
    return slice(first.start, last.stop)


def _resized_axis(pixels, position, axis, first, preprocessing):
    """Resize one axis of an array, a few rows at a time from the rows that they depend on.

    Args:
        pixels: The array.
        position: The axis's position in its shape.
        axis: The axis.
        first: The index in the axis of the array's first row.
        preprocessing: `Preprocessing`.
    """
    old, new, start, count = axis
    rows = np.moveaxis(pixels, position, 0)
    shape, rows = rows.shape[1:], rows.reshape(len(rows), -1)
    resized = np.empty((count, rows.shape[1]), "float32")
    for done in range(0, count, _CHUNK):
        part = resized[done : done + _CHUNK]
        inputs, weights = _weights((old, new, start + done, len(part)), preprocessing)
        used = np.flatnonzero(weights.any(axis=0))
        inputs = rows[inputs.start - first + used].astype("float32", copy=False)
        np.matmul(weights[:, used], inputs, out=part)
    return np.moveaxis(resized.reshape(count, *shape), 0, position)


def _resized_part(pixels, axes, preprocessing):
    """As `_resized_array`, of a tensor."""
    backend = backend_of(pixels)
    rows, columns = (_weights(axis, preprocessing) for axis in axes)
    part = backend.cast(pixels[..., rows[0], columns[0], :], "float32")
    by_rows = backend.numpy.einsum("ij,...jkc->...ikc", rows[1], part)
    resized = backend.numpy.einsum("lk,...ikc->...ilc", columns[1], by_rows)
    return backend.numpy.clip(resized, 0, 255) if preprocessing.interpolation == "bicubic" else resized


def _weights(axis, preprocessing):
    """(the slice of an axis that its resized part depends on, weights float32 (part, slice))."""
    old, new, start, count = axis
    radius, kernel = KERNELS[preprocessing.interpolation]
    smooth = preprocessing.antialias and preprocessing.interpolation != "nearest"
    numpy, cast = arithmetic(*axis)
    # In float32, as TensorFlow computes them for whole images, so that the pixels are the same.
    old32, new32 = cast(old, "float32"), cast(new, "float32")
    scale = 1 / (new32 / old32) if smooth else old32 / new32
    width = cast(numpy.maximum(scale, 1), "float64") if smooth else 1  # JAX's rules make it float32.
    centers = cast(cast(start, "float64") + np.arange(count) + 0.5, "float32") * scale
    centers = cast(centers, "float64")
    first = numpy.maximum(cast(numpy.floor(centers[0] - radius * width), "int64"), 0)
    stop = numpy.minimum(cast(numpy.ceil(centers[-1] + radius * width), "int64"), cast(old, "int64"))
    inputs = cast(numpy.arange(first, stop), "float64") + 0.5
    distances = (inputs - centers[:, np.newaxis]) / width
    if preprocessing.interpolation == "bicubic" and not smooth:
        distances = numpy.round(distances * 1024) / 1024  # TensorFlow has a table of the weights.
    weights = cast(kernel(distances, numpy), "float32")
    weights = weights / numpy.sum(weights, axis=1, keepdims=True)
    return (slice(int(first), int(stop)) if numpy is np else slice(first, stop)), weights
