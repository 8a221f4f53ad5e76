import dataclasses

import numpy as np
import pytest
from made.scenes import few_scenes
from reference.comparing import numpy, randomize
from reference.small import small

import keras_vit
from keras_vit import evaluation
from keras_vit.labels.box_rows import encode_boxes
from keras_vit.tasks import get_task, task_of_model
from keras_vit.tasks.detection.detecting import Detections
from keras_vit.training.named_recipes import RECIPES

TASK = get_task("detection")


@pytest.fixture(scope="module")
def scenes():
    return few_scenes().split("test")


@pytest.fixture(scope="module")
def detector():
    encoder = small(num_classes=None, image_size=32, pooling="gap")
    return randomize(keras_vit.ObjectDetector(encoder, 10))


class Perfect:
    """A detector that finds the objects of a split, in order."""

    task, num_classes, class_names, is_classifier = "detection", 10, None, False
    preprocessing = keras_vit.Preprocessing(32)

    def __init__(self, samples):
        self.labels = [rows for _, rows in samples]

    def predict_on_batch(self, images):
        outputs = np.full((len(images), 8, 14), -30.0)
        for out in outputs:
            rows = self.labels.pop(0)
            sides = rows[:, :4].astype("float64")
            out[: len(rows), :2] = (sides[:, :2] + sides[:, 2:]) / 2
            out[: len(rows), 2:4] = sides[:, 2:] - sides[:, :2]
            out[np.arange(len(rows)), 4 + rows[:, 4].astype(int)] = 30
        return outputs.astype("float32")


def test_a_detector_that_finds_all_has_the_highest_scores(scenes):
    scores = evaluation.evaluate(Perfect(scenes), scenes, task="detection")
    assert scores["ap"] == pytest.approx(1) and scores["f1"] == 1 and scores["samples"] == 12
    predictions = evaluation.predict(Perfect(scenes), scenes, 5, "detection")
    assert TASK.errors(predictions).tolist() == [0] * 12 and TASK.correct(predictions).all()
    matrix = TASK.confusion(predictions)
    assert matrix.trace() == matrix.sum() == sum(len(rows) for _, rows in scenes)
    assert TASK.confusion_names(["a"]) == ["a", "background"]
    assert [row["ap"] for row in TASK.per_class(predictions, None) if row["objects"]] == pytest.approx(
        [1] * len({*matrix.nonzero()[0]})
    )


def test_a_validation_without_objects_has_no_scores(detector, scenes):
    empty = dataclasses.replace(scenes, labels=(encode_boxes([]),) * len(scenes))
    dataset = dataclasses.replace(few_scenes(), splits={"validation": empty})
    assert TASK.validate(detector, dataset, RECIPES["digits_detect"]) == {}


def test_rows_have_names_scores_and_boxes_in_pixels(detector, rng):
    named = keras_vit.ObjectDetector(detector.encoder, 10, class_names=[f"digit {i}" for i in range(10)])
    named.set_weights(detector.get_weights())
    named.get_layer("head").bias.assign(np.linspace(-3, 3, 10))
    images = [rng.integers(0, 256, (40, 60, 3), "uint8")]
    [row] = TASK.rows(named, ["a.png"], images, top=3)
    assert [[*found] for found in row["objects"]] == [["name", "score", "left", "top", "right", "bottom"]] * 3
    assert all(found["name"].startswith("digit ") and 0.3 <= found["score"] <= 1 for found in row["objects"])
    assert all(0 <= found["left"] <= found["right"] <= 60 for found in row["objects"])
    named.get_layer("head").bias.assign(np.full(10, -30))
    assert [*TASK.rows(named, ["a.png"], images, top=3)] == [{"width": 60, "height": 40, "objects": []}]


class Finder:
    """A detector that finds two boxes of one object and one of another."""

    class_names, num_classes = ("cat", "dog"), 2

    def detect(self, images, threshold, top):
        boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 9], [5, 0, 15, 10]], "float32")
        found = Detections(boxes, np.array([0.9, 0.8, 0.7]), np.array([0, 1, 0]))
        return [Detections(*(values[:top] for values in found)) for _ in images]


def test_a_picture_has_one_box_of_an_object_and_a_row_has_all_unless_asked():
    counts, image = {}, np.zeros((20, 20, 3), "uint8")
    for iou in (None, 0.3, 0.7, 1):
        drawn = []
        [row] = TASK.rows(Finder(), ["a"], [image], 9, iou=iou, write=lambda *args, at=drawn: at.append(args))
        counts[iou] = len(row["objects"]), len(drawn[0][2].boxes)
    assert counts == {None: (3, 2), 0.3: (1, 1), 0.7: (2, 2), 1: (3, 3)}


def test_of_objects_that_overlap_others_rows_are_left_out_before_the_best_are_counted():
    for top, scores in ((1, [0.9]), (2, [0.9, 0.7])):
        [row] = TASK.rows(Finder(), ["a"], [np.zeros((20, 20, 3), "uint8")], top, iou=0.7)
        assert [found["score"] for found in row["objects"]] == scores


def test_an_export_is_compared_by_its_objects_and_its_precision(detector, scenes, rng):
    from keras_vit.export.description import describe

    description = describe(detector)
    images, labels = TASK.sampled(scenes, description.preprocessing, 5)
    assert images.shape == (5, 32, 32, 3) and all(size == (32, 32) for _, size in labels)
    TASK.check_samples(labels, description)
    perfect = Perfect(scenes.take([0, 2, 5, 8, 11])).predict_on_batch(images)
    agreement, predictions = TASK.compared(perfect, perfect, labels, description)
    assert agreement == 1 and TASK.scores(predictions)["ap"] == pytest.approx(1)
    changed = perfect.copy()
    changed[0, :, 4:] = -30
    agreement, predictions = TASK.compared(perfect, changed, labels, description)
    found = sum(len(rows) for rows, _ in labels)
    missing = len(labels[0][0])
    assert agreement == pytest.approx(2 * (found - missing) / (2 * found - missing))
    assert TASK.compared(perfect, changed, None, description)[1] is None


def test_other_models_and_labels_are_refused(detector, scenes):
    with pytest.raises(ValueError, match="^expected a model whose outputs are boxes and classes"):
        TASK.check_model(small())
    fewer = keras_vit.ObjectDetector(detector.encoder, 2)
    with pytest.raises(ValueError, match="expected boxes of classes below 2; got class "):
        evaluation.evaluate(fewer, scenes, task="detection")
    assert task_of_model(detector) is TASK
    with pytest.raises(ValueError, match="^expected the task 'detection' for an ObjectDetector; got 'regr"):
        task_of_model(detector, "regression")


def test_detections_of_model_inputs_are_in_their_pixels(detector, rng):
    images = rng.standard_normal((2, 32, 32, 3)).astype("float32")
    found = TASK.detections(detector, images, 0.0)
    outputs = numpy(detector(images))
    for one, rows in zip(found, outputs):
        assert isinstance(one, Detections)
        patch = np.unravel_index(rows[:, 4:].argmax(), rows[:, 4:].shape)[0]
        x, y, w, h = 32 * rows[patch, :4]
        sides = np.clip([x - w / 2, y - h / 2, x + w / 2, y + h / 2], 0, 32)
        np.testing.assert_allclose(one.boxes[0], sides, atol=1e-3)


def test_images_of_other_sizes_are_evaluated_in_their_own_pixels(scenes):
    """Small and large objects are told apart by the pixels of the image, not of the model's input."""
    half = dataclasses.replace(Perfect.preprocessing, image_size=(16, 16))
    model = Perfect(scenes)
    model.preprocessing = half
    scores = evaluation.evaluate(model, scenes, task="detection")
    assert scores["ap_small"] == pytest.approx(1) and scores["ap_medium"] is None
