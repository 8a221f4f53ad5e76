import tracemalloc

import numpy as np
import pytest
from made.detections import images_of, random_predictions
from made.instances import random_images, random_masks
from made.tables import by_table

from keras_vit.evaluation import (
    MaskPredictions,
    detection_classes,
    detection_confusion,
    detection_scores,
    mask_average_precision,
    mask_iou,
)
from keras_vit.models import Instances
from keras_vit.tasks.detection.scores import DetectionPredictions, image_f1
from keras_vit.tasks.segmentation.instances import boxes_of


def drawn(boxes, side=400):
    """The pixels of boxes at whole pixels, of which some begin outside of the image."""
    place = np.arange(side)
    left, top, right, bottom = np.asarray(boxes, int).reshape(-1, 4, 1).swapaxes(0, 1)
    rows, columns = (place >= top) & (place < bottom), (place >= left) & (place < right)
    return rows[:, :, np.newaxis] & columns[:, np.newaxis]


def one_object(*places, size=(4, 6), score=0.9, number=0):
    """`Instances` of one object."""
    mask = np.zeros((1, *size), bool)
    mask[0, :2, list(places)] = True
    return Instances(boxes_of(mask), np.array([score]), np.array([number]), mask)


def test_the_iou_is_that_of_sets_of_pixels(rng):
    masks, others = (random_masks(rng, count, (40, 50)) for count in (5, 4))
    others[1] = False
    is_crowd = np.array([False, False, True, False])
    mine, true = ([{*map(tuple, np.argwhere(mask))} for mask in each] for each in (masks, others))
    expected = [
        [len(own & other) / len(own if crowd else own | other) for other, crowd in zip(true, is_crowd)]
        for own in mine
    ]
    np.testing.assert_allclose(mask_iou(masks, others, is_crowd), expected, rtol=1e-12)
    assert mask_iou(masks[:0], others).shape == (0, 4) and mask_iou(others[1:2], others[1:2]) == 0


def test_masks_that_fill_boxes_have_the_scores_of_boxes(rng):
    for _ in range(3):
        boxes = random_predictions(rng)
        images = [(np.clip(found, 0, 400), truth) for found, truth in images_of(boxes)]
        images = [(found[:20][(found[:20, 2:4] > found[:20, :2]).all(1)], truth) for found, truth in images]
        boxes = DetectionPredictions(
            np.array([(len(found), len(truth)) for found, truth in images]),
            *(np.concatenate(rows) for rows in zip(*images)),
            boxes.num_classes,
        )
        predictions = MaskPredictions.of(
            (Instances(rows[:, :4], rows[:, 5], rows[:, 4], drawn(rows[:, :4])) for rows, _ in images),
            ((drawn(rows[:, :4]), rows[:, 4], rows[:, 5], rows[:, 6]) for _, rows in images),
            boxes.num_classes,
        )
        np.testing.assert_array_equal(predictions.truth, boxes.truth)
        for score in (detection_scores, detection_classes, image_f1, detection_confusion):
            np.testing.assert_equal(score(predictions), score(boxes))


def test_masks_are_compared_by_pixels_and_their_boxes_by_sides():
    found, truth = one_object(0, 1, 2, 5), one_object(0, 3, 4, 5)
    scores = mask_average_precision([found], [(truth.masks, truth.classes)], num_classes=1)
    assert scores["samples"] == 1 and scores["ap50"] == 0 and scores["f1"] == 0
    assert scores["box_ap"] == pytest.approx(1) and scores["box_f1"] == 1 and "box_samples" not in scores
    crowd = mask_average_precision([found], [(truth.masks, [0], [True])], num_classes=1)
    assert crowd["ap"] is None


def test_what_is_found_in_a_crowd_is_not_wrong():
    crowd = one_object(0, 1, 2, 3, 4)
    masks = np.concatenate([crowd.masks, one_object(5).masks])
    found = [one_object(0, 1, score=0.9), one_object(5, score=0.8)]
    found = Instances(*(np.concatenate(parts) for parts in zip(*found)))
    truth = masks, [0, 0], [True, False]
    assert mask_average_precision([found], [truth], 1)["ap"] == pytest.approx(1)
    wrong = masks[1:], [0]
    assert mask_average_precision([found], [wrong], 1)["ap"] == pytest.approx(0.5)


def test_an_object_is_small_by_its_pixels_or_by_its_box():
    masks = np.zeros((2, 50, 50), bool)
    masks[0, [0, 45], [0, 45]] = masks[1, 20:22, 20:22] = True  # The first is found where nothing is.
    found = Instances(boxes_of(masks), np.array([0.9, 0.8]), np.array([0, 0]), masks)
    scores = mask_average_precision([found], [(masks[1:], [0])], 1)
    assert scores["ap_small"] == pytest.approx(0.5) and scores["box_ap_small"] == pytest.approx(1)


def test_images_without_objects_count(rng):
    found, truth, classes = random_images(rng)
    empty = found[0].masks[:0]
    none = Instances(boxes_of(empty), np.zeros(0), np.zeros(0, int), empty)
    scores = mask_average_precision([*found, none], [*truth, (empty, [])], classes)
    assert scores == mask_average_precision(found, truth, classes) | {"samples": len(found) + 1}
    scores = mask_average_precision([none], [(empty, [])], 1)
    assert scores.pop("samples") == 1 and {*scores.values()} == {None}


def test_memory_does_not_grow_with_the_images():
    size = (400, 500)

    def images(count):
        return (one_object(0, 1, 7, size=size) for _ in range(count))

    def peak(count):
        tracemalloc.start()
        mask_average_precision(images(count), ((one.masks, [0]) for one in images(count)), 1)
        try:
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1)
    assert peak(20) < peak(2) + 2 * 400 * 500


@by_table(
    "truth, said",
    [
        (lambda one: [], "true objects of the same images; got true objects of 0"),
        (lambda one: [(one.masks, [0])] * 2, "true objects of the same images; got predictions of 1"),
        (lambda one: [(one.masks[:, 1:], [0])], r"true masks \(objects, 4, 6\); got \(1, 3, 6\)"),
        (lambda one: [(one.masks[0], [0])], r"true masks \(objects, 4, 6\); got \(4, 6\)"),
        (lambda one: [(one.masks, [0, 1])], r"expected classes of 1 masks; got the shape \(2,\)"),
        (lambda one: [(one.masks, [0], [1, 0])], r"expected is_crowd of 1 masks; got the shape \(2,\)"),
        (lambda one: [(one.masks, [0], None, 4)], r"expected areas of 1 masks; got the shape \(\)"),
        (lambda one: [(one.masks, [3])], "expected classes from 0 to 2; got 3 to 3"),
        (lambda one: [(one.masks, [-1])], "expected classes from 0 to 2; got -1 to -1"),
    ],
)
def test_objects_that_do_not_fit_are_refused(truth, said):
    one = one_object(1, 2)
    with pytest.raises(ValueError, match=said):
        mask_average_precision([one], truth(one), 3)


def test_no_images_are_refused():
    with pytest.raises(ValueError, match="expected at least one image; got none"):
        mask_average_precision([], [], 3)
