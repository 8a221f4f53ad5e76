"""Scores of detections: COCO's average precision and recall, and what follows from one threshold."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.labels.box_rows import in_pixels
from keras_vit.tasks.task import names_or_indices

MAX_DETECTIONS = 100  # of an image that are scored
THRESHOLDS = np.linspace(0.5, 0.95, 10)  # of the IoU
RECALLS = np.linspace(0, 1, 101)
LIMITS = (1, 10, MAX_DETECTIONS)  # numbers of detections of an image and a class for which there is a recall
# The smallest and the largest area of an object, in pixels of its image.
AREAS = {"": (0, 1e10), "_small": (0, 32**2), "_medium": (32**2, 96**2), "_large": (96**2, 1e10)}
SAME = 0.5  # the least IoU of the same object, in the confusion matrix and for a threshold of scores


@dataclasses.dataclass(frozen=True)
class DetectionPredictions:
    """What is stored of detections: the boxes of each image, in pixels of the image.

    Args:
        counts: int64 (samples, 2), the numbers of rows of `detections` and of `truth` that are each image's.
        detections: float64 (rows, 6), image by image: left, top, right, bottom, class, score.
        truth: float64 (rows, 7), image by image: left, top, right, bottom, class, crowd (1 or 0), area. A
            crowd is a box around an unknown number of objects, which no detection has to find.
        num_classes: The class count of the model.

    Example:
        >>> detections = np.array([[0, 0, 10, 10, 2, 0.9], [0, 0, 5, 5, 1, 0.3]])
        >>> truth = np.array([[0, 0, 10, 8, 2, 0, 80]])
        >>> predictions = DetectionPredictions(np.array([[2, 1]]), detections, truth, num_classes=3)
        >>> round(detection_scores(predictions)["ap"], 3)
        0.7
    """

    counts: np.ndarray
    detections: np.ndarray
    truth: np.ndarray
    num_classes: int

    @functools.cached_property
    def _matches(self):
        """For each class that occurs, its `ClassMatches`."""
        return _match_all(self)

    @property
    def _curves(self):
        """The `precisions` of each class that has objects."""
        curves = (matches.precisions for matches in self._matches.values())
        return [curve for curve in curves if curve is not None]

    def _images(self):
        """Yield the detections of each image, their areas, its truth, and the IoU (n, m) of all pairs."""
        for detections, truth in self._rows():
            areas = np.prod(detections[:, 2:4] - detections[:, :2], axis=1)
            yield detections, areas, truth, box_iou(detections[:, :4], truth[:, :4], truth[:, 5] > 0)

    def _rows(self):
        """(detections, truth) of each image."""
        ends = np.cumsum(self.counts, axis=0)[:-1]
        return zip(*(np.split(rows, end) for rows, end in zip((self.detections, self.truth), ends.T)))


@dataclasses.dataclass(frozen=True)
class ClassMatches:
    """The detections of one class in all images, by decreasing score.

    Args:
        scores: float64 (n,).
        images: int64 (n,), the number of each one's image.
        ranks: int64 (n,), the place of each one among the detections of its image and class.
        matched, ignored: bool (areas, thresholds, n).
        objects: int64 (areas,), the number of objects to find.
    """

    scores: np.ndarray
    images: np.ndarray
    ranks: np.ndarray
    matched: np.ndarray
    ignored: np.ndarray
    objects: np.ndarray

    @functools.cached_property
    def precisions(self):
        """The precision (areas, thresholds, recalls); NaN for areas without objects, None without any.

        Of equal recalls the highest precision counts, and a recall that is not reached has a precision of 0.
        """
        if not self.objects.any():
            return None
        curves = np.full((*self.matched.shape[:2], len(RECALLS)), np.nan)
        for area, threshold in np.ndindex(curves.shape[:2]):
            if objects := self.objects[area]:
                right = np.cumsum(self.matched[area, threshold][~self.ignored[area, threshold]])
                precision = right / (np.arange(1, len(right) + 1) + np.spacing(1))
                precision = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0)
                curves[area, threshold] = precision[np.searchsorted(right / objects, RECALLS)]
        return curves


def box_iou(boxes: np.ndarray, others: np.ndarray, is_crowd: np.ndarray | None = None) -> np.ndarray:
    """The intersection over union of all pairs of boxes.

    Args:
        boxes: (n, 4): left, top, right, bottom.
        others: (m, 4).
        is_crowd: bool (m,): for these the intersection as a fraction of the first box; None: none is.

    Returns:
        float64 (n, m).

    Example:
        >>> box_iou(np.array([[0, 0, 2, 2]]), np.array([[1, 0, 3, 2]])).round(3).tolist()
        [[0.333]]
    """
    boxes, others = np.asarray(boxes, "float64"), np.asarray(others, "float64")
    low = np.maximum(boxes[:, np.newaxis, :2], others[np.newaxis, :, :2])
    high = np.minimum(boxes[:, np.newaxis, 2:], others[np.newaxis, :, 2:])
    common = np.prod(np.maximum(high - low, 0), axis=2)
    areas, other_areas = (np.prod(each[:, 2:] - each[:, :2], axis=1) for each in (boxes, others))
    union = areas[:, np.newaxis] + other_areas - common
    if is_crowd is not None:
        union = np.where(is_crowd, areas[:, np.newaxis], union)
    return np.divide(common, union, out=np.zeros_like(common), where=common > 0)


def distinct(detections, iou, top=None):
    """The `Detections`, or `Instances`, without those whose box overlaps that of a better one.

    Args:
        detections: Of an image, by decreasing score, of any classes.
        iou: The largest IoU of two boxes that are kept.
        top: The maximum number of those; None for all.

    Example:
        >>> from keras_vit.tasks.detection.detecting import Detections
        >>> boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 9], [5, 0, 15, 10]], "float32")
        >>> distinct(Detections(boxes, np.array([0.9, 0.8, 0.7]), np.arange(3)), 0.7).classes.tolist()
        [0, 2]
    """
    overlaps, kept = box_iou(detections.boxes, detections.boxes) > iou, []
    for number, row in enumerate(overlaps):
        if not row[kept].any():
            kept.append(number)
    return type(detections)(*(values[kept[:top]] for values in detections))


def predictions_of(detections, boxes, sizes, num_classes):
    """The `DetectionPredictions` of some images.

    Args:
        detections: For each image the `Detections` of `detecting.py`.
        boxes: For each image its rows of `labels.box_rows.COLUMNS`, in fractions of the image.
        sizes: The (height, width) of each image.
        num_classes: The class count of the model.
    """
    rows_found = [np.column_stack([one.boxes, one.classes, one.scores]) for one in detections]
    truth = [in_pixels(rows, size) for rows, size in zip(boxes, sizes)]
    return DetectionPredictions(
        np.array([(len(rows), len(others)) for rows, others in zip(rows_found, truth)], "int64"),
        np.concatenate(rows_found, dtype="float64"),
        np.concatenate(truth),
        num_classes,
    )


def agreement(detections, others, threshold):
    """The F1 of the objects of some images in others, with an IoU of at least 0.5 and the same class.

    Args:
        detections, others: For each image the `Detections` of `detecting.py`.
        threshold: The least score of an object.

    Returns:
        A float in [0, 1]; 1 where there are no objects.
    """
    matched = total = 0
    for one, other in zip(detections, others):
        (boxes, classes), (other_boxes, other_classes) = (
            (each.boxes[each.scores >= threshold], each.classes[each.scores >= threshold])
            for each in (one, other)
        )
        same = (box_iou(boxes, other_boxes) >= SAME) & (classes[:, np.newaxis] == other_classes)
        matched += same.any(axis=0).sum() + same.any(axis=1).sum()
        total += len(boxes) + len(other_boxes)
    return float(matched / total) if total else 1.0


def detection_scores(predictions: DetectionPredictions) -> dict[str, Any]:
    """The scores of COCO, and the threshold of scores with the highest F1.

    Args:
        predictions: DetectionPredictions.

    Returns:
        dict of `samples`; `ap`, the mean over the classes and over the IoU thresholds 0.50, 0.55, … 0.95 of
        the average precision at 101 recalls; `ap50` and `ap75` at one threshold; `ap_small`, `ap_medium` and
        `ap_large` for objects of less than 32², up to 96² and more pixels; `ar_1`, `ar_10` and `ar_100`, the
        mean recall of so many detections of a class in an image; `ar_small`, `ar_medium` and `ar_large`; and
        `threshold`, the score from which on detections have the highest `f1` at an IoU of 0.5. None where a
        score is undefined.

    Example:
        >>> found = np.array([[0, 0, 10, 10, 0, 0.9]])
        >>> truth = np.array([[0, 0, 10, 10, 0, 0, 100]])
        >>> scores = detection_scores(DetectionPredictions(np.array([[1, 1]]), found, truth, 1))
        >>> round(scores["ap"], 6), scores["ap_large"], scores["ar_1"], scores["threshold"]
        (1.0, None, 1.0, 0.9)

    Source: Lin et al. 2014 (arXiv 1405.0312); `cocoeval.py` of pycocotools.
    """
    classes, curves, whole = [*predictions._matches.values()], predictions._curves, slice(None)
    sizes = {name: area for area, name in enumerate(AREAS) if name}
    parts = {"ap": (0, whole), "ap50": (0, 0), "ap75": (0, 5)}
    parts |= {f"ap{name}": (area, whole) for name, area in sizes.items()}
    limits = {f"ar_{limit}": (0, limit) for limit in LIMITS}
    limits |= {f"ar{name}": (area, LIMITS[-1]) for name, area in sizes.items()}
    scores = {"samples": len(predictions.counts)}
    scores |= {title: mean([curve[part] for curve in curves]) for title, part in parts.items()}
    for title, (area, limit) in limits.items():
        scores[title] = mean([recalls(matches, limit)[area] for matches in classes])
    scores["threshold"], scores["f1"] = _best_threshold(classes)
    return scores


def detection_classes(
    predictions: DetectionPredictions, class_names: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """The scores of each class.

    Args:
        predictions: DetectionPredictions.
        class_names: One name per class; None for indices.

    Returns:
        A dict for each class: `name`; `objects`, their number without crowds; `ap`, `ap50` and `ar_100`; and
        `threshold`, the score with the highest `f1`. None where a value is undefined.

    Raises:
        ValueError: if the number of names is not that of classes.

    Example:
        >>> truth = np.array([[0, 0, 10, 10, 1, 0, 100]])
        >>> predictions = DetectionPredictions(np.array([[0, 1]]), np.zeros((0, 6)), truth, 2)
        >>> [row["ap"] for row in detection_classes(predictions, ["cat", "dog"])]
        [None, 0.0]
    """
    rows = []
    for number, name in enumerate(names_or_indices(class_names, predictions.num_classes)):
        matches = predictions._matches.get(number)
        curve = matches and matches.precisions
        threshold, f1 = _best_threshold([matches] if matches else [])
        rows.append(
            {
                "name": name,
                "objects": int(matches.objects[0]) if matches else 0,
                "ap": None if curve is None else mean([curve[0]]),
                "ap50": None if curve is None else mean([curve[0, 0]]),
                "ar_100": mean([recalls(matches, LIMITS[-1])[0]]) if matches else None,
                "threshold": threshold,
                "f1": f1,
            }
        )
    return rows


def precision_recall(predictions: DetectionPredictions, threshold: float = SAME) -> np.ndarray:
    """The precision at 101 recalls from 0 to 1, a mean over the classes that have objects.

    Args:
        predictions: DetectionPredictions.
        threshold: Of the IoU, one of 0.50, 0.55, … 0.95.

    Returns:
        float64 (101,); zeros where there are no objects.

    Raises:
        ValueError: for another threshold.

    Example:
        >>> found, truth = np.array([[0, 0, 9, 9, 0, 0.9]]), np.array([[0, 0, 9, 9, 0, 0, 81]])
        >>> predictions = DetectionPredictions(np.array([[1, 1]]), found, truth, 1)
        >>> precision_recall(predictions).min().round(6).item()
        1.0
    """
    is_column = np.isclose(THRESHOLDS, threshold)
    if not is_column.any():
        raise ValueError(f"expected a threshold of 0.50, 0.55, … 0.95; got {threshold}")
    curves = [curve[0, is_column][0] for curve in predictions._curves]
    return np.mean(curves, axis=0) if curves else np.zeros(len(RECALLS))


def detection_confusion(predictions: DetectionPredictions, threshold: float | None = None) -> np.ndarray:
    """The confusion matrix of objects, whose last row and column are the background.

    In each image the pairs of an object and a detection with an IoU of at least 0.5 are matched, the highest
    IoU first, whatever their classes. Objects that are left count as background in the column, detections
    that are left in the row, unless at least half of one is in a crowd.

    Args:
        predictions: DetectionPredictions.
        threshold: The least score of a detection; None for that of the highest F1.

    Returns:
        int64 (classes + 1, classes + 1): the objects of each true class (rows) and predicted class (columns).

    Example:
        >>> found, truth = np.array([[0, 0, 9, 9, 1, 0.9]]), np.array([[0, 0, 9, 9, 0, 0, 81]])
        >>> detection_confusion(DetectionPredictions(np.array([[1, 1]]), found, truth, 2)).tolist()
        [[0, 1, 0], [0, 0, 0], [0, 0, 0]]
    """
    if threshold is None:
        threshold = best_threshold(predictions)
    background = predictions.num_classes
    matrix = np.zeros((background + 1,) * 2, "int64")
    for detections, _, truth, iou in predictions._images():
        kept = detections[:, 5] >= threshold
        detections, iou = detections[kept], iou[kept]
        is_crowd = truth[:, 5] > 0
        true, predicted = truth[:, 4].astype(int), detections[:, 4].astype(int)
        free, to_find = np.ones(len(detections), bool), ~is_crowd
        pairs = np.argwhere((iou >= SAME) & ~is_crowd)
        for row, column in pairs[np.argsort(-iou[tuple(pairs.T)], kind="stable")]:
            if free[row] and to_find[column]:
                free[row] = to_find[column] = False
                matrix[true[column], predicted[row]] += 1
        in_crowd = (iou[:, is_crowd] >= SAME).any(axis=1)
        np.add.at(matrix, (true[to_find], background), 1)
        np.add.at(matrix, (background, predicted[free & ~in_crowd]), 1)
    return matrix


def image_f1(predictions: DetectionPredictions) -> np.ndarray:
    """The F1 of each image at an IoU of 0.5, of detections above the threshold of the highest F1 of all.

    Returns:
        float64 (samples,); 1 for an image without objects and detections.

    Example:
        >>> truth = np.array([[0, 0, 9, 9, 0, 0, 81]])
        >>> predictions = DetectionPredictions(np.array([[0, 1], [0, 0]]), np.zeros((0, 6)), truth, 1)
        >>> image_f1(predictions).tolist()
        [0.0, 1.0]
    """
    threshold = best_threshold(predictions)
    right, wrong, objects = np.zeros((3, len(predictions.counts)), "int64")
    for matches in predictions._matches.values():
        counted = (matches.scores >= threshold) & ~matches.ignored[0, 0]
        np.add.at(right, matches.images[counted & matches.matched[0, 0]], 1)
        np.add.at(wrong, matches.images[counted & ~matches.matched[0, 0]], 1)
    images = np.repeat(np.arange(len(predictions.counts)), predictions.counts[:, 1])
    np.add.at(objects, images[predictions.truth[:, 5] == 0], 1)
    total = right + wrong + objects
    return np.where(total > 0, 2 * right / np.maximum(total, 1), 1.0)


def best_threshold(predictions):
    """The score with the highest F1 at an IoU of 0.5; 0 where there is none.

    >>> found, truth = np.array([[0, 0, 9, 9, 0, 0.9]]), np.array([[0, 0, 9, 9, 0, 0, 81]])
    >>> best_threshold(DetectionPredictions(np.array([[1, 1]]), found, truth, 1))
    0.9
    """
    return _best_threshold([*predictions._matches.values()])[0] or 0.0


def _match_all(predictions):
    """The `ClassMatches` of each class that has objects or detections, in the order of the classes."""
    by_class = {}
    for number, (detections, areas, truth, iou) in enumerate(predictions._images()):
        best = np.argsort(-detections[:, 5], kind="stable")
        for class_id in np.unique(np.concatenate([detections[:, 4], truth[:, 4]])):
            rows = best[detections[best, 4] == class_id][:MAX_DETECTIONS]
            true = np.flatnonzero(truth[:, 4] == class_id)
            matched, ignored, objects = match(iou[np.ix_(rows, true)], areas[rows], truth[true])
            columns = detections[rows, 5], np.full(len(rows), number), np.arange(len(rows)), matched, ignored
            by_class.setdefault(int(class_id), []).append((columns, objects))
    return {class_id: joined(parts) for class_id, parts in sorted(by_class.items())}


def joined(parts):
    """The `ClassMatches` of the parts of all images."""
    columns, objects = zip(*parts)
    scores, *columns_in_order = (np.concatenate(column, axis=-1) for column in zip(*columns))
    order = np.argsort(-scores, kind="stable")
    columns_in_order = (column[..., order] for column in columns_in_order)
    return ClassMatches(scores[order], *columns_in_order, np.sum(objects, axis=0))


def match(iou, sizes, truth, is_void=False):
    """Match the detections of one class in an image, best first, with its objects.

    Each takes the free object of the highest IoU, and one that does not count only if there is no other. A
    crowd is never taken.

    Args:
        iou: (n, m), of crowds as `box_iou` has it.
        sizes: (n,), the areas of the detections.
        truth: (m, 7).
        is_void: bool (m,), the objects that do not count although they are no crowds; False: none.

    Returns:
        (matched, ignored, objects): bool (areas, thresholds, n) twice, and the number of objects that count,
        int64 (areas,).
    """
    low, high = np.array([*AREAS.values()]).T[..., np.newaxis]
    is_crowd, areas = truth[:, 5] > 0, truth[:, 6]
    uncounted = is_crowd | is_void | (areas < low) | (areas > high)  # (areas, m)
    shape = (len(AREAS), len(THRESHOLDS), len(iou))
    matched, ignored = np.zeros(shape, bool), np.zeros(shape, bool)
    taken = np.zeros((*shape[:2], len(truth)), bool)
    enough = np.minimum(THRESHOLDS, 1 - 1e-10)[:, np.newaxis]
    for place in np.flatnonzero((iou >= THRESHOLDS[0]).any(axis=1)):
        fits = (iou[place] >= enough) & (~taken | is_crowd)  # (areas, thresholds, m)
        counts = fits & ~uncounted[:, np.newaxis]
        fits = np.where(counts.any(axis=2, keepdims=True), counts, fits)
        # Of equal ones, the last.
        chosen = len(truth) - 1 - np.where(fits, iou[place], -1.0)[..., ::-1].argmax(axis=2)
        has_match = fits.any(axis=2)
        matched[..., place] = has_match
        ignored[..., place] = has_match & np.take_along_axis(uncounted, chosen, axis=1)
        area, threshold = np.nonzero(has_match)
        taken[area, threshold, chosen[area, threshold]] = True
    outside = (sizes < low) | (sizes > high)  # (areas, n)
    ignored |= ~matched & outside[:, np.newaxis]
    return matched, ignored, (~uncounted).sum(axis=1)


def recalls(matches, limit):
    """The recall (areas, thresholds) of the best detections of a class in each image; NaN without objects."""
    right = matches.matched & ~matches.ignored & (matches.ranks < limit)
    objects = np.where(matches.objects > 0, matches.objects, np.nan)
    return right.sum(axis=2) / objects[:, np.newaxis]


def _best_threshold(classes):
    """The score with the highest F1 of classes at an IoU of 0.5, and this F1; None without objects."""
    objects = sum(int(matches.objects[0]) for matches in classes)
    if not objects:
        return None, None
    scores = np.concatenate([matches.scores for matches in classes])
    matched, ignored = (
        np.concatenate([getattr(matches, name)[0, 0] for matches in classes])
        for name in ("matched", "ignored")
    )
    order = np.argsort(-scores, kind="stable")
    order = order[~ignored[order]]
    if not len(order):
        return None, 0.0
    right = np.cumsum(matched[order])
    f1 = 2 * right / (np.arange(1, len(order) + 1) + objects)
    # Equal scores are above a threshold together.
    is_last = np.append(scores[order][1:] < scores[order][:-1], True)
    best = np.argmax(np.where(is_last, f1, -1))
    return float(scores[order[best]]), float(f1[best])


def mean(parts):
    values = np.concatenate([np.ravel(part) for part in parts]) if parts else np.zeros(0)
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else None
