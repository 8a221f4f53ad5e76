"""From the outputs of a detector to objects in images."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from keras_vit.messages import names_arguments
from keras_vit.models.classifying import check_finite, largest
from keras_vit.preprocessing.inputs import as_list, as_pixels
from keras_vit.rules import integer, number
from keras_vit.types import Images

if TYPE_CHECKING:
    import keras

    from keras_vit.export.exported_model import ExportedModel
    from keras_vit.preprocessing import Preprocessing

_FRACTION = number(0, high=1)
_COUNT = integer(at_least=1)


class Detections(NamedTuple):
    """The objects in an image, by decreasing score.

    Attributes:
        boxes: float32 (objects, 4): left, top, right and bottom, in pixels of the image.
        scores: float32 (objects,), probabilities.
        classes: int64 (objects,).
    """

    boxes: np.ndarray
    scores: np.ndarray
    classes: np.ndarray


@names_arguments
def detect(
    model: keras.Model | ExportedModel,
    images: Images,
    threshold: float = 0.3,
    top: int = 100,
    batch_size: int = 8,
    value_range: tuple[float, float] | None = None,
) -> list[Detections]:
    """The objects in images, at the images' own sizes.

    Args:
        model: An `ObjectDetector`.
        images: What `model.preprocessing` takes: an array, a path, a URL, bytes, a Pillow image, or a list.
        threshold: The least score of an object, in [0, 1].
        top: The maximum number of objects in an image.
        batch_size: Images in a batch. A model for any size computes one image at a time.
        value_range: (lowest, highest) possible value of float images; None for (0, 1).

    Returns:
        A list of `Detections`, one for each image.

    Raises:
        ValueError: for an image that cannot be read, or a model that computes NaN.

    Example:
        >>> detector = keras_vit.ObjectDetector(keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3), 4)
        >>> [found] = detector.detect(np.zeros((1, 50, 70, 3), "uint8"), threshold=0.0, top=5)
        >>> found.boxes.shape, round(float(found.scores[0]), 2)
        ((5, 4), 0.01)
    """
    _FRACTION.check("threshold", threshold)
    _COUNT.check("top", top)
    _COUNT.check("batch_size", batch_size)
    if getattr(model, "needs_texts", False):  # not of an export
        raise ValueError("this model has no classes yet; give it some with `with_labels`")
    preprocessing, results = model.preprocessing, []
    images = iter(as_list(images, preprocessing.channels))
    size = batch_size if preprocessing.image_size else 1
    while batch := [
        as_pixels(image, preprocessing.channels, value_range) for image in itertools.islice(images, size)
    ]:
        x = np.stack([preprocessing.normalize(preprocessing.resized(pixels)) for pixels in batch])
        outputs = check_finite(np.asarray(model.predict_on_batch(x)))
        sizes = [pixels.shape[:2] for pixels in batch]
        results += best_detections(outputs, sizes, preprocessing, top, threshold)
    return results


def best_detections(
    outputs: np.ndarray,
    sizes: np.ndarray,
    preprocessing: Preprocessing,
    top: int = 100,
    threshold: float = 0.0,
) -> list[Detections]:
    """The pairs of a patch and a class of the highest scores, in each image.

    Args:
        outputs: (batch, patches, 4 + classes), as an `ObjectDetector` computes them.
        sizes: The (height, width) of each image itself.
        preprocessing: The model's `Preprocessing`, which made its input of the images.
        top: The maximum number of pairs.
        threshold: The least score of a pair, in [0, 1].

    Returns:
        A list of `Detections`, with boxes cut at the edges of the image; those outside of it are left out.

    Example:
        >>> outputs = np.array([[[0.5, 0.5, 0.5, 1.0, -9.0, 0.0]]], "float32")
        >>> [found] = best_detections(outputs, [(20, 40)], keras_vit.Preprocessing(16), top=1)
        >>> found.boxes.tolist(), found.scores.tolist(), found.classes.tolist()
        ([[10.0, 0.0, 30.0, 20.0]], [0.5], [1])
    """
    outputs = np.asarray(outputs, "float32")
    classes = outputs.shape[2] - 4
    results = []
    for rows, (height, width) in zip(outputs, sizes):
        scale, offset = input_window((int(height), int(width)), preprocessing)
        corners = np.concatenate([rows[:, :2] - rows[:, 2:4] / 2, rows[:, :2] + rows[:, 2:4] / 2], axis=1)
        boxes = np.clip(corners * scale + offset, 0, np.array([width, height] * 2)).astype("float32")
        patches = np.flatnonzero((boxes[:, 2:] > boxes[:, :2]).all(axis=1))  # not of padding
        logits = rows[patches, 4:].ravel()
        best = largest(logits, top)
        scores = 0.5 * (1 + np.tanh(0.5 * logits[best]))
        best, scores = best[scores >= threshold], scores[scores >= threshold]
        results.append(Detections(boxes[patches[best // classes]], scores, best % classes))
    return results


def input_window(size, preprocessing):
    """The scale and the offset from fractions of the model's input to pixels of an image.

    >>> scale, offset = input_window((30, 60), keras_vit.Preprocessing(16, resize="crop"))
    >>> scale.tolist(), offset.tolist()
    ([30.0, 30.0, 30.0, 30.0], [15.0, 0.0, 15.0, 0.0])
    """
    corner, shown = (part[::-1] * size[::-1] for part in preprocessing.window(*size))
    return np.tile(shown, 2), np.tile(corner, 2)
