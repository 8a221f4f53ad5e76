import numpy as np
import pytest
from made.folders import write_classes
from reference.comparing import numpy
from reference.small import small

from keras_vit.data.datasets import Samples, load_dataset
from keras_vit.evaluation import (
    Predictions,
    confusion_matrix,
    evaluate,
    multi_label_scores,
    per_class,
    predict,
    regression_scores,
)


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    root = write_classes(tmp_path_factory.mktemp("data") / "images", ("a", "b", "c"), count=15)
    return load_dataset(f"folder:{root}").split("train")


class Fixed:
    """Puts out the given logits, batch after batch."""

    def __init__(self, logits):
        self.logits = np.asarray(logits, "float32")
        self.num_classes = self.logits.shape[1]
        self.is_classifier = True
        self.preprocessing = small(num_layers=1).preprocessing
        self.done = 0

    def predict_on_batch(self, images):
        self.done += len(images)
        return self.logits[self.done - len(images) : self.done]


def by_definition(logits, labels):
    logits = np.asarray(logits, "float64")
    best = [np.argsort(-row, kind="stable")[:5] for row in logits]
    scores = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return {
        "samples": len(labels),
        "accuracy": np.mean(logits.argmax(1) == labels),
        "top5_accuracy": np.mean([label in five for label, five in zip(labels, best)]),
        "loss": -np.log(scores[np.arange(len(labels)), labels]).mean(),
    }


@pytest.mark.parametrize("batch_size", [1, 7, 30, 64])
def test_the_numbers_are_their_definitions_and_no_sample_is_dropped(batch_size, samples, rng):
    logits = 3 * rng.standard_normal((len(samples), 8))
    found = evaluate(Fixed(logits), samples, batch_size)
    assert found == pytest.approx(by_definition(logits.astype("float32"), np.array(samples.labels)))
    assert 0 < found["accuracy"] < found["top5_accuracy"] < 1


def test_the_logits_are_the_models_for_the_samples(samples):
    model = small(num_classes=7)
    logits = numpy(model(model.preprocessing(list(samples.images))))
    expected = by_definition(logits, np.array(samples.labels))
    assert evaluate(model, samples, 8) == pytest.approx(expected, rel=1e-4)


def test_of_equal_logits_the_first_counts_as_in_argmax(samples):
    assert {*samples.labels} == {0, 1, 2}
    found = evaluate(Fixed(np.zeros((len(samples), 7))), samples)
    assert found["accuracy"] == samples.labels.count(0) / len(samples)
    assert found["top5_accuracy"] == 1.0
    assert found["loss"] == pytest.approx(np.log(7))


def test_the_sixth_best_is_not_among_the_best_five(samples):
    assert evaluate(Fixed(np.tile(np.arange(7.0), (len(samples), 1))), samples)["top5_accuracy"] == (
        samples.labels.count(2) / len(samples)
    )


def test_of_five_classes_or_fewer_there_is_no_top_5(samples):
    assert evaluate(Fixed(np.zeros((len(samples), 5))), samples)["top5_accuracy"] is None


def test_large_logits_stay_finite(samples):
    assert evaluate(Fixed(np.full((len(samples), 3), 1e5)), samples)["loss"] == pytest.approx(np.log(3))


def test_labels_beyond_the_models_classes_are_refused(samples):
    with pytest.raises(ValueError, match="labels up to 2, but the model has 2 classes"):
        evaluate(Fixed(np.zeros((1, 2))), samples)


def test_a_model_without_a_head_is_refused(samples):
    model = Fixed(np.zeros((1, 2)))
    model.is_classifier = False
    with pytest.raises(ValueError, match="this model has no classification head"):
        evaluate(model, samples)


def test_no_samples_are_refused():
    with pytest.raises(ValueError, match="there are no samples"):
        evaluate(Fixed(np.zeros((1, 3))), Samples((), ()))


class Unread:
    """Samples whose labels are not known before they are read."""

    labels = None
    exif = False

    def __init__(self, samples):
        self.evaluation_records = samples.evaluation_records
        self.count = len(samples)

    def __len__(self):
        return self.count


def test_labels_may_be_unknown_until_they_are_read(samples, rng):
    logits = rng.standard_normal((len(samples), 8))
    assert evaluate(Fixed(logits), Unread(samples), 7) == evaluate(Fixed(logits), samples, 7)
    with pytest.raises(ValueError, match="labels up to 2, but the model has 2 classes"):
        evaluate(Fixed(np.zeros((len(samples), 2))), Unread(samples))


@pytest.mark.parametrize("known", [True, False])
def test_a_split_without_labels_is_refused(known, samples):
    hidden = Samples(samples.images, (-1,) * len(samples))
    with pytest.raises(ValueError, match="label -1: this split's labels are unknown"):
        evaluate(Fixed(np.zeros((len(samples), 3))), hidden if known else Unread(hidden))


@pytest.mark.parametrize("num_classes", [3, 5, 9])
def test_a_few_numbers_a_sample_are_kept(num_classes, samples, rng):
    logits = rng.standard_normal((len(samples), num_classes)).astype("float32")
    found = predict(Fixed(logits), samples, 8)
    np.testing.assert_array_equal(found.best, np.argsort(-logits, 1)[:, :5])
    assert found.labels.tolist() == list(samples.labels)
    assert found.log_probabilities.shape == (len(samples),)


SAID = Predictions(np.array([[0], [1], [1], [1]]), np.array([0, 0, 0, 1]), np.zeros(4), 3)


def test_each_class_has_its_row():
    none = {"samples": 0, "right": 0, "accuracy": None, "predicted": 0, "precision": None}
    assert per_class(SAID, ["a", "b", "c"]) == [
        {"name": "a", "samples": 3, "right": 1, "accuracy": 1 / 3, "predicted": 1, "precision": 1.0},
        {"name": "b", "samples": 1, "right": 1, "accuracy": 1.0, "predicted": 3, "precision": 1 / 3},
        {"name": "c", **none},
    ]
    assert per_class(SAID)[2]["name"] == "2"
    with pytest.raises(ValueError, match="expected 3 class names; got 2"):
        per_class(SAID, ["a", "b"])


def test_the_confusion_matrix_has_the_truth_in_rows():
    assert confusion_matrix(SAID).tolist() == [[1, 2, 0], [0, 1, 0], [0, 0, 0]]
    with pytest.raises(ValueError, match="at most 4096 classes; the model has 21843"):
        confusion_matrix(Predictions(SAID.best, SAID.labels, SAID.log_probabilities, 21843))


@pytest.mark.parametrize(
    "task, scores", [("multi_label", multi_label_scores), ("regression", regression_scores)]
)
def test_other_tasks_have_their_own_numbers(task, scores, samples, rng):
    rows = np.round(rng.uniform(size=(len(samples), 4))).astype("float32")
    logits = rng.standard_normal((len(samples), 4)).astype("float32")
    found = evaluate(Fixed(logits), Samples(samples.images, tuple(map(tuple, rows.tolist()))), 8, task)
    assert found == pytest.approx(scores(logits, rows))
    assert found["samples"] == len(samples)


def test_labels_of_another_task_are_refused(samples):
    rows = Samples(samples.images, ((1.0, 0.0, 0.0),) * len(samples))
    for model_outputs, those, task, words in (
        (3, samples, "multi_label", r"got labels of shape \(\) .* of the task 'single_label'"),
        (2, rows, "regression", r"labels of 2 numbers, .* got labels of shape \(3,\)"),
        (3, rows, "single_label", "expected a class index per sample"),
        (3, samples, "detection", "task must be one of 'single_label', .* got 'detection'"),
    ):
        with pytest.raises(ValueError, match=words):
            evaluate(Fixed(np.zeros((len(samples), model_outputs))), those, task=task)
