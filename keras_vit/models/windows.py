"""Segmentation and dense features of images of any size, whole or in overlapping windows."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.messages import names_arguments
from keras_vit.models.backbones import backbone, inner_transformer
from keras_vit.models.classifying import check_finite
from keras_vit.models.vit.geometry import DYNAMIC_SIZE, grid_shape, is_dynamic, patch_pixels
from keras_vit.preprocessing.image_preprocessing import Preprocessing
from keras_vit.preprocessing.image_resizing import resize
from keras_vit.preprocessing.inputs import as_list, as_pixels
from keras_vit.rules import boolean, integer, number, optional_pair
from keras_vit.types import Array, ArrayOrTensor, Images, Path, Picture, Size

if TYPE_CHECKING:
    import keras

    from keras_vit.export.exported_model import ExportedModel
    from keras_vit.models.vit.vision_transformer import VisionTransformer

_OVERLAP = number(0, below=1)
_IN_MEMORY = 2**25  # bytes of either of two temporary files; more are on disk
_AT_ONCE = 2**24  # logits of a whole image that are resized at once, at least of one class
_BILINEAR = Preprocessing(None, interpolation="bilinear", antialias=False)


@names_arguments
def segment(
    model: keras.Model | ExportedModel,
    images: Images,
    whole: bool = False,
    window: Size | None = None,
    overlap: float = 0.5,
    batch_size: int = 8,
    value_range: tuple[float, float] | None = None,
) -> list[np.ndarray]:
    """The class of each pixel of images, at the images' own sizes.

    An image is cut into overlapping windows of the model's size, whose logits are averaged; one that is
    smaller is padded. In memory are the image in float32, its map, and the logits of `batch_size` windows; of
    those that the next row of windows shares 64 MiB are, and the rest is in a temporary file. A model for any
    size computes an image as one window unless `window` is given. With `whole` there are `batch_size` images
    at a time, and the logits of a few classes of an image are resized at once.

    Args:
        model: An `ImageSegmenter`.
        images: What `model.preprocessing` takes: an array, a path, a URL, bytes, a Pillow image, or a list.
        whole: Whether to resize each image to the model's size instead, as `model.preprocessing` does, and
            its logits back.
        window: Side of the windows in pixels, or (height, width), only for a model for any size.
        overlap: The fraction of a window's side that it shares with the next one, in [0, 1).
        batch_size: Number of windows, or of whole images, that are computed at a time.
        value_range: (lowest, highest) possible value of float images; None for (0, 1).

    Returns:
        A list of int32 arrays (height, width), one for each image.

    Raises:
        ValueError: for a window that patches do not divide, a window of a model with one size, `whole` for a
            model without a size, an image that cannot be read, or a model that computes NaN.

    Example:
        >>> encoder = keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3)
        >>> segmenter = keras_vit.ImageSegmenter(encoder, num_classes=4)
        >>> [found.shape for found in segmenter.segment(np.zeros((2, 50, 70, 3), "uint8"))]
        [(50, 70), (50, 70)]

    Source: mmsegmentation's `slide_inference` and `whole_inference`.
    """
    images = checked_images(model, images, whole, batch_size)
    if whole:
        return [classes_of(*each) for each in whole_outputs(model, images, batch_size, value_range)]
    maps = []
    for image in images:
        pixels = as_pixels(image, model.preprocessing.channels, value_range)
        blocks = slide(model, model.predict_on_batch, pixels, window, overlap, batch_size)
        classes = ((top, left, logits.argmax(-1).astype("int32")) for top, left, logits in blocks)
        maps.append(joined(classes, pixels.shape[:2]))
    return maps


def checked_images(
    model: keras.Model | ExportedModel, images: Images, whole: bool, batch_size: int
) -> Sequence[Array | Picture | Path] | np.ndarray:
    """A list of images, after a check of the other arguments of `segment`."""
    boolean.check("whole", whole)
    integer(at_least=1).check("batch_size", batch_size)
    if whole and model.preprocessing.image_size is None:
        raise ValueError("whole=True resizes images to the model's size; this model accepts any size")
    return as_list(images, model.preprocessing.channels)


def whole_outputs(
    model: keras.Model | ExportedModel,
    images: Sequence[Array | Picture | Path] | np.ndarray,
    batch_size: int,
    value_range: tuple[float, float] | None,
) -> Iterator[tuple[np.ndarray, tuple[int, int]]]:
    """The outputs of images that are resized to the model's size, however that changes their proportions.

    Args:
        model, batch_size, value_range: As for `segment`.
        images: The result of `checked_images`.

    Yields:
        (outputs (rows, columns, channels), size of the image).
    """
    preprocessing = model.preprocessing
    for first in range(0, len(images), batch_size):
        sizes, inputs = [], []
        for image in images[first : first + batch_size]:
            pixels = as_pixels(image, preprocessing.channels, value_range)
            sizes.append(pixels.shape[:2])
            inputs.append(preprocessing.normalize(preprocessing.resized(pixels)))
        outputs = check_finite(np.asarray(model.predict_on_batch(np.stack(inputs))))
        yield from zip(outputs, sizes)


def resized_outputs(outputs: ArrayOrTensor, size: tuple[Any, Any]) -> Any:
    """Outputs (…, height, width, channels) at another (height, width): bilinear, without antialiasing.

    Scores are computed of outputs that are resized in the same way, as in the authors' code.

    >>> resized_outputs(np.zeros((1, 2, 3), "float32"), (4, 5)).shape
    (4, 5, 3)
    """
    return resize(outputs, size, _BILINEAR)


def classes_of(logits: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The class of each pixel of an image, from logits (rows, columns, classes) that are resized to it.

    Few classes are resized at once. Of equal logits, the first counts as the highest.
    """
    count = max(_AT_ONCE // (size[0] * size[1]), 1)
    highest, classes = np.full(size, -np.inf, "float32"), np.zeros(size, "int32")
    for first in range(0, logits.shape[-1], count):
        part = resized_outputs(logits[..., first : first + count], size)
        best = part.max(-1)
        is_higher = best > highest
        classes[is_higher] = first + part[is_higher].argmax(-1)
        highest[is_higher] = best[is_higher]
    return classes


@names_arguments
def dense_features(
    model: keras.Model,
    images: Images,
    blocks: Sequence[int] | None = None,
    size: Size | None = None,
    window: Size | None = None,
    overlap: float = 0.5,
    batch_size: int = 8,
    value_range: tuple[float, float] | None = None,
) -> list[np.ndarray]:
    """The patch tokens of images of any size, for heads of your own.

    Images are padded at the bottom and right to whole patches, and computed whole, also by a model of one
    size: its position embeddings are resized to the grid of each image. With `window` they are computed in
    overlapping windows, whose features are averaged. That takes less time for large images, but a patch then
    attends only to its window, which gives other features; the manual has figures. Windows of its own size
    are the only way for a model with relative positions, or whose positions are truncated.

    Args:
        model: A `VisionTransformer` for images of one size or any, or a model with one, such as an
            `ImageSegmenter`.
        images: What `model.preprocessing` takes: an array, a path, a URL, bytes, a Pillow image, or a list.
        blocks: Numbers of the blocks whose tokens are concatenated, each after the model's last norm; None
            for the last block.
        size: Side in pixels, or (height, width), to which images are resized before; None keeps their sizes.
        window: Side of the windows in pixels, or (height, width); None for whole images.
        overlap, batch_size, value_range: As for `ImageSegmenter.segment`.

    Returns:
        A list of float32 arrays (rows, columns, channels · blocks), one for each image.

    Raises:
        ValueError: for a block that the model does not have, a window that patches do not divide or that the
            model cannot compute, an image that cannot be read, or a model that packs patches or computes NaN.

    Example:
        >>> features = dense_features(model, np.zeros((2, 40, 50, 3), "uint8"))
        >>> [grid.shape for grid in features]
        [(5, 7, 24), (5, 7, 24)]

    Source: `get_intermediate_layers` of DINOv2's code.
    """
    # Exported models, which `segment` takes, are opened without Keras.
    from keras.tree import flatten

    from keras_vit.engine.distributed_model import DistributedModel
    from keras_vit.models.features import grids_of_blocks

    integer(at_least=1).check("batch_size", batch_size)
    size = optional_pair(size, "size")
    encoder = _at_any_size(backbone(model))
    extractor = DistributedModel(encoder.input, grids_of_blocks(encoder, blocks))
    preprocessing = dataclasses.replace(encoder.preprocessing, image_size=size, resize="squash")

    def compute(windows: np.ndarray) -> np.ndarray:
        return np.concatenate(flatten(extractor.predict_on_batch(windows)), axis=-1)

    grids = []
    for image in as_list(images, preprocessing.channels):
        pixels = preprocessing.resized(as_pixels(image, preprocessing.channels, value_range))
        patch = patch_pixels(encoder)
        rows, columns = (-(-side // p) for side, p in zip(pixels.shape, patch))
        parts = slide(encoder, compute, pixels, window, overlap, batch_size, patch)
        grids.append(joined(parts, (rows, columns)))
    return grids


def _at_any_size(encoder: VisionTransformer) -> VisionTransformer:
    """A copy of a `VisionTransformer` that accepts any size, or the model itself if there is none."""
    from keras_vit.engine.adapting import copy_with_weights

    encoder.check_one_size("a grid of patches")
    fixed = encoder.relative_positions or encoder.position_interpolation == "truncate"
    if fixed or is_dynamic(encoder.image_size):
        return encoder
    grid = encoder.position_grid or grid_shape(encoder.image_size, encoder.patch_size, encoder.resnet)
    changes = {"image_size": DYNAMIC_SIZE, "position_grid": grid, "name": encoder.name}
    return copy_with_weights(encoder, {**encoder._config(), **changes})


def slide(
    model: keras.Model | ExportedModel,
    compute: Callable[[np.ndarray], Array],
    pixels: np.ndarray,
    window: Size | None,
    overlap: float,
    batch_size: int,
    scale: tuple[int, int] = (1, 1),
    adjusted: Callable[[np.ndarray, int, int], np.ndarray] | None = None,
) -> Iterator[tuple[int, int, np.ndarray]]:
    """The mean outputs of overlapping windows of one image, in blocks that are finished.

    Args:
        model: The model of the windows, whose size, patches and preprocessing they have.
        compute: A function of a batch of windows (windows, height, width, channels).
        pixels: An image (height, width, channels).
        window, overlap, batch_size: As for `segment`.
        scale: The size in pixels of a position of the output.
        adjusted: A function from the output of a window and the window's first row and column to what takes
            its place in the mean; None for the output itself.

    Yields:
        (first row, first column, outputs (rows, columns, channels)); they cover the padded image.
    """
    _OVERLAP.check("overlap", overlap)
    patch = patch_pixels(inner_transformer(model))
    sides = [max(-(-side // p) * p, p) for side, p in zip(pixels.shape, patch)]
    window = _window_of(model, optional_pair(window, "window"), sides, patch)
    sides = [max(side, least) for side, least in zip(sides, window)]
    steps = [max(round(side * (1 - overlap) / p), 1) * p for side, p in zip(window, patch)]
    tops, lefts = (
        [*range(0, side - length, step), side - length] for side, length, step in zip(sides, window, steps)
    )

    def outputs(top: int) -> Iterator[np.ndarray]:
        """The outputs of the windows of a row, from left to right."""
        for first in range(0, len(lefts), batch_size):
            parts, lefts_of_batch = [], lefts[first : first + batch_size]
            for left in lefts_of_batch:
                part = pixels[top : top + window[0], left : left + window[1]]
                # Pixels outside of the image are 0 after the normalization.
                missing = [(0, side - given) for side, given in zip(window, part.shape)]
                parts.append(np.pad(model.preprocessing.normalize(part), [*missing, (0, 0)]))
            computed = check_finite(np.asarray(compute(np.stack(parts)), "float32"))
            for left, output in zip(lefts_of_batch, computed):
                yield adjusted(output, top, left) if adjusted else output

    height, width = (side // s for side, s in zip(window, scale))
    rows, columns = ([start // s for start in starts] for starts, s in zip((tops, lefts), scale))
    row_counts, column_counts = _counts(rows, height), _counts(columns, width)
    with _temporary() as first, _temporary() as second:
        # The sums of earlier windows for the first `shared` rows of these windows, and of these for the next.
        above, beneath, shared = first, second, 0
        for top, row, end in zip(tops, rows, [*rows[1:], rows[-1] + height]):
            above.seek(0)
            sums: np.ndarray | int = 0
            for column, stop, output in zip(columns, [*columns[1:], columns[-1] + width], outputs(top)):
                sums = sums + output
                done = stop - column
                block, sums = sums[:, :done].copy(), np.pad(sums[:, done:], ((0, 0), (0, done), (0, 0)))
                stored = above.read(shared * block[0].nbytes)
                block[:shared] += np.frombuffer(stored, "float32").reshape(shared, *block.shape[1:])
                beneath.write(block[end - row :].tobytes())
                count = np.multiply.outer(row_counts[row:end], column_counts[column:stop])
                yield row, column, block[: end - row] / count[..., np.newaxis]
            above.seek(0)
            above.truncate()
            above, beneath, shared = beneath, above, height - (end - row)


def joined(blocks: Iterable[tuple[int, int, np.ndarray]], size: tuple[int, int]) -> np.ndarray:
    """One array from (first row, first column, block), without what is beyond its (height, width)."""
    for index, (top, left, block) in enumerate(blocks):
        if index == 0:
            whole = np.zeros((*size, *block.shape[2:]), block.dtype)
        part = whole[top : top + block.shape[0], left : left + block.shape[1]]
        part[:] = block[: part.shape[0], : part.shape[1]]
    return whole


def _window_of(
    model: keras.Model | ExportedModel,
    window: Sequence[int] | None,
    sides: Sequence[int],
    patch: tuple[int, int],
) -> Sequence[int]:
    """The (height, width) of the windows of an image, whose sides are multiples of the patch."""
    if is_dynamic(model.image_size):
        window = [*map(min, window or sides, sides)]
    elif window is None:
        window = model.image_size
    else:
        raise ValueError(f"the windows of this model have its size {model.image_size}; got window={window}")
    if any(side % p for side, p in zip(window, patch)):
        raise ValueError(f"expected a window divisible by {patch}; got {tuple(window)}")
    return window


def _temporary() -> tempfile.SpooledTemporaryFile[bytes]:
    return tempfile.SpooledTemporaryFile(_IN_MEMORY)


def _counts(starts: Sequence[int], length: int) -> np.ndarray:
    """How many windows of a length cover each position, float32."""
    counts = np.zeros(starts[-1] + length, "float32")
    for start in starts:
        counts[start : start + length] += 1
    return counts
