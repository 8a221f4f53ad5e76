"""COCO's average precision of objects with masks."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from keras_vit.lazy import LazyModule
from keras_vit.tasks.detection.scores import DetectionPredictions, box_iou, detection_scores
from keras_vit.tasks.task import concatenate

if TYPE_CHECKING:
    from keras_vit.tasks.segmentation.instances import Instances

instances = LazyModule("keras_vit.tasks.segmentation.instances")


class TrueObjects(NamedTuple):
    """The objects in an image; a tuple of the same stands for it.

    Attributes:
        masks: bool (objects, height, width); they may overlap.
        classes: Ints (objects,).
        is_crowd: bool (objects,), as of `DetectionPredictions`; None: no object is one.
        areas: The areas (objects,) by which objects are small, medium or large; None for the pixels of the
            masks.
    """

    masks: np.ndarray
    classes: Sequence[int] | np.ndarray
    is_crowd: Sequence[bool] | np.ndarray | None = None
    areas: Sequence[float] | np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class MaskPredictions(DetectionPredictions):
    """`DetectionPredictions` of objects that are compared by their masks.

    The functions for `DetectionPredictions` take it. It holds the boxes of the masks, but not the masks, so
    that its size does not depend on that of the images.

    Args:
        counts, detections, truth, num_classes: As for `DetectionPredictions`.
        areas: int64 (rows of `detections`,), the pixels of each mask.
        ious: float64, image by image the IoU of each detection with each object of the image.

    Example:
        >>> masks = np.array([[[True, True, False]]])
        >>> from keras_vit.tasks.segmentation.instances import Instances
        >>> found = Instances(np.array([[0, 0, 2, 1]]), np.array([0.9]), np.array([2]), masks)
        >>> predictions = MaskPredictions.of([found], [(masks, [2])], num_classes=3)
        >>> predictions.truth.tolist(), predictions.ious.tolist()
        ([[0.0, 0.0, 2.0, 1.0, 2.0, 0.0, 2.0]], [1.0])
    """

    areas: np.ndarray
    ious: np.ndarray

    @classmethod
    def of(
        cls, found: Iterable[Instances], truth: Iterable[TrueObjects | tuple[Any, ...]], num_classes: int
    ) -> MaskPredictions:
        """Of images one after the other, of which one at a time is in memory if these are generators.

        Args:
            found: `Instances` of each image.
            truth: `TrueObjects` of each image.
            num_classes: The class count of the model.

        Raises:
            ValueError: for numbers of images, sizes or classes that do not fit.
        """
        parts = []
        for number, (one, objects) in enumerate(itertools.zip_longest(found, truth)):
            if one is None or objects is None:
                missing = "predictions" if one is None else "true objects"
                raise ValueError(
                    f"expected predictions and true objects of the same images; got {missing} of {number}"
                )
            parts.append(cls._of_image(one, TrueObjects(*objects), num_classes))
        if not parts:
            raise ValueError("expected at least one image; got none")
        return concatenate(parts)

    @classmethod
    def _of_image(cls, found, objects, num_classes):
        masks = np.asarray(objects.masks, bool)
        classes = np.asarray(objects.classes)
        if masks.ndim != 3 or masks.shape[1:] != found.masks.shape[1:]:
            size = found.masks.shape[1:]
            raise ValueError(f"expected true masks (objects, {size[0]}, {size[1]}); got {masks.shape}")
        crowds = np.zeros(len(masks)) if objects.is_crowd is None else np.asarray(objects.is_crowd)
        areas = _areas(masks) if objects.areas is None else np.asarray(objects.areas)
        for name, values in (("classes", classes), ("is_crowd", crowds), ("areas", areas)):
            if values.shape != masks.shape[:1]:
                raise ValueError(f"expected {name} of {len(masks)} masks; got the shape {values.shape}")
        for values in (classes, found.classes):
            if len(values) and not 0 <= values.min() <= values.max() < num_classes:
                raise ValueError(
                    f"expected classes from 0 to {num_classes - 1}; got {values.min()} to {values.max()}"
                )
        is_crowd = crowds > 0
        return cls(
            np.array([[len(found.masks), len(masks)]], "int64"),
            np.column_stack([found.boxes, found.classes, found.scores]).astype("float64").reshape(-1, 6),
            np.column_stack([instances.boxes_of(masks), classes, is_crowd, areas])
            .astype("float64")
            .reshape(-1, 7),
            num_classes,
            _areas(found.masks),
            mask_iou(found.masks, masks, is_crowd).ravel(),
        )

    def _images(self):
        areas = np.split(self.areas, np.cumsum(self.counts[:, 0])[:-1])
        ious = np.split(self.ious, np.cumsum(self.counts.prod(axis=1))[:-1])
        for (detections, truth), own, iou in zip(self._rows(), areas, ious):
            yield detections, own, truth, iou.reshape(len(detections), len(truth))

    def of_boxes(self) -> DetectionPredictions:
        """The same objects, compared by the boxes of their masks."""
        return DetectionPredictions(self.counts, self.detections, self.truth, self.num_classes)


def mask_iou(masks: np.ndarray, others: np.ndarray, is_crowd: np.ndarray | None = None) -> np.ndarray:
    """The intersection over union of all pairs of masks.

    Args:
        masks: bool (n, height, width).
        others: bool (m, height, width).
        is_crowd: bool (m,): for these the intersection as a fraction of the first mask; None: none is.

    Returns:
        float64 (n, m); 0 for two empty masks.

    Example:
        >>> mask_iou(np.array([[[True, True, False]]]), np.array([[[False, True, True]]])).round(3).tolist()
        [[0.333]]
    """
    masks, others = (np.asarray(each, bool) for each in (masks, others))
    boxes, other_boxes = instances.boxes_of(masks), instances.boxes_of(others)
    common = np.zeros((len(masks), len(others)))
    for row, column in np.argwhere(box_iou(boxes, other_boxes) > 0):
        left, top = np.maximum(boxes[row], other_boxes[column])[:2].astype(int)
        right, bottom = np.minimum(boxes[row], other_boxes[column])[2:].astype(int)
        window = slice(top, bottom), slice(left, right)
        common[row, column] = np.count_nonzero(masks[row][window] & others[column][window])
    areas, other_areas = _areas(masks), _areas(others)
    union = areas[:, np.newaxis] + other_areas - common
    if is_crowd is not None:
        union = np.where(is_crowd, areas[:, np.newaxis], union)
    return np.divide(common, union, out=np.zeros_like(common), where=common > 0)


def mask_average_precision(
    found: Iterable[Instances], truth: Iterable[TrueObjects | tuple[Any, ...]], num_classes: int
) -> dict[str, Any]:
    """COCO's scores of masks, and of their boxes.

    Args:
        found: `Instances` of each image, such as a generator of what `ImageSegmenter.instances` returns with
            a threshold of 0.
        truth: `TrueObjects` of each image, or tuples: masks (objects, height, width), classes, and perhaps
            which are crowds, and areas.
        num_classes: The class count of the model.

    Returns:
        dict of `detection_scores` by the IoU of masks, and the same with "box_" before their names by the IoU
        of the boxes around the masks.

    Raises:
        ValueError: for numbers of images, sizes or classes that do not fit.

    Example:
        >>> masks = np.array([[[True, True, True, False]]])
        >>> from keras_vit.tasks.segmentation.instances import Instances
        >>> found = Instances(np.array([[0, 0, 3, 1]]), np.array([0.9]), np.array([0]), masks)
        >>> scores = mask_average_precision([found], [(masks[..., ::-1], [0])], num_classes=1)
        >>> round(scores["ap50"], 3), scores["ap75"], round(scores["box_ap50"], 3)
        (1.0, 0.0, 1.0)

    Source: Lin et al. 2014 (arXiv 1405.0312); `cocoeval.py` of pycocotools.
    """
    predictions = MaskPredictions.of(found, truth, num_classes)
    boxes = detection_scores(predictions.of_boxes())
    return detection_scores(predictions) | {
        f"box_{name}": score for name, score in boxes.items() if name != "samples"
    }


def _areas(masks):
    return np.array([np.count_nonzero(mask) for mask in masks], "int64")
