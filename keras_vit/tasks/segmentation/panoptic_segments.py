"""Panoptic segmentation by queries: each pixel belongs to an object, to all of a class, or to nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
from keras import ops

from keras_vit.labels import IGNORE, check_class_count
from keras_vit.rules import number
from keras_vit.tasks.segmentation.query_outputs import AT_ONCE, query_outputs
from keras_vit.types import Images

if TYPE_CHECKING:
    import keras

_FRACTION = number(0, high=1)


def panoptic(
    model: keras.Model,
    images: Images,
    things: Collection[int] | None = None,
    threshold: float = 0.8,
    overlap: float = 0.8,
    value_range: tuple[float, float] | None = None,
) -> list[np.ndarray]:
    """The objects in images, at the images' own sizes, of a model with head="mask".

    An image is resized until it fits into the model's size, with its aspect ratio, and padded at the bottom
    and right with black, as the authors of EoMT do for their panoptic checkpoints. The masks of a few queries
    are computed at once.

    Args:
        model: An `ImageSegmenter`.
        images: What `model.preprocessing` takes: an array, a path, a URL, bytes, a Pillow image, or a list.
        things: The classes whose objects are told apart; None: all. Of the others, all pixels of a class are
            one segment.
        threshold: The probability of its class above which a query is a segment.
        overlap: The fraction of a mask that is left, where others are more likely, for it to be a segment.
        value_range: (lowest, highest) possible value of float images; None for (0, 1).

    Returns:
        A list of int32 arrays (height, width, 2), one for each image, as `evaluation.panoptic_counts` takes
        them: the class of each pixel, 255 for none, and the number of its segment in the image, from 1 on.

    Raises:
        ValueError: for another head, more than 255 classes, an image that cannot be read, or a model that
            computes NaN.

    Example:
        >>> encoder = keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3)
        >>> segmenter = keras_vit.ImageSegmenter(encoder, num_classes=4, head="mask", query_blocks=1)
        >>> [found.shape for found in segmenter.panoptic(np.zeros((1, 50, 70, 3), "uint8"))]
        [(50, 70, 2)]

    Source: `to_per_pixel_preds_panoptic` of EoMT's code; Cheng et al. 2021 (MaskFormer), section 3.4.
    """
    _FRACTION.check("threshold", threshold)
    _FRACTION.check("overlap", overlap)
    check_class_count(model.num_classes)
    results = []
    for size, classes, masks_of in query_outputs(model, images, value_range):
        classes = np.asarray(ops.softmax(classes))  # (q, k + 1)
        kept = np.flatnonzero((classes.argmax(-1) < model.num_classes) & (classes.max(-1) > threshold))
        scores, classes = classes[kept].max(-1), classes[kept].argmax(-1)

        def masks_of_kept(masks, masks_of=masks_of, kept=kept):
            return masks_of(kept[masks])

        results.append(segments(masks_of_kept, size, scores, classes, things, overlap))
    return results


def segments(masks_of, size, scores, classes, things=None, overlap=0.8):
    """The segments of one image from its masks, a few of which are in memory at once.

    Args:
        masks_of: A function from a slice of the masks to their logits (height, width, masks).
        size: The (height, width) of the image.
        scores, classes: The probability of each mask's class, and its number.
        things, overlap: As for `panoptic`.

    Returns:
        int32 (height, width, 2), as `panoptic`.

    Example:
        >>> logits = np.array([[[2.0, -1.0], [-2.0, 1.0]]])
        >>> segments(lambda masks: logits[..., masks], (1, 2), np.ones(2), np.array([3, 5]))[0].tolist()
        [[3, 1], [5, 2]]
    """
    best, likeliest = np.full(size, -1, "float32"), np.zeros(size, "int32")  # of the masks before
    is_inside, areas = np.zeros(size, bool), np.zeros(len(classes), int)
    count = max(AT_ONCE // (size[0] * size[1]), 1)
    for first in range(0, len(classes), count):
        masks = np.asarray(ops.sigmoid(masks_of(slice(first, first + count))))
        for mask, probability in enumerate(np.moveaxis(masks, -1, 0), first):
            inside, score = probability >= 0.5, probability * scores[mask]
            areas[mask] = inside.sum()
            wins = score > best
            best[wins], likeliest[wins], is_inside[wins] = score[wins], mask, inside[wins]
    won = np.bincount(likeliest.ravel(), minlength=len(classes))
    segment_map = np.zeros((*size, 2), "int32")
    segment_map[..., 0] = IGNORE
    numbers, last = {}, 0
    for mask, number_of_class in enumerate(np.asarray(classes).tolist()):
        segment = is_inside & (likeliest == mask)
        if not segment.any() or won[mask] < overlap * areas[mask]:
            continue
        is_thing = things is None or number_of_class in things
        if is_thing or number_of_class not in numbers:
            last += 1
            numbers[number_of_class] = last
        segment_map[segment] = number_of_class, last if is_thing else numbers[number_of_class]
    return segment_map
