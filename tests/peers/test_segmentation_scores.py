"""Scores of segmentations: torchmetrics' and ours, on random maps."""

import numpy as np
import pytest
from peers.packages import torch, torchmetrics
from reference.segmentation import random_maps

from keras_vit.evaluation import panoptic_counts, panoptic_quality
from keras_vit.tasks.segmentation_scores import (
    SegmentationPredictions,
    segmentation_classes,
    segmentation_scores,
)

CASES = [(1, 0.0), (2, 0.1), (7, 0.3), (20, 0.9), (3, 1.0)]  # classes, and the fraction of ignored pixels


@pytest.mark.slow
@pytest.mark.parametrize("classes, ignored", CASES)
def test_iou_and_accuracy_are_torchmetrics(classes, ignored, rng):
    for _ in range(200):
        size = tuple(rng.integers(1, 24, 2))
        labels = random_maps(rng, 2, size, rng.integers(1, classes + 1), ignored)
        predicted = np.where(
            (labels < 255) & (rng.random(labels.shape) < 0.7), labels, random_maps(rng, 2, size, classes, 0)
        )
        predictions = SegmentationPredictions.of_maps(predicted, labels, classes)
        scores = segmentation_scores(predictions)
        counted = labels != 255
        if not counted.any():
            assert scores["mean_iou"] is None
            continue
        # Torchmetrics refuses a task of one class.
        maps = [torch.from_numpy(each[counted]) for each in (predicted, labels)]
        options = {"num_classes": max(classes, 2), "average": None}
        expected = torchmetrics.functional.jaccard_index(*maps, task="multiclass", **options).numpy()
        rows = segmentation_classes(predictions)
        found = [row["iou"] for row in rows]
        present = [number for number, iou in enumerate(found) if iou is not None]
        np.testing.assert_allclose([found[i] for i in present], expected[present], atol=1e-6)
        assert scores["mean_iou"] == pytest.approx(expected[present].mean(), abs=1e-6)
        accuracy = torchmetrics.functional.accuracy(
            *maps, task="multiclass", num_classes=max(classes, 2), average="micro"
        )
        assert scores["pixel_accuracy"] == pytest.approx(float(accuracy), abs=1e-6)


def panoptic_map(rng, size, classes, ignored):
    """Blocks of segments of 3 × 3 pixels, some of them without a class."""
    coarse = rng.integers(0, classes, size), rng.integers(0, 3, size)
    found = np.stack(coarse, -1).repeat(3, 0).repeat(3, 1)
    found[rng.random(found.shape[:2]) < ignored] = 255, 0
    return found


@pytest.mark.slow
@pytest.mark.parametrize("classes, ignored", CASES)
def test_panoptic_quality_is_torchmetrics(classes, ignored, rng):
    things = set(range(0, classes, 2))
    stuff = set(range(classes)) - things
    metric = torchmetrics.detection.PanopticQuality(
        things, stuff, allow_unknown_preds_category=True, return_sq_and_rq=True
    )
    total = np.zeros((classes, 4))
    for _ in range(200):
        label = panoptic_map(rng, tuple(rng.integers(1, 7, 2)), classes, ignored)
        # Predicted for each pixel: torchmetrics also ignores pixels that are predicted to have no class.
        other = panoptic_map(rng, tuple(side // 3 for side in label.shape[:2]), classes, 0.0)
        is_kept = (rng.random(label.shape[:2]) < 0.8) & (label[..., 0] != 255)
        predicted = np.where(is_kept[..., np.newaxis], label, other)
        total += panoptic_counts(predicted, label, classes, things)
        metric.update(*(torch.from_numpy(each[np.newaxis]) for each in (predicted, label)))
    scores = panoptic_quality(total, things)
    found = [scores[name] or 0.0 for name in ("pq", "sq", "rq")]
    np.testing.assert_allclose(found, np.nan_to_num(metric.compute().numpy()), atol=1e-6)
