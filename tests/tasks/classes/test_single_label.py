import numpy as np
import pytest

from keras_vit.evaluation import Predictions, confusion_matrix, per_class

PREDICTED = Predictions(np.array([[0], [1], [1], [1]]), np.array([0, 0, 0, 1]), np.zeros(4), 3)


def test_each_class_has_its_counts_and_fractions():
    none = {"samples": 0, "right": 0, "accuracy": None, "predicted": 0, "precision": None}
    assert per_class(PREDICTED, ["a", "b", "c"]) == [
        {"name": "a", "samples": 3, "right": 1, "accuracy": 1 / 3, "predicted": 1, "precision": 1.0},
        {"name": "b", "samples": 1, "right": 1, "accuracy": 1.0, "predicted": 3, "precision": 1 / 3},
        {"name": "c", **none},
    ]
    assert per_class(PREDICTED)[2]["name"] == "2"
    with pytest.raises(ValueError, match="expected 3 class names; got 2"):
        per_class(PREDICTED, ["a", "b"])


def test_rows_of_the_confusion_matrix_are_true_classes():
    assert confusion_matrix(PREDICTED).tolist() == [[1, 2, 0], [0, 1, 0], [0, 0, 0]]
    with pytest.raises(ValueError, match="at most 4096 classes; the model has 21843"):
        confusion_matrix(Predictions(PREDICTED.best, PREDICTED.labels, PREDICTED.log_probabilities, 21843))


@pytest.mark.parametrize("num_classes", [3, 9])
def test_the_five_highest_logits_and_the_labels_probability_are_stored(num_classes, rng):
    logits = 3 * rng.standard_normal((6, num_classes)).astype("float32")
    labels = np.array([0, 2, 1, 0, 1, 2], "int32")
    found = Predictions.of(logits, labels)
    np.testing.assert_array_equal(found.best, np.argsort(-logits, 1)[:, :5])
    probabilities = np.exp(logits.astype("float64"))
    probabilities /= probabilities.sum(1, keepdims=True)
    np.testing.assert_allclose(np.exp(found.log_probabilities), probabilities[np.arange(6), labels])
    assert (found.labels.tolist(), found.num_classes) == (labels.tolist(), num_classes)
