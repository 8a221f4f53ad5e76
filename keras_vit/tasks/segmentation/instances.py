"""From the queries of a segmenter to objects, each with a mask that may overlap others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from keras import ops

from keras_vit.models.classifying import largest
from keras_vit.rules import integer, number
from keras_vit.tasks.segmentation.query_outputs import AT_ONCE, query_outputs
from keras_vit.types import Images

if TYPE_CHECKING:
    import keras

_FRACTION = number(0, high=1)
_COUNT = integer(at_least=1)


class Instances(NamedTuple):
    """The objects in an image, by decreasing score. They may overlap.

    Attributes:
        boxes: float32 (objects, 4): left, top, right and bottom of the masks, in pixels of the image.
        scores: float32 (objects,), in [0, 1].
        classes: int64 (objects,).
        masks: bool (objects, height, width), of which each has at least one pixel.
    """

    boxes: np.ndarray
    scores: np.ndarray
    classes: np.ndarray
    masks: np.ndarray


def instances(
    model: keras.Model,
    images: Images,
    threshold: float = 0.5,
    top: int = 100,
    things: Sequence[int] | None = None,
    value_range: tuple[float, float] | None = None,
) -> list[Instances]:
    """The objects in images, at the images' own sizes, of a model with head="mask".

    An object is a query with one of its classes. Its mask has the pixels whose logit is above 0, its score
    the probability of the class times the mean probability of the mask's pixels. With a threshold of 0.5 or
    more a query has at most one class; for an average precision the threshold is 0.

    An image is resized and padded as for `panoptic`. The masks of a few queries are computed at once; those
    of the objects need a byte for each pixel.

    Args:
        model: An `ImageSegmenter`.
        images: What `model.preprocessing` takes: an array, a path, a URL, bytes, a Pillow image, or a list.
        threshold: The least score of an object, in [0, 1].
        top: The maximum number of objects in an image: those whose classes have the highest probabilities.
        things: The classes that have objects; None: all.
        value_range: (lowest, highest) possible value of float images; None for (0, 1).

    Returns:
        A list of `Instances`, one for each image.

    Raises:
        ValueError: for a model without queries, a class that it does not have, an image that cannot be read,
            or a model that computes NaN.

    Example:
        >>> encoder = keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3)
        >>> segmenter = keras_vit.ImageSegmenter(encoder, num_classes=4, head="mask", query_blocks=1)
        >>> [found] = segmenter.instances(np.zeros((1, 50, 70, 3), "uint8"), threshold=0.0, top=3)
        >>> found.masks.shape[1:], found.masks.dtype
        ((50, 70), dtype('bool'))

    Source: `MaskClassificationInstance` of EoMT's code; `instance_inference` of Mask2Former's.
    """
    _FRACTION.check("threshold", threshold)
    _COUNT.check("top", top)
    if things is not None and not {*things} <= {*range(model.num_classes)}:
        raise ValueError(f"expected things from 0 to {model.num_classes - 1}; got {sorted(things)}")
    return [
        best_instances(classes, masks_of, size, threshold, top, things)
        for size, classes, masks_of in query_outputs(model, images, value_range)
    ]


def best_instances(classes, masks_of, size, threshold, top, things=None):
    """The `Instances` of an image from the logits of its queries.

    Args:
        classes: Logits (queries, classes + 1); the last stands for no object.
        masks_of: A function from numbers of queries to the logits of their masks, (height, width, numbers).
        size: The (height, width) of the image.
        threshold, top, things: As for `instances`.

    Example:
        >>> masks = np.array([[[4.0, -1.0], [4.0, 1.0]]])
        >>> classes = np.array([[9.0, 0.0, 0.0], [0.0, 9.0, 0.0]])
        >>> found = best_instances(classes, lambda numbers: masks[..., numbers], (1, 2), 0.5, 100)
        >>> found.boxes.tolist(), found.scores.tolist() == sorted(found.scores)[::-1], found.classes.tolist()
        ([[0.0, 0.0, 2.0, 1.0], [1.0, 0.0, 2.0, 1.0]], True, [0, 1])
    """
    probabilities = np.asarray(ops.softmax(classes))[:, :-1]
    numbers = np.arange(probabilities.shape[1]) if things is None else np.unique(np.asarray(things, int))
    pairs = probabilities[:, numbers].ravel()
    best = largest(pairs, top)
    best = best[pairs[best] >= threshold]  # The other factor of a score is at most 1.
    queries, columns = np.divmod(best, max(len(numbers), 1))
    kept, places = np.unique(queries, return_inverse=True)
    masks, quality = np.zeros((len(kept), *size), bool), np.zeros(len(kept), "float32")
    count = max(AT_ONCE // (size[0] * size[1]), 1)
    for first in range(0, len(kept), count):
        logits = np.asarray(ops.transpose(masks_of(kept[first : first + count]), (2, 0, 1)))
        for place, own in enumerate(logits, first):
            masks[place] = own > 0
            inside = 1 / (1 + np.exp(-own[masks[place]]))
            quality[place] = inside.mean(dtype="float64") if len(inside) else 0
    scores = pairs[best] * quality[places]
    order = np.argsort(-scores, kind="stable")
    order = order[(scores[order] >= threshold) & (quality[places[order]] > 0)]
    masks = masks[places[order]]
    return Instances(boxes_of(masks), scores[order], numbers[columns[order]], masks)


def boxes_of(masks):
    """The boxes around masks: float32 (masks, 4), left, top, right and bottom; zeros around an empty one.

    >>> boxes_of(np.array([[[False, True, True], [False, True, False]]])).tolist()
    [[1.0, 0.0, 3.0, 2.0]]
    """
    sides = []
    for axis in (1, 2):
        line = masks.any(axis)  # (masks, width), (masks, height)
        ends = line.shape[1] - line[:, ::-1].argmax(1)
        sides.append((line.argmax(1), np.where(line.any(1), ends, 0)))
    (left, right), (top, bottom) = sides
    return np.stack([left, top, right, bottom], axis=1).astype("float32")
