import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from made.tables import by_table
from reference.comparing import numpy

from keras_vit.data.mixed_samples import MixedSamples, Part
from keras_vit.data.samples import IndexedRecords
from keras_vit.preprocessing import Preprocessing
from keras_vit.preprocessing.image_files import image_bytes
from keras_vit.tasks import label_tasks
from keras_vit.tasks.keypoints.labels import label_of
from keras_vit.tasks.task import concatenate
from keras_vit.training import RECIPES, Accuracy, SigmoidCrossEntropy, SoftmaxCrossEntropy

LOGITS = np.array([[2.0, 1.0, -1.0], [0.0, 3.0, 1.0], [1.0, 0.5, 0.75]], "float32")
LABELS = np.array([0, 2, 0])
HITS = np.array([1, 0, 1])


def value_of(metric, *batches):
    for y_true, y_pred, weights in batches:
        metric.update_state(y_true, y_pred, sample_weight=weights)
    return float(metric.result())


@pytest.mark.parametrize("labels", [LABELS, LABELS[:, np.newaxis], np.eye(3)[LABELS]], ids=["1", "2", "rows"])
def test_accuracy_counts_the_largest_logits(labels):
    assert float(Accuracy()(labels, LOGITS)) == pytest.approx(HITS.mean())


def test_accuracy_reads_rows_and_as_many_indices_as_classes_in_turn_with_weights():
    weights = np.array([0.5, 2.0, 0.0])
    mixed = 0.4 * np.eye(3)[[1, 1, 2]] + 0.6 * np.eye(3)[LABELS]
    found = value_of(Accuracy(), (mixed, LOGITS, weights), (LABELS, LOGITS, None))
    assert found == pytest.approx(((weights * HITS).sum() + HITS.sum()) / (weights.sum() + 3))


def with_outputs(count):
    return types.SimpleNamespace(output_shape=(None, count), quantity="metric", max_depth=10.0)


def test_classes_have_the_recipes_loss():
    recipe, model = RECIPES["finetune"].with_changes(label_smoothing=0.1), types.SimpleNamespace()
    model.output_shape = (None, 2)
    for loss, kind in (("softmax", SoftmaxCrossEntropy), ("sigmoid", SigmoidCrossEntropy)):
        found = label_tasks()["single_label"].loss(recipe.with_changes(loss=loss), model)
        assert type(found) is kind and found.label_smoothing == 0.1
    assert type(label_tasks()["multi_label"].loss(RECIPES["finetune"], None)) is SigmoidCrossEntropy


class Serialized(list):
    """What an array record is: a sequence that gives several at once."""

    def __getitems__(self, indices):
        return [self[i] for i in indices]


@by_table(
    "task, label, first",
    [
        ("single_label", np.int32(3), lambda labels: labels[0]),
        ("segmentation", np.full((4, 6, 1), 3, "uint8"), lambda labels: labels[0][0, 0]),
        ("depth", np.full((4, 6, 1), 3, "float32"), lambda labels: labels[0][0, 0, 0]),
        ("detection", np.array([[0, 0, 1, 1, 3, 0, 1.0]]), lambda labels: labels[0][0][0, 4]),
        ("keypoints", label_of([[0.5, 0.25, 3]]), lambda labels: labels[0][0, 2, 2]),
    ],
)
def test_an_export_is_compared_on_samples_that_are_read_in_any_order(task, label, first):
    image = image_bytes(np.zeros((4, 6, 3), "uint8"))
    records = IndexedRecords(Serialized([b""] * 5), lambda record: (image, tf.constant(label)), task)
    mixture = MixedSamples((Part("records", records),))
    for samples in (records, mixture):
        images, labels = label_tasks()[task].sampled(samples, Preprocessing(8), 3)
        assert images.shape == (3, 8, 8, 3) and first(labels) == 3


@pytest.mark.parametrize("scale, offset", [(0.003, 0.0), (0.3, 0.0), (1.0, -5.0), (4.0, 10.0)])
@pytest.mark.parametrize("rate", [0.0, 0.02, 0.5])
def test_the_metric_of_multi_label_training_is_the_mean_average_precision(scale, offset, rate, rng):
    """The first class has no samples at a rate of 0, and the last one a perfect order."""
    task, labels = label_tasks()["multi_label"], rng.random((600, 3)) < [rate, 0.1, 0.1]
    logits = scale * (rng.standard_normal(labels.shape) + labels * [1, 1, 20]) + offset
    logits = logits.astype("float32")
    expected = task.scores(task.predictions(logits, labels))["mean_average_precision"]
    (metric,) = task.metrics(with_outputs(3))
    extra = labels[:50], -logits[:50], np.zeros(50)
    batches = (labels[:200], logits[:200], None), extra, (labels[200:], logits[200:], np.ones(400))
    assert value_of(metric, *batches) == pytest.approx(expected, abs=0.006)


def test_without_any_label_the_metric_of_multi_label_training_is_zero():
    (metric,) = label_tasks()["multi_label"].metrics(with_outputs(2))
    assert value_of(metric, (np.zeros((3, 2)), np.ones((3, 2)), None)) == 0


def test_numbers_have_the_weighted_squared_error(rng):
    task = label_tasks()["regression"]
    y, p, weights = rng.standard_normal((4, 3)), rng.standard_normal((4, 3)), np.array([1.0, 0, 2, 0.5])
    errors = ((y - p) ** 2).mean(1)
    loss = task.loss(None, None)
    assert float(loss(y, p)) == pytest.approx(errors.mean(), rel=1e-5)
    assert float(loss(y, p, weights)) == pytest.approx((weights * errors).sum() / 3.5, rel=1e-5)
    for metric in task.metrics(with_outputs(3)):
        expected = (weights * np.abs(y - p).mean(1)).sum() / 3.5
        assert value_of(metric, (y, p, weights)) == pytest.approx(expected, rel=1e-5)


def test_tasks_with_rows_of_classes_say_which_score_orders_them():
    for task in label_tasks().values():
        assert (task.per_class is None) == (task.class_score is None), task.name


@by_table("objective", label_tasks().values(), ids=lambda objective: objective.name)
def test_the_metric_that_selects_a_checkpoint_exists(objective):
    of_validate = {"ap"} if objective.validate else set()
    known = {"loss", *(metric.name for metric in objective.metrics(with_outputs(3)))} | of_validate
    assert objective.validation_metric in known
    of_higher = ("accuracy", "average_precision", "mean_iou", "ap")
    assert objective.higher_is_better == (objective.validation_metric in of_higher)


OUTPUTS = np.array([[2.0, -1.0, 0.5], [-1.0, -3.0, -2.0], [0.5, 1.5, 1.0]], "float32")
# By task: labels, what is decided, the errors, the correct ones, and the first label in words.
EXPECTED = {
    "single_label": ([0, 2, 1], [0, 0, 1], [0.241311, 1.407606, 0.680274], [True, False, True], "a"),
    "multi_label": (
        [[1, 0, 1], [0, 0, 0], [0, 1, 1]],
        [[True, False, True], [False, False, False], [True, True, True]],
        [0.255228, 0.145190, 0.357942],
        [True, True, False],
        "a, c",
    ),
    "regression": (
        [[2.0, -1.0, 0.5], [0, 0, 0], [1, 1, 1]],
        OUTPUTS.tolist(),
        [0.0, 2.0, 1 / 3],
        [True, True, True],
        "a 2, b -1, c 0.5",
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_task_decides_scores_compares_and_describes(name):
    task, (labels, decided, errors, correct, words) = label_tasks()[name], EXPECTED[name]
    labels = np.array(labels)
    assert task.label.decide(OUTPUTS).tolist() == decided
    halves = [task.predictions(OUTPUTS[part], labels[part]) for part in (slice(2), slice(2, None))]
    predictions = concatenate(halves)
    assert task.errors(predictions) == pytest.approx(errors, rel=1e-5)
    assert task.correct(predictions).tolist() == correct
    scores = task.scores(predictions)
    assert task.primary_metric in scores and scores["samples"] == 3
    assert task.label.format(labels[0], "abc") == words
    if task.per_class:
        assert [row["name"] for row in task.per_class(predictions, "abc")] == ["a", "b", "c"]
    nearly = OUTPUTS + np.array([[0, 0, 0], [0, 3.5, 0], [0, 0, 0]], "float32")
    expected = {"single_label": 2 / 3, "multi_label": 8 / 9, "regression": None}[name]
    assert task.label.agreement(OUTPUTS, nearly) == expected


@by_table("name", [name for name, task in label_tasks().items() if task.label.has_classes])
def test_probabilities_are_the_activation_of_the_logits(name):
    task = label_tasks()[name]
    expected = numpy(getattr(keras.ops, task.label.activation)(OUTPUTS))
    np.testing.assert_allclose(task.label.probabilities(OUTPUTS), expected, rtol=1e-6)
    assert np.isfinite(task.label.probabilities(1e4 * OUTPUTS.astype("float64"))).all()


@by_table(
    "name, good, bad, expected",
    [
        ("single_label", {"cat": "cat"}, [""], "the name of a class"),
        ("multi_label", {"1": 1, "0.0": 0}, ["2", "yes"], "0 or 1"),
        ("regression", {"-1e3": -1000}, ["x", "nan", "inf"], "a number that float32 can hold"),
        ("segmentation", {}, ["1"], "a mask, which a table cannot hold"),
    ],
)
def test_labels_are_read_from_text(name, good, bad, expected):
    for text, label in good.items():
        assert label_tasks()[name].label.parse(text) == label
    for text in bad:
        with pytest.raises(ValueError, match=f"expected {expected}; got {text!r}"):
            label_tasks()[name].label.parse(text)
