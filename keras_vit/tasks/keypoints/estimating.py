"""Points from heat maps, and of objects in images of any size."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.ndimage import gaussian_filter

from keras_vit.messages import names_arguments
from keras_vit.models.classifying import check_finite
from keras_vit.preprocessing.inputs import as_list, as_pixels
from keras_vit.rules import boolean, integer
from keras_vit.tasks.keypoints.crops import cropped, to_image, window_of
from keras_vit.types import Images

if TYPE_CHECKING:
    import keras

    from keras_vit.export.exported_model import ExportedModel

SURE = 0.2  # the score above which a point counts for its object, as in ViTPose's evaluation, and is compared
BLUR = {"sigma": 0.8, "radius": 5}  # before the refinement, in pixels; the authors' sigma for 11 pixels is 2
LEAST, MOST = 1e-3, 50.0  # of the values whose logarithms are taken
EPSILON = np.finfo("float32").eps  # keeps the matrix of a flat map regular


@names_arguments
def estimate_keypoints(
    model: keras.Model | ExportedModel,
    images: Images,
    boxes: Sequence[np.ndarray] | None = None,
    flip_test: bool = False,
    batch_size: int = 32,
    value_range: tuple[float, float] | None = None,
) -> list[np.ndarray]:
    """The points of objects in images.

    The model gets the part of the image around each box, widened to the proportions of its input and
    enlarged by 1.25, as in training.

    Args:
        model: A `KeypointEstimator`.
        images: What `model.preprocessing` takes: an array, a path, a URL, bytes, or a list of them.
        boxes: For each image floats (objects, 4): left, top, right and bottom, in pixels of the image, such
            as the `boxes` of `ObjectDetector.detect`; None: each image as a whole shows one object.
        flip_test: Whether to average the heat maps with those of the mirrored image.
        batch_size: Number of objects that are computed at a time.
        value_range: (lowest, highest) possible value of float images; None for (0, 1).

    Returns:
        A list of float32 arrays (objects, points, 3), one for each image: x and y in pixels of the image,
        where the center of the first pixel is at 0.5, and the score, the largest value of the heat map.

    Raises:
        ValueError: for boxes that do not fit the images, a model for any size, a flip test without a
            `flip_index`, an image that cannot be read, or a model that computes NaN.

    Example:
        >>> encoder = keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3)
        >>> estimator = keras_vit.KeypointEstimator(encoder, num_classes=5, decoder_width=16)
        >>> boxes = [[[10, 5, 30, 45], [20, 10, 60, 40]]]
        >>> [estimates] = estimator.estimate_keypoints(np.zeros((1, 50, 70, 3), "uint8"), boxes)
        >>> estimates.shape
        (2, 5, 3)

    Source: Xu et al. 2022 (ViTPose, arXiv 2204.12484); Huang et al. 2020 (UDP, arXiv 1911.07524).
    """
    boolean.check("flip_test", flip_test)
    if flip_test and model.flip_index is None:
        raise ValueError(
            "flip_test needs a model with a flip_index, which says what points exchange their places in a "
            "mirrored image, or with class_names, such as left_eye and right_eye; got one without"
        )
    integer(at_least=1).check("batch_size", batch_size)
    preprocessing = of_a_size(model.preprocessing)
    images = as_list(images, preprocessing.channels)
    boxes = _checked_boxes(boxes, len(images))
    estimates = [[] for _ in images]
    objects = _objects(images, boxes, preprocessing, value_range)
    while batch := [*itertools.islice(objects, batch_size)]:
        numbers, windows, inputs = map(np.stack, zip(*batch))
        maps = check_finite(np.asarray(model.predict_on_batch(inputs), "float32"))
        if flip_test:
            mirrored = check_finite(np.asarray(model.predict_on_batch(inputs[:, :, ::-1]), "float32"))
            mirrored = mirrored[:, :, ::-1]
            maps = (maps + mirrored[..., model.flip_index]) / 2
        places, scores = decoded(maps)
        places = to_image(places, windows, maps.shape[1:3])
        points = np.concatenate([places, scores[..., np.newaxis]], axis=2)
        for number, each in zip(numbers, points):
            estimates[number].append(each)
    return [np.reshape(each, (-1, model.num_classes, 3)).astype("float32") for each in estimates]


def of_a_size(preprocessing):
    """The `Preprocessing`, unless it is for images of any size."""
    if preprocessing.image_size is None:
        raise ValueError(
            "expected a model with an image_size, to which objects are cropped; got one for any size"
        )
    return preprocessing


def _checked_boxes(boxes, count):
    """For each of `count` images the boxes (objects, 4), or one None."""
    if boxes is None:
        return [[None]] * count
    if len(boxes) != count:
        raise ValueError(f"expected boxes of {count} image(s); got those of {len(boxes)}")
    boxes = [np.asarray(each, "float64") for each in boxes]
    for each in boxes:
        if each.size and (each.ndim != 2 or each.shape[1] != 4):
            raise ValueError(
                f"expected boxes (objects, 4) of each image: left, top, right, bottom; got {each.shape}"
            )
        if each.size and not (np.isfinite(each).all() and (each[:, 2:] > each[:, :2]).all()):
            raise ValueError(
                f"expected boxes whose right and bottom are larger than left and top; got {each.tolist()}"
            )
    return boxes


def _objects(images, boxes, preprocessing, value_range):
    """Yield (number of the image, window, model input) of each object."""
    height, width = preprocessing.image_size
    for number, (image, own) in enumerate(zip(images, boxes)):
        if not len(own):
            continue
        pixels = as_pixels(image, preprocessing.channels, value_range)
        for box in own:
            window = window_of(box, pixels.shape[:2], width / height)
            part = cropped(pixels, window, preprocessing.image_size)
            yield number, window, preprocessing.normalize(part)


def decoded(heat_maps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The points of heat maps, with a precision below a pixel, and their scores.

    The pixel of the largest value is moved by a Newton step of the logarithm of the blurred map, whose
    maximum is that of a Gaussian wherever its center lies.

    Args:
        heat_maps: (objects, height, width, points).

    Returns:
        (places, scores): float64 (objects, points, 2), x and y in pixels of the maps, of which the center of
        the first one is at 0; and float64 (objects, points), the largest values.

    Example:
        >>> from keras_vit.tasks.keypoints.loss import heat_maps
        >>> maps = np.asarray(heat_maps(np.array([[[0.4, 0.7, 2]]]), (64, 48)))
        >>> places, scores = decoded(maps)
        >>> expected = (np.array([0.4, 0.7]) * (192, 256) - 0.5) * (47 / 191, 63 / 255)
        >>> bool(np.abs(places[0, 0] - expected).max() < 0.01), scores.round(2).tolist()
        (True, [[0.99]])

    Source: Zhang et al. 2020 (DARK, arXiv 1910.06278) and Huang et al. 2020 (UDP, arXiv 1911.07524);
    `post_dark_unbiased_data_processing` of transformers' `image_processing_vitpose.py`.
    """
    maps = np.moveaxis(np.asarray(heat_maps, "float32"), -1, 1)
    objects, points, height, width = maps.shape
    flat = maps.reshape(objects, points, height * width)
    best, scores = flat.argmax(axis=2), flat.max(axis=2).astype("float64")
    rows, columns = np.divmod(best, width)
    blurred = gaussian_filter(maps, **BLUR, axes=(2, 3))
    logs = np.log(np.clip(blurred.astype("float64"), LEAST, MOST))
    logs = np.pad(logs, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    number, point, down, right = np.ogrid[:objects, :points, :3, :3]
    rows_and_columns = rows[..., np.newaxis, np.newaxis] + down, columns[..., np.newaxis, np.newaxis] + right
    numerators, determinant = newton_step(logs[number, point, *rows_and_columns])
    steps, determinant = np.stack(numerators, axis=-1), determinant[..., np.newaxis]
    steps = np.divide(steps, determinant, out=np.zeros_like(steps), where=determinant != 0)
    return np.stack([columns, rows], axis=-1) - steps, scores


def newton_step(logs):
    """The Newton step from the maximum of a quadratic function to the middle, as a fraction.

    Args:
        logs: The function's values at nine pixels, (…, 3, 3), an array or a tensor.

    Returns:
        ((x, y), denominator): arrays (…); the denominator is the determinant of the second derivatives.

    Example:
        >>> x, y = np.meshgrid([-1, 0, 1], [-1, 0, 1])
        >>> (right, down), determinant = newton_step(-((x - 0.25) ** 2) - (y + 0.5) ** 2)
        >>> [round(float(-side / determinant), 3) for side in (right, down)]
        [0.25, -0.5]
    """
    center = logs[..., 1, 1]
    above, below = logs[..., 0, 1], logs[..., 2, 1]
    left, right = logs[..., 1, 0], logs[..., 1, 2]
    right_slope, down_slope = (right - left) / 2, (below - above) / 2
    across, along = right - 2 * center + left + EPSILON, below - 2 * center + above + EPSILON
    mixed = (logs[..., 2, 2] - right - below + 2 * center - left - above + logs[..., 0, 0]) / 2
    numerators = along * right_slope - mixed * down_slope, across * down_slope - mixed * right_slope
    return numerators, across * along - mixed**2
