"""Scores of class maps: intersection over union, accuracy, and the agreement of boundaries."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.labels import IGNORE, check_class_count
from keras_vit.models.windows import classes_of
from keras_vit.tasks.task import concatenate, names_or_indices

if TYPE_CHECKING:
    from keras_vit.data.samples import EncodedSamples

TOLERANCE = 0.0075  # of the image's diagonal, within which two boundaries agree


@dataclasses.dataclass(frozen=True)
class SegmentationPredictions:
    """What is stored of a segmentation: the counts of each image's pixels, whatever its size.

    Args:
        lengths: int64 (samples,), the number of rows of `pairs` that are each image's.
        pairs: int64 (rows, 3) of (label, predicted class, pixels), image by image, without ignored pixels.
        boundaries: float64 (samples,), the boundary F of each image; NaN where there is no boundary.
        num_classes: The number of the model's classes.

    Example:
        >>> label, predicted = np.array([[[0, 0, 1, 255]]]), np.array([[[0, 1, 1, 1]]])
        >>> SegmentationPredictions.of_maps(predicted, label, num_classes=2).pairs.tolist()
        [[0, 0, 1], [0, 1, 1], [1, 1, 1]]
    """

    lengths: np.ndarray
    pairs: np.ndarray
    boundaries: np.ndarray
    num_classes: int

    @classmethod
    def of(cls, logits: np.ndarray, labels: np.ndarray) -> SegmentationPredictions:
        """Of logits, resized bilinearly to the labels' sizes; of equal ones, the first counts as the highest.

        Args:
            logits: (samples, height, width, classes).
            labels: The class map of each image, of any size.

        Example:
            >>> labels = [np.zeros((4, 4), int)]
            >>> SegmentationPredictions.of(np.zeros((1, 2, 2, 3)), labels).pairs.tolist()
            [[0, 0, 16]]
        """
        predicted = [classes_of(scores, label.shape) for scores, label in zip(logits, labels)]
        return cls.of_maps(predicted, labels, logits.shape[-1])

    @classmethod
    def of_maps(
        cls,
        predicted: Sequence[np.ndarray] | np.ndarray,
        labels: Sequence[np.ndarray] | np.ndarray,
        num_classes: int,
    ) -> SegmentationPredictions:
        """Of class maps: arrays (samples, height, width), or lists of maps (height, width) of any sizes."""
        check_class_count(num_classes)
        pairs = [_pairs(*maps, num_classes) for maps in zip(labels, predicted)]
        boundaries = [boundary_f(*maps) for maps in zip(predicted, labels)]
        return cls(
            np.array([len(rows) for rows in pairs], "int64"),
            np.concatenate([np.zeros((0, 3), "int64"), *pairs]),
            np.array(boundaries, "float64"),  # of None NaN
            num_classes,
        )

    @property
    def confusion_matrix(self) -> np.ndarray:
        """int64 (classes, classes): the pixels of each true class (rows) and predicted class (columns)."""
        return _matrix(self.pairs, self.num_classes)

    @property
    def image_iou(self) -> np.ndarray:
        """float64 (samples,): the mean IoU of each image over its classes; 1 where no pixel counts."""
        images = np.split(self.pairs, np.cumsum(self.lengths)[:-1])
        # Only the classes in an image are counted, since a matrix of all classes may be large.
        scores = []
        for rows in images:
            classes, compact = np.unique(rows[:, :2], return_inverse=True)
            compact = np.column_stack([compact.reshape(-1, 2), rows[:, 2]])
            score = mean_iou(_matrix(compact, len(classes)))
            scores.append(1.0 if score is None else score)
        return np.array(scores, "float64")


def predict_maps(
    segment: Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]], samples: EncodedSamples, num_classes: int
) -> SegmentationPredictions:
    """Segment all images of a split at their own sizes by any function, such as one with sliding windows.

    Args:
        segment: A function from an image, uint8 (height, width, 3), to a class map, ints (height, width).
        samples: A split of a `Dataset` for segmentation.
        num_classes: The number of classes.

    Returns:
        SegmentationPredictions.

    Raises:
        ValueError: if there are no samples, or a mask or a map has other classes or another size.

    Example:
        >>> samples = load_dataset("digits_scenes", task="segmentation").split("test").take(range(9))
        >>> background = predict_maps(lambda image: np.zeros(image.shape[:2], int), samples, num_classes=11)
        >>> keras_vit.evaluation.segmentation_scores(background)["pixel_accuracy"] > 0.5
        True
    """
    from keras_vit.tasks.computing import computed_one_by_one  # needs TensorFlow

    maps = computed_one_by_one(segment, samples)
    return concatenate([SegmentationPredictions.of_maps([one], [label], num_classes) for one, label in maps])


def one_hot(maps, num_classes):
    """Class maps in place of logits: 1 for the class of a pixel, 0 for others, float32.

    >>> one_hot(np.array([[[1]]]), 3).tolist()
    [[[[0.0, 1.0, 0.0]]]]
    """
    return (np.expand_dims(maps, -1) == np.arange(num_classes)).astype("float32")


def _pairs(label, predicted, num_classes):
    """The rows of `pairs` of one image."""
    label, predicted = np.asarray(label), np.asarray(predicted)
    if label.shape != predicted.shape or label.ndim != 2:
        raise ValueError(
            f"expected two class maps (height, width) of one size; got {predicted.shape} and {label.shape}"
        )
    counted = label != IGNORE
    for name, values in (("predicted classes", predicted), ("labels", label[counted])):
        if values.size and not 0 <= values.min() <= values.max() < num_classes:
            raise ValueError(
                f"expected {name} from 0 to {num_classes - 1}; got {values.min()} to {values.max()}"
            )
    joint = label[counted].astype("int64") * num_classes + predicted[counted]
    cells, pixels = np.unique(joint, return_counts=True)
    return np.column_stack([cells // num_classes, cells % num_classes, pixels])


def _matrix(pairs, num_classes):
    matrix = np.zeros((num_classes, num_classes), "int64")
    np.add.at(matrix, (pairs[:, 0], pairs[:, 1]), pairs[:, 2])
    return matrix


def mean_iou(matrix):
    """The mean over classes of the intersection over union, from a confusion matrix.

    Classes that are neither in the labels nor predicted do not count; None if that is all of them.

    >>> mean_iou(np.array([[1, 1, 0], [0, 2, 0], [0, 0, 0]]))
    0.5833333333333333
    """
    right = np.diag(matrix)
    union = matrix.sum(0) + matrix.sum(1) - right
    return _mean(right[union > 0] / union[union > 0])


def segmentation_scores(predictions: SegmentationPredictions) -> dict[str, Any]:
    """The scores of class maps over all pixels of all images; ignored pixels do not count.

    Args:
        predictions: SegmentationPredictions.

    Returns:
        dict of `samples`; `mean_iou`, the mean over the classes of the intersection over union, without
        classes that are neither in the labels nor predicted; `pixel_accuracy`; `mean_accuracy`, the mean over
        the classes in the labels of the fraction of their pixels that is right; and `boundary_f`, the mean of
        `boundary_f` over the images that have boundaries. None where a score is undefined.

    Example:
        >>> label, predicted = np.array([[[0, 0, 1, 255]]]), np.array([[[0, 1, 1, 1]]])
        >>> segmentation_scores(SegmentationPredictions.of_maps(predicted, label, 2))["mean_iou"]
        0.5

    Source: Everingham et al. 2010 (IoU); Csurka et al. 2013 (boundaries).
    """
    matrix, boundaries = predictions.confusion_matrix, predictions.boundaries
    right, labeled = np.diag(matrix), matrix.sum(1)
    present = labeled > 0
    return {
        "samples": len(predictions.lengths),
        "mean_iou": mean_iou(matrix),
        "pixel_accuracy": float(right.sum() / labeled.sum()) if present.any() else None,
        "mean_accuracy": _mean(right[present] / labeled[present]),
        "boundary_f": _mean(boundaries[~np.isnan(boundaries)]),
    }


def _mean(values):
    return float(np.mean(values)) if len(values) else None


def segmentation_classes(
    predictions: SegmentationPredictions, class_names: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """The scores of each class.

    Args:
        predictions: SegmentationPredictions.
        class_names: One name per class; None for indices.

    Returns:
        A dict for each class: `name`; the counts of `pixels` that have it, of those among them that are
        `right`, and of all for which it is `predicted`; `iou`, and `accuracy` and `precision` (`right` as a
        fraction of `pixels` and of `predicted`). None where a value is undefined.

    Raises:
        ValueError: if the number of names is not that of classes.

    Example:
        >>> label, predicted = np.array([[[0, 0, 1, 255]]]), np.array([[[0, 1, 1, 1]]])
        >>> predictions = SegmentationPredictions.of_maps(predicted, label, 2)
        >>> segmentation_classes(predictions, ["sky", "tree"])[1]["iou"]
        0.5
    """
    matrix = predictions.confusion_matrix
    counts = zip(matrix.sum(1).tolist(), np.diag(matrix).tolist(), matrix.sum(0).tolist())
    return [
        {
            "name": name,
            "pixels": pixels,
            "right": right,
            "predicted": predicted,
            "iou": right / (pixels + predicted - right) if pixels + predicted else None,
            "accuracy": right / pixels if pixels else None,
            "precision": right / predicted if predicted else None,
        }
        for name, (pixels, right, predicted) in zip(names_or_indices(class_names, len(matrix)), counts)
    ]


def boundary_f(predicted: np.ndarray, label: np.ndarray, tolerance: float = TOLERANCE) -> float | None:
    """How well the boundaries of the classes in an image agree, as an F measure.

    A pixel is on the boundary of its class if one of its four neighbors has another class; neither ignored
    pixels nor the border of the image make a boundary. A boundary pixel is matched if the other map has one
    of the same class within the tolerance. Precision is the matched fraction of the predicted boundary,
    recall that of the labeled one.

    Args:
        predicted, label: Class maps, ints (height, width).
        tolerance: The distance, as a fraction of the image's diagonal.

    Returns:
        The mean of F over the classes with a boundary in one of the maps; None if there is no boundary.

    Example:
        >>> label = np.repeat([[0, 0, 1, 1]], 4, axis=0)
        >>> boundary_f(label, label), boundary_f(label, 0 * label)
        (1.0, 0.0)

    Source: Csurka et al. 2013, "What is a good evaluation measure for semantic segmentation?".
    """
    label, predicted = np.asarray(label), np.asarray(predicted)
    counted = label != IGNORE
    maps = [np.where(counted, each, IGNORE).astype("int32") for each in (predicted, label)]
    edges = [_edges(each) for each in maps]
    reach = tolerance * np.hypot(*label.shape)
    classes = np.unique(np.concatenate([each[edge] for each, edge in zip(maps, edges)]))
    scores = []
    for number in classes:
        mine, true = (edge & (each == number) for each, edge in zip(maps, edges))
        matched = _near(mine, true, reach), _near(true, mine, reach)
        # 2 P R / (P + R), which is 0 where nothing matches.
        precision, recall = (near / max(int(edge.sum()), 1) for near, edge in zip(matched, (mine, true)))
        scores.append(2 * precision * recall / (precision + recall) if precision + recall else 0.0)
    return _mean(scores)


def _edges(classes):
    """The pixels with a neighbor of another class, both of which are not ignored: bool (height, width)."""
    edges = np.zeros(classes.shape, bool)
    for found, values in ((edges, classes), (edges.T, classes.T)):  # views: down the rows, and the columns
        counted = (values[:-1] != IGNORE) & (values[1:] != IGNORE)
        differ = counted & (values[:-1] != values[1:])
        found[:-1] |= differ
        found[1:] |= differ
    return edges


def _near(points, others, reach):
    """How many of the points are within reach of one of the others; both are bool (height, width)."""
    from scipy.ndimage import distance_transform_edt

    if not points.any() or not others.any():
        return 0
    # Distances are only computed in the rectangle around both.
    rows, columns = (np.flatnonzero((points | others).any(axis)) for axis in (1, 0))
    window = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    return int((distance_transform_edt(~others[window])[points[window]] <= reach).sum())
