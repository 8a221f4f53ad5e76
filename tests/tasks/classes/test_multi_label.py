import numpy as np
import pytest

from keras_vit.evaluation import multi_label_classes, multi_label_scores


def average_precision(score, label):
    """By its definition: the mean precision at the rank of each true sample."""
    label = label[np.argsort(-score)]
    return np.mean([label[: i + 1].mean() for i in np.flatnonzero(label)])


@pytest.fixture
def outputs(rng):
    """Logits and labels, of which no sample has class 4."""
    logits, labels = 3 * rng.standard_normal((40, 6)), rng.integers(0, 2, (40, 6))
    labels[:, 4] = 0
    return logits, labels


def test_scores_equal_their_definitions(outputs):
    logits, labels = outputs
    predicted = logits > 0
    probability = 1 / (1 + np.exp(-logits))
    loss = -(labels * np.log(probability) + (1 - labels) * np.log(1 - probability))
    right, count = (labels * predicted).sum(0), labels.sum(0) + predicted.sum(0)
    known = [0, 1, 2, 3, 5]
    assert multi_label_scores(logits, labels) == pytest.approx(
        {
            "samples": 40,
            "mean_average_precision": np.mean([average_precision(logits[:, i], labels[:, i]) for i in known]),
            "micro_f1": 2 * right.sum() / count.sum(),
            "macro_f1": np.mean(2 * right / count),
            "loss": loss.sum(1).mean(),
        }
    )


def test_each_class_has_its_counts_and_fractions(outputs):
    logits, labels = outputs
    rows = multi_label_classes(logits, labels, "abcdef")
    for i, row in enumerate(rows):
        predicted, true = logits[:, i] > 0, labels[:, i] == 1
        counts = true.sum(), predicted.sum(), (predicted & true).sum()
        assert (row["name"], row["samples"], row["predicted"], row["right"]) == ("abcdef"[i], *counts)
        assert row["precision"] == np.mean(true[predicted])
        assert row["recall"] == (np.mean(predicted[true]) if i != 4 else None)
    assert rows[4]["average_precision"] is None


def test_a_class_without_samples_that_is_not_predicted_counts_as_0():
    found = multi_label_scores([[1.0, -1.0]], [[1, 0]])
    assert (found["micro_f1"], found["macro_f1"]) == (1.0, 0.5)


def test_without_any_positive_there_is_no_average_precision_and_large_logits_stay_finite():
    found = multi_label_scores([[1e4, 0.0]], [[0, 0]])
    assert found["mean_average_precision"] is None
    assert found["loss"] == pytest.approx(1e4 + np.log(2))
    assert multi_label_classes([[0.0]], [[1]])[0]["predicted"] == 0


@pytest.mark.parametrize(
    "logits, labels, words",
    [
        ([[1.0]], [[1, 0]], r"got \(1, 1\) and \(1, 2\)"),
        (np.zeros((0, 2)), np.zeros((0, 2)), "at least one sample"),
        ([[1.0]], [[0.5]], "labels of 0 and 1; got 0.5"),
    ],
)
def test_bad_input_is_refused(logits, labels, words):
    with pytest.raises(ValueError, match=words):
        multi_label_classes(logits, labels)
