import keras
import numpy as np
import pytest

from keras_vit.training import RECIPES, Accuracy, SigmoidCrossEntropy, SoftmaxCrossEntropy
from keras_vit.training.tasks import TASKS

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


def test_accuracy_takes_both_kinds_of_labels_one_after_the_other_with_weights():
    weights = np.array([0.5, 2.0, 0.0])
    mixed = 0.4 * np.eye(3)[[1, 1, 2]] + 0.6 * np.eye(3)[LABELS]
    found = value_of(Accuracy(), (mixed, LOGITS, weights), (LABELS, LOGITS, None))
    assert found == pytest.approx(((weights * HITS).sum() + HITS.sum()) / (weights.sum() + 3))


def test_accuracy_of_as_many_images_as_classes_is_that_of_numbers():
    square = np.array([[1.0, 0], [0, 1.0]])
    assert float(Accuracy()(np.array([1, 1]), square)) == 0.5


def test_accuracy_comes_back_from_its_config():
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(Accuracy("top")))
    assert type(again) is Accuracy and again.name == "top"


@pytest.mark.parametrize("loss, kind", [("softmax", SoftmaxCrossEntropy), ("sigmoid", SigmoidCrossEntropy)])
def test_single_labels_have_the_recipes_loss(loss, kind):
    made = TASKS["single_label"].loss(RECIPES["finetune"].with_changes(loss=loss, label_smoothing=0.1))
    assert type(made) is kind and made.label_smoothing == 0.1
    assert [metric.name for metric in TASKS["single_label"].metrics(3)] == ["accuracy"]


def test_several_labels_have_the_sigmoid_and_the_mean_precision():
    made = TASKS["multi_label"].loss(RECIPES["finetune"].with_changes(task="multi_label"))
    assert type(made) is SigmoidCrossEntropy
    (metric,) = TASKS["multi_label"].metrics(2)
    rng = np.random.default_rng(0)
    labels, logits = rng.integers(0, 2, (400, 2)), rng.standard_normal((400, 2)).astype("float32")
    logits += labels
    found = value_of(metric, (labels, logits, None))
    precisions = []
    for k in range(2):
        right = labels[np.argsort(-logits[:, k]), k]
        precisions.append(((np.cumsum(right) / np.arange(1, 401)) * right).sum() / right.sum())
    assert found == pytest.approx(np.mean(precisions), abs=0.02)
    assert found != pytest.approx(precisions[0], abs=1e-4)


@pytest.mark.parametrize("task", ["regression", "pixels"])
def test_numbers_have_the_squared_error_with_weights(task, rng):
    y, p, weights = rng.standard_normal((4, 3)), rng.standard_normal((4, 3)), np.array([1.0, 0, 2, 0.5])
    errors = ((y - p) ** 2).mean(1)
    loss = TASKS[task].loss(None)
    assert float(loss(y, p)) == pytest.approx(errors.mean(), rel=1e-5)
    assert float(loss(y, p, weights)) == pytest.approx((weights * errors).sum() / 3.5, rel=1e-5)
    for metric in TASKS[task].metrics(3):
        expected = (weights * np.abs(y - p).mean(1)).sum() / 3.5
        assert value_of(metric, (y, p, weights)) == pytest.approx(expected, rel=1e-5)


def test_colors_are_classes_of_each_patch_with_weights(rng):
    y, logits = rng.integers(0, 8, (2, 3)), rng.standard_normal((2, 3, 8))
    weights = np.array([[1.0, 0, 0], [1, 1, 0]])
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    each = -np.take_along_axis(logs, y[..., np.newaxis], -1)[..., 0]
    loss = TASKS["colors"].loss(None)(y, logits, weights)
    assert float(loss) == pytest.approx((weights * each).sum() / 3, rel=1e-5)


@pytest.mark.parametrize("name", TASKS)
def test_the_metric_that_says_what_is_best_is_one_that_there_is(name):
    task = TASKS[name]
    assert task.best in {"loss", *(metric.name for metric in task.metrics(3))}
    assert task.largest == (task.best in ("accuracy", "average_precision"))
