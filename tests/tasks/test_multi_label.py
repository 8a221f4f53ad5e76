import numpy as np
import pytest
from sklearn.metrics import f1_score

from keras_vit.evaluation import multi_label_classes, multi_label_scores


def average_precision(score, label):
    """By its definition: the precision at each true sample's place, best first."""
    label = label[np.argsort(-score)]
    return np.mean([label[: i + 1].mean() for i in np.flatnonzero(label)])


@pytest.fixture
def made(rng):
    logits, labels = 3 * rng.standard_normal((40, 6)), rng.integers(0, 2, (40, 6))
    labels[:, 4] = 0  # no sample has it
    return logits, labels


def test_the_numbers_are_their_definitions(made):
    logits, labels = made
    found = multi_label_scores(logits, labels)
    probability = 1 / (1 + np.exp(-logits))
    loss = -(labels * np.log(probability) + (1 - labels) * np.log(1 - probability))
    known = [0, 1, 2, 3, 5]
    assert found == pytest.approx(
        {
            "samples": 40,
            "mean_average_precision": np.mean([average_precision(logits[:, i], labels[:, i]) for i in known]),
            "micro_f1": f1_score(labels, probability > 0.5, average="micro"),
            "macro_f1": f1_score(labels, probability > 0.5, average="macro", zero_division=0),
            "loss": loss.sum(1).mean(),
        }
    )


def test_each_class_has_its_row(made):
    logits, labels = made
    rows = multi_label_classes(logits, labels, "abcdef")
    assert [row["name"] for row in rows] == list("abcdef")
    for i, row in enumerate(rows):
        said, true = logits[:, i] > 0, labels[:, i] == 1
        assert (row["samples"], row["predicted"], row["right"]) == (
            true.sum(),
            said.sum(),
            (said & true).sum(),
        )
        assert row["precision"] == np.mean(true[said])
        assert row["recall"] == (np.mean(said[true]) if i != 4 else None)
    assert rows[4]["average_precision"] is None


def test_a_class_that_neither_occurs_nor_is_said_counts_as_0():
    found = multi_label_scores([[1.0, -1.0]], [[1, 0]])
    assert (found["micro_f1"], found["macro_f1"]) == (1.0, 0.5)


def test_without_any_positive_there_is_no_average_precision():
    assert multi_label_scores([[-1.0, 1.0]], [[0, 0]])["mean_average_precision"] is None


def test_an_undecided_logit_is_no_yes_and_large_ones_stay_finite():
    assert multi_label_classes([[0.0]], [[1]])[0]["predicted"] == 0
    assert multi_label_scores([[1e4, -1e4]], [[0, 1]])["loss"] == pytest.approx(2e4)


@pytest.mark.parametrize(
    "logits, labels, names, words",
    [
        ([[1.0]], [[1, 0]], None, r"got \(1, 1\) and \(1, 2\)"),
        (np.zeros((0, 2)), np.zeros((0, 2)), None, "at least one sample"),
        ([[1.0]], [[0.5]], None, "labels of 0 and 1; got 0.5"),
        ([[1.0]], [[1]], ["a", "b"], "expected 1 class names; got 2"),
    ],
)
def test_bad_input_is_refused(logits, labels, names, words):
    with pytest.raises(ValueError, match=words):
        multi_label_classes(logits, labels, names)
