"""Panoptic quality: torchmetrics' and ours, on random maps."""

import numpy as np
import pytest
from peers.packages import torch, torchmetrics

from keras_vit.evaluation import panoptic_counts, panoptic_quality

CASES = [(1, 0.0), (2, 0.1), (7, 0.3), (20, 0.9), (3, 1.0)]  # classes, and the fraction of ignored pixels


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
