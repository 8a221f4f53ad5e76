"""Scores of keypoints: COCO's average precision by the object keypoint similarity, and correct points."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.tasks.detection.scores import AREAS, joined, match, mean, recalls
from keras_vit.tasks.keypoints.labels import UNLABELED, VISIBLE
from keras_vit.tasks.task import names_or_indices

MAX_DETECTIONS = 20  # of an image that are scored
DISTANCES = {"pck05": 0.05, "pck10": 0.1, "pck20": 0.2}  # of a correct point, by the longer side of the box
SAME = 0.5  # the similarity from which an object counts as found


@dataclasses.dataclass(frozen=True)
class KeypointPredictions:
    """What is stored of estimated keypoints, in pixels of the images.

    Args:
        estimates: float64 (estimated objects, points, 3): x, y and the score of each point.
        scores: float64 (estimated objects,).
        estimate_images: int64 (estimated objects,), a number for the image of each.
        truth: float64 (objects, points, 3): x, y and visibility, 0 of a point without a label.
        boxes: float64 (objects, 4): left, top, right, bottom.
        areas: float64 (objects,).
        crowds: bool (objects,): several objects, of which none has to be found.
        truth_images: int64 (objects,), a number for the image of each.
        sigmas: A number for each point; a distance of twice sigma times the root of the area has a
            similarity of exp(-1/2).

    Example:
        >>> truth = np.array([[[10.0, 10.0, 2], [0, 0, 0]]])
        >>> estimates = truth + [1.0, 0, 0]
        >>> rows = np.array([[0.0, 0, 20, 20]]), np.array([400.0]), np.array([False]), np.array([7])
        >>> predictions = KeypointPredictions(
        ...     estimates, np.array([0.9]), np.array([7]), truth, *rows, sigmas=(0.05, 0.05))
        >>> round(keypoint_scores(predictions)["ap"], 3)
        0.8
    """

    estimates: np.ndarray
    scores: np.ndarray
    estimate_images: np.ndarray
    truth: np.ndarray
    boxes: np.ndarray
    areas: np.ndarray
    crowds: np.ndarray
    truth_images: np.ndarray
    sigmas: tuple[float, ...]

    @functools.cached_property
    def _matches(self):
        """The `ClassMatches` of all images."""
        parts = []
        for number, image in enumerate(np.unique(np.concatenate([self.estimate_images, self.truth_images]))):
            rows = np.flatnonzero(self.estimate_images == image)
            rows = rows[np.argsort(-self.scores[rows], kind="stable")][:MAX_DETECTIONS]
            true = np.flatnonzero(self.truth_images == image)
            similarity = object_keypoint_similarity(
                self.estimates[rows], self.truth[true], self.boxes[true], self.areas[true], self.sigmas
            )
            truth_rows = np.zeros((len(true), 7))
            truth_rows[:, 5], truth_rows[:, 6] = self.crowds[true], self.areas[true]
            is_void = ~(self.truth[true, :, 2] > UNLABELED).any(axis=1)
            matched, ignored, objects = match(similarity, _extents(self.estimates[rows]), truth_rows, is_void)
            columns = self.scores[rows], np.full(len(rows), number), np.arange(len(rows)), matched, ignored
            parts.append((columns, objects))
        return joined(parts) if parts else None

    @property
    def are_pairs(self) -> bool:
        """Whether the object of each row of `truth` was looked for in its own box, the row of `estimates`."""
        return np.array_equal(self.estimate_images, self.truth_images)

    @functools.cached_property
    def distances(self) -> np.ndarray:
        """float64 (objects, points): how far each point is off, by the longer side of its object's box.

        NaN of points without a label, and of all points unless `are_pairs`.
        """
        if not self.are_pairs:
            return np.full(self.truth.shape[:2], np.nan)
        offsets = np.linalg.norm(self.estimates[..., :2] - self.truth[..., :2], axis=2)
        sides = (self.boxes[:, 2:] - self.boxes[:, :2]).max(axis=1, initial=0)[:, np.newaxis]
        far = np.divide(offsets, sides, out=np.full(offsets.shape, np.inf), where=sides > 0)
        return np.where(self.truth[..., 2] > UNLABELED, far, np.nan)

    @functools.cached_property
    def similarities(self) -> np.ndarray:
        """float64 (objects,): the object keypoint similarity of each pair; 0 unless `are_pairs`."""
        if not self.are_pairs:
            return np.zeros(len(self.truth))
        rows = zip(self.estimates, self.truth, self.boxes, self.areas)
        pairs = [
            object_keypoint_similarity(*(part[np.newaxis] for part in row), self.sigmas)[0, 0] for row in rows
        ]
        return np.array(pairs, "float64")


def object_keypoint_similarity(
    estimates: np.ndarray, truth: np.ndarray, boxes: np.ndarray, areas: np.ndarray, sigmas: Sequence[float]
) -> np.ndarray:
    """The mean over the labeled points of exp(-d² / (8 · area · sigma²)) of all pairs, at a distance d.

    Args:
        estimates: (n, points, 2 or more): x and y.
        truth: (m, points, 3): x, y and visibility. Of an object without a labeled point, d is the distance
            from three times its box.
        boxes: (m, 4): left, top, right, bottom.
        areas: (m,), in pixels.
        sigmas: A number for each point.

    Returns:
        float64 (n, m).

    Example:
        >>> truth = np.array([[[0.0, 0.0, 2], [9, 9, 0]]])
        >>> boxes, areas = np.array([[0.0, 0, 10, 10]]), np.array([100.0])
        >>> object_keypoint_similarity(truth + [1.0, 0, 0], truth, boxes, areas, (0.05, 0.05)).round(3)
        array([[0.607]])

    Source: Ronchi and Perona 2017 (arXiv 1707.05388), section 2; `computeOks` of pycocotools.
    """
    estimates, truth = np.asarray(estimates, "float64"), np.asarray(truth, "float64")
    offsets = estimates[:, np.newaxis, :, :2] - truth[np.newaxis, :, :, :2]  # (n, m, points, 2)
    is_labeled = truth[..., 2] > UNLABELED
    corners, opposites = np.split(np.asarray(boxes, "float64"), 2, axis=1)
    sides = opposites - corners
    low, high = corners - sides, corners + 2 * sides
    positions = estimates[:, np.newaxis, :, :2]
    outside = np.maximum(low[:, np.newaxis] - positions, 0) + np.maximum(positions - high[:, np.newaxis], 0)
    is_void = ~is_labeled.any(axis=1)
    offsets = np.where(is_void[:, np.newaxis, np.newaxis], outside, offsets)
    variances = (2 * np.asarray(sigmas, "float64")) ** 2
    scales = 2 * variances * (np.asarray(areas, "float64")[:, np.newaxis] + np.spacing(1))
    weights = np.where(is_void[:, np.newaxis], 1.0, is_labeled)
    similarity = np.exp(-(offsets**2).sum(axis=3) / scales) * weights
    return similarity.sum(axis=2) / weights.sum(axis=1)


def keypoint_scores(predictions: KeypointPredictions) -> dict[str, Any]:
    """The scores of COCO, and the fractions of correct points.

    Args:
        predictions: KeypointPredictions.

    Returns:
        dict of `samples`; `ap`, the mean over the thresholds 0.50, 0.55, … 0.95 of the object keypoint
        similarity of the average precision at 101 recalls; `ap50` and `ap75` at one threshold; `ap_medium`
        and `ap_large` for objects of 32² to 96² and of more pixels; `ar`, `ar50`, `ar75`, `ar_medium` and
        `ar_large`, the recalls of the 20 best objects of an image; and `pck05`, `pck10` and `pck20`, the
        fractions of labeled points that are found within 5, 10 and 20 % of the longer side of the box,
        which are None unless each object was looked for in its own box. None where a score is undefined.

    Example:
        >>> truth = np.array([[[10.0, 10.0, 2]], [[5.0, 5.0, 1]]])
        >>> boxes = np.array([[0.0, 0, 50, 50]] * 2)
        >>> rows = boxes, np.array([2500.0] * 2), np.zeros(2, bool), np.arange(2)
        >>> predictions = KeypointPredictions(
        ...     truth + [[[1.0, 0, 0]], [[8, 0, 0]]], np.ones(2), np.arange(2), truth, *rows, (0.05,))
        >>> scores = keypoint_scores(predictions)
        >>> round(scores["ap50"], 3), scores["pck05"], scores["pck20"], scores["ap_large"]
        (0.505, 0.5, 1.0, None)

    Source: `cocoeval.py` of pycocotools; Yang and Ramanan 2013 for the fraction of correct points, of which
    mmpose takes the longer side of the box.
    """
    matches, names = predictions._matches, [*AREAS]
    curves = None if matches is None else matches.precisions
    recall = None if matches is None else recalls(matches, MAX_DETECTIONS)
    scores = {"samples": len(predictions.truth)}
    for title, values in (("ap", curves), ("ar", recall)):
        for name, area, threshold in (
            *(("", 0, slice(None)), ("50", 0, 0), ("75", 0, 5)),
            *((name, names.index(name), slice(None)) for name in ("_medium", "_large")),
        ):
            scores[title + name] = None if values is None else mean([values[area, threshold]])
    return scores | _correct(predictions.distances)


def keypoint_table(
    predictions: KeypointPredictions, names: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """The scores of each keypoint.

    Args:
        predictions: KeypointPredictions.
        names: One name per point; None for indices.

    Returns:
        A dict for each point: `name`; `objects` and `visible`, in which it has a label and is visible;
        `pck05`, `pck10` and `pck20` as of `keypoint_scores`; and `distance`, the mean distance of the
        estimated point, as a fraction of the longer side of the box. None where a value is undefined.

    Raises:
        ValueError: if the number of names is not that of points.

    Example:
        >>> truth = np.array([[[10.0, 10.0, 2]]])
        >>> rows = np.array([[0.0, 0, 50, 50]]), np.array([2500.0]), np.array([False]), np.array([0])
        >>> predictions = KeypointPredictions(
        ...     truth + [5.0, 0, 0], np.ones(1), np.array([0]), truth, *rows, (0.05,))
        >>> [row] = keypoint_table(predictions, ["nose"])
        >>> row["name"], row["pck05"], row["pck10"], row["distance"]
        ('nose', 0.0, 1.0, 0.1)
    """
    rows, distances = [], predictions.distances
    for number, name in enumerate(names_or_indices(names, predictions.truth.shape[1])):
        marks, errors = predictions.truth[:, number, 2], distances[:, number]
        rows.append(
            {
                "name": name,
                "objects": int((marks > UNLABELED).sum()),
                "visible": int((marks == VISIBLE).sum()),
                **_correct(errors),
                "distance": mean([errors]),
            }
        )
    return rows


def _correct(distances):
    """The fractions of correct points, from `KeypointPredictions.distances`."""
    known = distances[~np.isnan(distances)]
    return {
        title: float((known <= limit).mean()) if known.size else None for title, limit in DISTANCES.items()
    }


def _extents(points):
    """The area of the smallest box around the points of each object."""
    return np.prod(points[..., :2].max(axis=1) - points[..., :2].min(axis=1), axis=1)
