import numpy as np
import pytest
import tensorflow as tf
from made.folders import write_masks
from made.tables import by_table
from reference.comparing import numpy, randomize
from reference.segmentation import boundary_f_of_pairs, random_maps
from reference.small import small
from sklearn import metrics

import keras_vit
from keras_vit.data import load_dataset
from keras_vit.losses import SegmentationCrossEntropy, pixel_weights
from keras_vit.metrics import LIMB, MeanIoU
from keras_vit.models import windows
from keras_vit.tasks import get_task
from keras_vit.tasks.segmentation.scores import (
    SegmentationPredictions,
    boundary_f,
    mean_iou,
    segmentation_classes,
    segmentation_scores,
)
from keras_vit.tasks.task import concatenate

TASK, CLASSES = get_task("segmentation"), 5


@pytest.fixture
def maps(rng):
    return rng.standard_normal((6, 7, 9, CLASSES)).astype("float32"), random_maps(rng, 6, (7, 9), CLASSES)


def each_loss(logits, labels):
    """The cross-entropy of each pixel in float64; of ignored ones that of class 0."""
    logs = logits - np.log(np.exp(logits.astype("float64")).sum(-1, keepdims=True))
    return -np.take_along_axis(logs, np.where(labels == 255, 0, labels)[..., np.newaxis], -1)[..., 0]


def test_the_loss_is_the_mean_over_labeled_pixels(maps):
    logits, labels = maps
    loss, each, counted = SegmentationCrossEntropy(), each_loss(*maps), labels != 255
    assert float(loss(labels, logits)) == pytest.approx(each[counted].mean(), rel=1e-5)
    weights = np.array([1.0, 0, 2, 0.5, 0, 1])
    expected = (weights[:, np.newaxis, np.newaxis] * each * counted).sum()
    expected /= (weights * counted.sum((1, 2))).sum()
    for sample_weight in (weights, weights[:, np.newaxis, np.newaxis] * pixel_weights(labels)):
        assert float(loss(labels, logits, sample_weight)) == pytest.approx(expected, rel=1e-5)
    assert float(loss(np.full_like(labels, 255), logits)) == 0


def test_a_class_out_of_range_makes_the_loss_nan(maps):
    logits, labels = maps
    labels[0, 0, 0] = CLASSES
    assert np.isnan(float(SegmentationCrossEntropy()(labels, logits)))
    assert np.isfinite(
        float(SegmentationCrossEntropy(ignore=CLASSES)(np.where(labels == 255, 0, labels), logits))
    )


def test_the_metric_counts_as_the_scores_do(maps):
    logits, labels = maps
    metric = MeanIoU(CLASSES)
    for part in (slice(2), slice(2, None)):
        metric.update_state(labels[part], logits[part])
    predictions = concatenate([TASK.predictions(logits[p], labels[p]) for p in (slice(2), slice(2, None))])
    expected = metrics.confusion_matrix(labels.ravel(), logits.argmax(-1).ravel(), labels=range(CLASSES))
    np.testing.assert_array_equal(metric.confusion_matrix(), expected)
    np.testing.assert_array_equal(predictions.confusion_matrix, expected)
    assert float(metric.result()) == pytest.approx(segmentation_scores(predictions)["mean_iou"], rel=1e-6)
    # Samples and pixels of weight 0 do not count.
    weights = (np.arange(6) % 2).astype("float32")
    by_sample, by_pixel = MeanIoU(CLASSES), MeanIoU(CLASSES)
    by_sample.update_state(labels, logits, weights)
    by_pixel.update_state(labels, logits, weights[:, np.newaxis, np.newaxis] * pixel_weights(labels))
    half = TASK.predictions(logits[1::2], labels[1::2]).confusion_matrix
    for each in (by_sample, by_pixel):
        np.testing.assert_array_equal(each.confusion_matrix(), half)


def test_counts_beyond_float32_are_exact():
    metric = MeanIoU(2)
    metric.high.assign([2.0**10, 0, 0, 0])
    metric.low.assign([LIMB - 1.0, 0, 0, 0])
    metric.update_state(np.zeros((1, 1, 3)), np.float32([[[[1, 0]] * 3]]))
    assert metric.confusion_matrix()[0, 0] == 2**30 + LIMB + 2
    assert numpy(metric.low)[0] == 2


def test_images_have_their_own_scores_and_words(maps):
    logits, labels = maps
    predictions = TASK.predictions(logits, labels)
    own = [
        mean_iou(TASK.predictions(logits[i : i + 1], labels[i : i + 1]).confusion_matrix) for i in range(6)
    ]
    np.testing.assert_allclose(TASK.errors(predictions), 1 - np.array(own), rtol=1e-12)
    assert TASK.correct(predictions).all() and TASK.scores(predictions)["samples"] == 6
    assert TASK.label.format(np.array([[2, 2, 255], [0, 255, 255]]), "abc") == "c, a"
    assert TASK.label.format(np.full((1, 2), 255), "abc") == "none"
    assert TASK.label.agreement(logits, logits) == 1


def test_logits_are_resized_to_the_labels_a_few_classes_at_a_time(maps, monkeypatch):
    logits, sizes, parts = maps[0], [(14, 18), (5, 4), (7, 9)], []
    resize = windows.resize
    monkeypatch.setattr(windows, "_AT_ONCE", 2 * 14 * 18)
    monkeypatch.setattr(windows, "resize", lambda x, *args: parts.append(x.shape[-1]) or resize(x, *args))
    found = SegmentationPredictions.of(logits[:3], [np.zeros(size, int) for size in sizes])
    expected = [tf.image.resize(each, size).numpy().argmax(-1) for each, size in zip(logits, sizes)]
    of_maps = SegmentationPredictions.of_maps(expected, [np.zeros(size, int) for size in sizes], CLASSES)
    np.testing.assert_array_equal(found.pairs, of_maps.pairs)
    assert parts[:3] == [2, 2, 1]


def test_scores_without_labeled_pixels_are_undefined():
    predictions = SegmentationPredictions.of_maps(np.zeros((1, 2, 2), int), np.full((1, 2, 2), 255), 2)
    expected = {"samples": 1, **dict.fromkeys(("mean_iou", "pixel_accuracy", "mean_accuracy", "boundary_f"))}
    assert segmentation_scores(predictions) == expected
    assert segmentation_classes(predictions)[0]["iou"] is None
    assert predictions.image_iou.tolist() == [1]
    assert TASK.correct(predictions).tolist() == [False]  # It is none of the best.


@pytest.mark.parametrize(
    "labels, said",
    [
        (np.zeros(3, int), r"a class map \(height, width\) per sample; got labels of shape \(\)"),
        (np.full((1, 2, 2), 3), "classes below 3, or 255 to ignore a pixel; got 3"),
        (np.full((1, 2, 2), -1), "classes below 3, or 255 to ignore a pixel; got -1"),
    ],
)
def test_labels_that_are_no_class_maps_are_refused(labels, said):
    with pytest.raises(ValueError, match=said):
        TASK.label.check(labels, 3)


MANY = [(1, 0.0), (2, 0.1), (7, 0.3), (20, 0.9), (3, 1.0)]


@pytest.mark.parametrize(
    "classes, ignored, count",
    [(CLASSES, 0.2, 8), *(pytest.param(*case, 200, marks=pytest.mark.slow) for case in MANY)],
)
def test_scores_equal_independent_ones(classes, ignored, count, rng):
    for _ in range(count):
        size = tuple(rng.integers(1, 24, 2))
        labels = random_maps(rng, 1, size, rng.integers(1, classes + 1), ignored)
        guess = random_maps(rng, 1, size, classes, 0)
        predicted = np.where((rng.random(labels.shape) < 0.7) & (labels != 255), labels, guess)
        predictions = SegmentationPredictions.of_maps(predicted, labels, classes)
        scores, counted = segmentation_scores(predictions), labels != 255
        true, found = labels[counted], predicted[counted]
        present = np.union1d(true, found)
        if len(present):
            each = metrics.jaccard_score(true, found, labels=present, average=None, zero_division=0)
            assert scores["mean_iou"] == pytest.approx(each.mean(), abs=1e-12)
            rows = segmentation_classes(predictions)
            assert [rows[i]["iou"] for i in present] == pytest.approx(each.tolist(), abs=1e-12)
            assert scores["pixel_accuracy"] == pytest.approx(metrics.accuracy_score(true, found))
            options = {"labels": np.unique(true), "average": "macro", "zero_division": 0}
            assert scores["mean_accuracy"] == pytest.approx(metrics.recall_score(true, found, **options))
        expected = boundary_f_of_pairs(predicted[0], labels[0], tolerance=0.1)
        assert boundary_f(predicted[0], labels[0], tolerance=0.1) == pytest.approx(expected)


@by_table("predicted, label", [([[2]], [[0]]), ([[-1]], [[0]]), ([[0]], [[2]]), ([[0]], [[-1]])])
def test_classes_that_do_not_exist_are_refused(predicted, label):
    with pytest.raises(ValueError, match="from 0 to 1; got (2 to 2|-1 to -1)"):
        SegmentationPredictions.of_maps(np.array([predicted]), np.array([label]), 2)


def test_evaluation_scores_what_segment_predicts_of_whole_images(tmp_path):
    crop = keras_vit.Preprocessing(16, "crop", 0.8, "bicubic", antialias=True)
    model = randomize(keras_vit.ImageSegmenter(small(num_classes=None, preprocessing=crop), 3))
    folder = write_masks(tmp_path / "wide", count=3, size=(12, 40))
    samples = load_dataset(folder, seed=None, task="segmentation").split("train")
    images, labels = zip(*samples)
    maps = model.segment(list(images), whole=True)
    expected = SegmentationPredictions.of_maps(maps, [label[..., 0] for label in labels], 3)
    np.testing.assert_array_equal(TASK.predict(model, samples, 2).pairs, expected.pairs)
    assert model.encoder.preprocessing == crop  # A classifier with this encoder crops, as before.
    assert TASK.preprocessing(model).resize == "squash"  # of the batches of training and validation
