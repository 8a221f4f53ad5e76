import numpy as np
import pytest
from made.folders import write_classes
from made.unread import Unread
from reference.comparing import numpy
from reference.small import small

from keras_vit.data.datasets import Samples, load_dataset
from keras_vit.evaluation import evaluate, multi_label_scores, regression_scores

pytestmark = pytest.mark.usefixtures("eager")


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    root = write_classes(tmp_path_factory.mktemp("data") / "images", ("a", "b", "c"), count=15)
    return load_dataset(f"folder:{root}").split("train")


class Fixed:
    """A model that returns the given logits, batch after batch."""

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


@pytest.mark.parametrize("unread", [Unread, lambda samples: samples])
def test_scores_equal_their_definitions_and_no_sample_is_dropped(unread, samples, rng):
    logits = 3 * rng.standard_normal((len(samples), 8))
    found = evaluate(Fixed(logits), unread(samples), 7)
    assert found == pytest.approx(by_definition(logits.astype("float32"), np.array(samples.labels)))
    assert 0 < found["accuracy"] < found["top5_accuracy"] < 1


def test_the_logits_are_the_models_for_the_samples(samples):
    model = small(num_layers=1, num_classes=7)
    logits = numpy(model(model.preprocessing(list(samples.images))))
    expected = by_definition(logits, np.array(samples.labels))
    assert evaluate(model, samples, 8) == pytest.approx(expected, rel=1e-4)


def test_of_equal_logits_the_first_is_predicted_as_by_argmax(samples):
    found = evaluate(Fixed(np.full((len(samples), 5), 1e5)), samples)
    assert found["accuracy"] == samples.labels.count(0) / len(samples)
    assert found["top5_accuracy"] is None  # There are only five classes.
    assert found["loss"] == pytest.approx(np.log(5))


def rows(samples, width):
    return Samples(samples.images, ((1.0,) * width,) * len(samples))


def hidden(samples):
    return Samples(samples.images, (-1,) * len(samples))


@pytest.mark.parametrize(
    "classes, change, task, words",
    [
        (2, lambda samples: samples, "single_label", "labels up to 2, but the model has 2 classes"),
        (2, Unread, "single_label", "labels up to 2, but the model has 2 classes"),
        (3, hidden, "single_label", "label -1: this split's labels are unknown"),
        (3, lambda samples: Samples((), ()), "single_label", "expected at least one sample"),
        (3, lambda samples: samples, "multi_label", r"labels of shape \(\) .* of the task 'single_label'"),
        (2, lambda samples: rows(samples, 3), "regression", r"labels of 2 numbers, .* of shape \(3,\)"),
        (3, lambda samples: rows(samples, 3), "single_label", "expected a class index per sample"),
    ],
)
def test_labels_that_do_not_fit_the_model_or_task_are_refused(classes, change, task, words, samples):
    with pytest.raises(ValueError, match=words):
        evaluate(Fixed(np.zeros((len(samples), classes))), change(samples), task=task)


def test_a_model_without_a_head_is_refused(samples):
    model = Fixed(np.zeros((1, 2)))
    model.is_classifier = False
    with pytest.raises(ValueError, match="this model has no classification head"):
        evaluate(model, samples)


@pytest.mark.parametrize(
    "task, scores", [("multi_label", multi_label_scores), ("regression", regression_scores)]
)
def test_other_tasks_have_their_own_scores(task, scores, samples, rng):
    rows = np.round(rng.uniform(size=(len(samples), 4))).astype("float32")
    logits = rng.standard_normal((len(samples), 4)).astype("float32")
    found = evaluate(Fixed(logits), Samples(samples.images, tuple(map(tuple, rows.tolist()))), 8, task)
    assert found == pytest.approx(scores(logits, rows))
    assert found["samples"] == len(samples)
