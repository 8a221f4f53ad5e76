"""COCO's scores of keypoints: those of pycocotools, and ours."""

import contextlib
import io

import numpy as np
import pytest
from made.keypoints import random_keypoints

from keras_vit.tasks.keypoints.scores import (
    KeypointPredictions,
    keypoint_scores,
    keypoint_table,
    object_keypoint_similarity,
)
from keras_vit.tasks.task import concatenate

NAMES = ("ap", "ap50", "ap75", "ap_medium", "ap_large", "ar", "ar50", "ar75", "ar_medium", "ar_large")


def scores_of_coco(predictions):
    """The ten scores of pycocotools."""
    coco = pytest.importorskip("pycocotools.coco", reason="pycocotools is in requirements-peers.txt")
    from pycocotools.cocoeval import COCOeval

    numbers = {*predictions.truth_images.tolist(), *predictions.estimate_images.tolist()}
    columns = predictions.truth, predictions.boxes, predictions.areas, predictions.crowds
    annotations = [
        {
            **{"id": number, "image_id": int(image), "category_id": 1, "area": float(area)},
            **{"bbox": [*box[:2], *(box[2:] - box[:2])], "iscrowd": int(crowd)},
            **{"keypoints": points.ravel().tolist(), "num_keypoints": int((points[:, 2] > 0).sum())},
        }
        for number, (points, box, area, crowd, image) in enumerate(zip(*columns, predictions.truth_images), 1)
    ]
    columns = predictions.estimates, predictions.scores, predictions.estimate_images
    results = [
        {"image_id": int(image), "category_id": 1, "keypoints": points.ravel(), "score": float(score)}
        for points, score, image in zip(*columns)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco.COCO()
        truth.dataset = {"images": [{"id": number} for number in numbers], "annotations": annotations}
        truth.dataset["categories"] = [{"id": 1, "name": "object"}]
        truth.createIndex()
        found = COCOeval(truth, truth.loadRes(results), iouType="keypoints")
        found.params.kpt_oks_sigmas = np.array(predictions.sigmas)
        found.evaluate()
        found.accumulate()
        found.summarize()
    return np.array(found.stats, "float64")


@pytest.mark.parametrize("cases", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_average_precision_is_that_of_pycocotools(cases, rng):
    compared = 0
    while compared < cases:
        predictions = random_keypoints(rng)
        if not len(predictions.estimates):  # pycocotools refuses results without rows.
            continue
        scores = keypoint_scores(predictions)
        found = [-1 if scores[name] is None else scores[name] for name in NAMES]
        np.testing.assert_allclose(found, scores_of_coco(predictions), rtol=0, atol=1e-9)
        compared += 1


def test_similarity_of_a_point_at_a_known_distance():
    truth, box = np.array([[[10.0, 20.0, 1], [0, 0, 0]]]), np.array([[0.0, 0, 30, 40]])
    # A distance of 2 · sigma · √area has exp(-1/2).
    found = truth + [2 * 0.1 * 20, 0, 0]
    similarity = object_keypoint_similarity(found, truth, box, np.array([400.0]), (0.1, 0.1))
    np.testing.assert_allclose(similarity, [[np.exp(-0.5)]], rtol=1e-12)


@pytest.fixture
def predictions():
    """Two objects of one image in boxes of 20 and 40 pixels; a point of the second has no label."""
    truth = np.array([[[5.0, 5, 2], [15, 15, 1]], [[50.0, 50, 2], [0, 0, 0]]])
    offsets = np.array([[[1.0, 0, 0], [0, 3, 0]], [[8.0, 0, 0], [99, 99, 0]]])
    boxes, areas = np.array([[0.0, 0, 20, 10], [40, 40, 60, 80]]), np.array([100.0, 2000])
    images = np.array([3, 3])
    rows = truth, boxes, areas, np.zeros(2, bool), images
    return KeypointPredictions(truth + offsets, np.array([0.5, 0.9]), images, *rows, (0.05, 0.1))


def test_correct_points_are_within_a_part_of_the_longer_side(predictions):
    scores = keypoint_scores(predictions)
    # 1/20 and 3/20, and 8/40
    assert [scores[name] for name in ("pck05", "pck10", "pck20")] == [1 / 3, 1 / 3, 1]
    first, second = keypoint_table(predictions, ["a", "b"])
    assert (first["name"], first["objects"], first["visible"]) == ("a", 2, 2)
    assert (second["objects"], second["visible"], second["pck10"], second["distance"]) == (1, 0, 0, 0.15)
    assert first["distance"] == pytest.approx((0.05 + 0.2) / 2)


def test_the_scores_of_all_objects_do_not_depend_on_the_batches(predictions):
    *columns, sigmas = vars(predictions).values()
    parts = [KeypointPredictions(*(of[i : i + 1] for of in columns), sigmas) for i in range(2)]
    assert keypoint_scores(concatenate(parts)) == keypoint_scores(predictions)


def test_there_are_no_correct_points_without_pairs(predictions):
    *_, sigmas = vars(predictions).values()
    rows = [vars(predictions)[name] for name in ("truth", "boxes", "areas", "crowds", "truth_images")]
    alone = KeypointPredictions(predictions.estimates[:1], np.ones(1), np.array([3]), *rows, sigmas)
    assert keypoint_scores(alone)["pck20"] is None and keypoint_scores(alone)["ap"] is not None
    assert keypoint_table(alone)[0]["distance"] is None
