"""Panoptic quality: how well segments, each an object or all of a class, are found and outlined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.labels import IGNORE, check_class_count
from keras_vit.tasks.task import names_or_indices


def panoptic_counts(
    predicted: np.ndarray, label: np.ndarray, num_classes: int, things: Sequence[int] | None = None
) -> np.ndarray:
    """What one image adds to the panoptic quality of each class.

    A segment is the pixels of one class and, for things, of one object. A predicted and a labeled segment of
    a class match if their intersection over union is above 0.5, where pixels that are ignored in the label do
    not count. A predicted segment more than half of which is ignored does not count.

    Args:
        predicted, label: Ints (height, width, 2): the class of each pixel, 255 for none, and the number of
            its object, which is read for things only.
        num_classes: The number of classes.
        things: The classes whose objects are counted one by one; None: all.

    Returns:
        float64 (classes, 4): the sum of the IoUs of matches, and the numbers of matches, of unmatched
        predicted segments, and of unmatched labeled ones. `panoptic_quality` scores the sum over the images,
        in whatever order or groups they are counted.

    Raises:
        ValueError: for another shape or class, or more than 255 classes.

    Example:
        >>> label = np.zeros((2, 2, 2), int)
        >>> panoptic_counts(label, label, num_classes=2).tolist()
        [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]

    Source: Kirillov et al. 2019, "Panoptic segmentation".
    """
    check_class_count(num_classes)
    maps = [np.asarray(each) for each in (predicted, label)]
    for each in maps:
        if each.ndim != 3 or each.shape != (*maps[0].shape[:2], 2):
            shapes = f"{maps[0].shape} and {maps[1].shape}"
            raise ValueError(f"expected two arrays (height, width, 2) of one size; got {shapes}")
        known = each[..., 0][each[..., 0] != IGNORE]
        if known.size and not 0 <= known.min() <= known.max() < num_classes:
            raise ValueError(f"expected classes below {num_classes}, or {IGNORE}; got {known.max()}")
    things = range(num_classes) if things is None else things
    (classes, predicted), (true_classes, true) = (_segments(each, things) for each in maps)
    # The joint numbers of segments are 0 for pixels without one.
    shape = len(classes), len(true_classes)
    overlap = np.bincount((predicted * shape[1] + true).ravel(), minlength=shape[0] * shape[1]).reshape(shape)
    area, true_area, ignored = overlap[1:].sum(1), overlap[:, 1:].sum(0), overlap[1:, 0]
    classes, true_classes, overlap = classes[1:], true_classes[1:], overlap[1:, 1:]
    union = (area - ignored)[:, np.newaxis] + true_area - overlap
    iou = np.where(classes[:, np.newaxis] == true_classes, overlap / union, 0)
    matches = iou > 0.5  # One segment has at most one match then.
    rows, columns = np.nonzero(matches)
    wrong, missed = ~matches.any(1) & (2 * ignored <= area), ~matches.any(0)
    numbers = classes[rows], classes[rows], classes[wrong], true_classes[missed]
    weights = iou[rows, columns], None, None, None
    counts = [np.bincount(each, weight, num_classes) for each, weight in zip(numbers, weights)]
    return np.stack(counts, axis=1).astype("float64")


def _segments(panoptic, things):
    """The class of each segment, and each pixel's segment; segment 0 are the pixels without a class."""
    classes, objects = panoptic[..., 0], panoptic[..., 1]
    objects = np.where(np.isin(classes, list(things)), objects, 0)
    # A pair as one integer is sorted much faster; objects are counted first, so that it does not overflow.
    values, objects = np.unique(objects.ravel(), return_inverse=True)
    pairs, inverse = np.unique(classes.ravel().astype("int64") * len(values) + objects, return_inverse=True)
    segment_classes = pairs // len(values)
    has_class = segment_classes != IGNORE
    numbers = np.where(has_class, np.cumsum(has_class), 0)
    return np.concatenate([[IGNORE], segment_classes[has_class]]), numbers[inverse.reshape(classes.shape)]


def panoptic_quality(
    counts: np.ndarray, things: Sequence[int] | None = None, class_names: Sequence[str] | None = None
) -> dict[str, Any]:
    """The panoptic quality from the counts of a data set.

    Args:
        counts: (classes, 4), the sum of `panoptic_counts` over the images.
        things: The classes of things, for their own means; None: all.
        class_names: One name per class; None for indices.

    Returns:
        dict of `pq`, `sq` (the mean IoU of matches) and `rq` (the F measure of the matching), each a mean
        over the classes with a segment; `pq_things` and `pq_stuff`, over either kind; and `classes`, a dict
        for each class with its `name`, `pq`, `sq`, `rq` and counts. None where there is no segment.

    Example:
        >>> panoptic_quality(np.array([[0.8, 1, 1, 0], [0, 0, 0, 0]]))["pq"]
        0.5333333333333333
    """
    counts = np.asarray(counts, "float64")
    things = {*(range(len(counts)) if things is None else things)}
    rows = []
    for name, (iou, matched, predicted, missed) in zip(names_or_indices(class_names, len(counts)), counts):
        segments = matched + (predicted + missed) / 2
        row = {"name": name, "pq": None, "sq": None, "rq": None}
        if segments:
            sq, rq = iou / max(matched, 1), matched / segments
            row |= {"pq": float(sq * rq), "sq": float(sq), "rq": float(rq)}
        rows.append(row | {"matched": int(matched), "wrong": int(predicted), "missed": int(missed)})

    def mean(score, kind):
        values = [row[score] for number, row in enumerate(rows) if kind(number) and row[score] is not None]
        return float(np.mean(values)) if values else None

    means = {score: mean(score, lambda number: True) for score in ("pq", "sq", "rq")}
    means |= {"pq_things": mean("pq", things.__contains__), "pq_stuff": mean("pq", lambda n: n not in things)}
    return means | {"classes": rows}
