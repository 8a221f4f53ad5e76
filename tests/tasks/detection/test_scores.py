import tracemalloc

import numpy as np
import pytest
from made.detections import images_of, random_predictions
from reference.detection import average_precision, iou_of

from keras_vit.tasks.detection.scores import (
    THRESHOLDS,
    ClassMatches,
    DetectionPredictions,
    agreement,
    box_iou,
    detection_classes,
    detection_confusion,
    detection_scores,
    image_f1,
    precision_recall,
)
from keras_vit.tasks.task import concatenate


@pytest.fixture
def predictions(rng):
    """Of several images, with objects and detections of three classes and a crowd."""
    truth = np.array(
        [
            [0, 0, 10, 10, 0, 0, 100],
            [20, 20, 60, 60, 1, 0, 1600],
            [100, 100, 200, 200, 0, 1, 9000],
            [0, 0, 30, 30, 2, 0, 900],
        ]
    )
    detections = np.array(
        [
            [0, 0, 10, 10, 0, 0.9],
            [20, 20, 60, 60, 0, 0.8],
            [110, 110, 150, 150, 0, 0.7],  # in the crowd
            [0, 0, 30, 24, 2, 0.6],
            [0, 0, 30, 30, 2, 0.5],
        ]
    )
    return DetectionPredictions(np.array([[3, 3], [2, 1]]), detections, truth, num_classes=3)


def test_iou(rng):
    boxes, others = (np.sort(rng.integers(0, 20, (9, 2, 2)), axis=1).reshape(9, 4) for _ in range(2))
    is_crowd = rng.random(9) < 0.5
    expected = [[iou_of(box, *other) for other in zip(others, is_crowd)] for box in boxes]
    np.testing.assert_allclose(box_iou(boxes, others, is_crowd), expected)


def test_average_precision_is_that_of_its_definition(rng):
    areas = {"ap": "all", "ap_small": "small", "ap_medium": "medium", "ap_large": "large"}
    for _ in range(20):
        predictions = random_predictions(rng)
        scores = detection_scores(predictions)
        for name, area in areas.items():
            each = [average_precision(predictions, threshold, area) for threshold in THRESHOLDS]
            expected = None if each[0] is None else pytest.approx(np.mean(each), abs=1e-9)
            assert scores[name] == expected
        assert scores["ap50"] == (
            None if scores["ap"] is None else pytest.approx(average_precision(predictions, 0.5), abs=1e-9)
        )


def test_the_scores_of_all_images_do_not_depend_on_the_batches(rng):
    predictions = random_predictions(rng)
    parts = [
        DetectionPredictions(np.array([[len(found), len(truth)]]), found, truth, predictions.num_classes)
        for found, truth in images_of(predictions)
    ]
    assert detection_scores(concatenate(parts)) == detection_scores(predictions)


def test_scores_of_each_class(predictions):
    cat, dog, bird = detection_classes(predictions, ["cat", "dog", "bird"])
    assert (cat["objects"], dog["objects"], bird["objects"]) == (1, 1, 1)  # The crowd is not one.
    assert cat["ap"] == pytest.approx(1) and dog["ap"] == 0
    # The first detection is right up to an IoU of 0.8, at all others it comes before the right one.
    assert bird["ap50"] == pytest.approx(1) and bird["ap"] == pytest.approx((7 + 3 * 0.5) / 10)
    assert cat["threshold"] == 0.9 and cat["f1"] == 1 and dog["threshold"] is None and dog["f1"] == 0
    scores = detection_scores(predictions)
    assert scores["ap"] == pytest.approx(np.mean([row["ap"] for row in (cat, dog, bird)]))
    assert scores["samples"] == 2
    with pytest.raises(ValueError, match="^expected 3 class names; got 2$"):
        detection_classes(predictions, ["cat", "dog"])


def test_the_precision_of_many_detections_takes_the_memory_of_one_curve(rng):
    scores, numbers, count = np.sort(rng.random(10**5))[::-1], np.zeros(10**5, int), np.array([10**5] * 4)
    matched, ignored = rng.random((2, 4, len(THRESHOLDS), 10**5)) < 0.3
    matches = ClassMatches(scores, numbers, numbers, matched, ignored, count)
    tracemalloc.start()
    assert matches.precisions.shape == (4, 10, 101)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10 * scores.nbytes  # There are 40 curves.


def test_a_detection_in_a_crowd_is_neither_right_nor_wrong(predictions):
    matrix = detection_confusion(predictions, threshold=0.55)
    expected = np.zeros((4, 4), int)
    expected[0, 0] = expected[1, 0] = expected[2, 2] = 1  # The dog is taken for a cat.
    assert matrix.tolist() == expected.tolist()
    assert detection_confusion(predictions, threshold=0.95)[:, 3].tolist() == [1, 1, 1, 0]
    assert detection_confusion(predictions, threshold=0.0)[3].tolist() == [0, 0, 1, 0]


def test_the_threshold_has_the_highest_f1(predictions):
    scores = detection_scores(predictions)
    assert scores["threshold"] == 0.6
    assert scores["f1"] == pytest.approx(2 * 2 / (3 + 3))
    assert image_f1(predictions) == pytest.approx([2 / 4, 1])


def test_precision_falls_with_recall(predictions):
    curve = precision_recall(predictions)
    assert curve[0] == pytest.approx(2 / 3) and (np.diff(curve) <= 0).all()
    assert precision_recall(predictions, 0.95)[-1] == pytest.approx((1 + 0 + 0.5) / 3)
    with pytest.raises(ValueError, match="expected a threshold of 0.50, 0.55, … 0.95; got 0.3"):
        precision_recall(predictions, 0.3)


def test_images_without_objects_have_no_average_precision():
    empty = DetectionPredictions(np.zeros((2, 2), int), np.zeros((0, 6)), np.zeros((0, 7)), 2)
    scores = detection_scores(empty)
    assert scores.pop("samples") == 2 and {*scores.values()} == {None}
    assert image_f1(empty).tolist() == [1, 1] and not precision_recall(empty).any()
    assert detection_confusion(empty).tolist() == np.zeros((3, 3)).tolist()


def test_agreement_is_an_f1(rng):
    from keras_vit.tasks.detection.detecting import Detections

    boxes = np.array([[0, 0, 10, 10], [20, 20, 30, 30]], "float32")
    both = Detections(boxes, np.array([0.9, 0.5]), np.array([1, 2]))
    one = Detections(boxes[:1], np.array([0.9]), np.array([1]))
    none = Detections(boxes[:0], np.zeros(0), np.zeros(0, int))
    assert agreement([both], [both], 0.3) == agreement([none], [none], 0.3) == 1
    assert agreement([both], [one], 0.3) == pytest.approx(2 / 3)
    assert agreement([both], [one], 0.6) == 1 and agreement([one], [none], 0.3) == 0
