"""Weighted votes of nearest neighbors, against scikit-learn."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made.tables import by_table
from reference.small import small
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

from keras_vit.data import load_dataset
from keras_vit.evaluation import knn, knn_accuracy, nearest, neighbor_difference, representations


def scikit_learn(features, labels, tests, test_labels, k, temperature):
    """With cosine distance d = 1 - s, exp(s / T) is exp(-d / T) up to a factor."""
    weights = lambda distances: np.exp(-distances / temperature)  # noqa: E731
    model = KNeighborsClassifier(k, weights=weights, metric="cosine", algorithm="brute")
    return (model.fit(features, labels).predict(tests) == test_labels).mean()


@given(st.integers(0, 2**20), st.integers(1, 30), st.floats(0.05, 5.0))
def test_the_votes_are_scikit_learns(seed, k, temperature):
    rng = np.random.default_rng(seed)
    labels, test_labels = rng.integers(0, 4, 30), rng.integers(0, 5, 20)
    centers = rng.normal(size=(5, 6))
    features, tests = (centers[each] + rng.normal(size=(len(each), 6)) for each in (labels, test_labels))
    expected = scikit_learn(features, labels, tests, test_labels, k, temperature)
    assert knn_accuracy(features, labels, tests, test_labels, k, temperature) == pytest.approx(expected)


def test_votes_at_a_low_temperature_neither_overflow_nor_underflow():
    """Of the second row all weights are 0 where they are divided by the largest one of all rows."""
    features, labels = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]), [0, 1, 2]
    tests = [[0.0, 1.0], [-1.0, 1.1], [-1.1, 1.0]]
    assert knn_accuracy(features, labels, tests, [1, 1, 2], k=3, temperature=1e-4) == 1.0


def test_the_scale_of_features_has_no_effect_and_parts_are_put_together(rng, monkeypatch):
    features, labels = rng.normal(size=(50, 8)), rng.integers(0, 3, 50)
    tests, test_labels = rng.normal(size=(20, 8)), rng.integers(0, 3, 20)
    expected = knn_accuracy(features, labels, tests, test_labels)
    factors = rng.uniform(0.1, 9.0, (50, 1))
    monkeypatch.setattr(nearest, "_AT_ONCE", 150)  # three rows
    assert knn_accuracy(features * factors, labels, tests * 7, test_labels) == expected


@given(st.integers(0, 2**20), st.integers(2, 20), st.integers(1, 30))
def test_neighbors_that_differ_are_those_of_scikit_learn(seed, samples, k):
    rng = np.random.default_rng(seed)
    both = rng.normal(size=(samples, 4)), rng.normal(size=(samples, 7))
    k_of = min(k, samples - 1)
    near = []
    for features in both:
        of = NearestNeighbors(n_neighbors=k_of, metric="cosine", algorithm="brute").fit(features)
        near.append([{*row} for row in of.kneighbors(return_distance=False)])
    expected = [1 - len(one & other) / k_of for one, other in zip(*near)]
    with mock.patch.object(nearest, "_AT_ONCE", 3 * samples):  # three rows
        np.testing.assert_allclose(neighbor_difference(*both, k), expected)


def test_representations_of_one_sample_or_of_others_have_no_neighbors_to_compare():
    for shapes in (((1, 3), (1, 3)), ((4, 3), (5, 3))):
        with pytest.raises(ValueError, match=f"expected two or more samples in both .*; got {shapes[0][0]}"):
            neighbor_difference(*map(np.ones, shapes))
    with pytest.raises(ValueError, match="expected finite features; got NaN or infinity"):
        neighbor_difference(np.ones((4, 3)), np.full((4, 3), np.nan))


@pytest.mark.slow
def test_a_model_is_scored_by_its_representations():
    digits = load_dataset("digits")
    train, test = digits.split("train").take(range(15)), digits.split("test").take(range(40))
    model = small(num_classes=None)
    arrays = *representations(model, train), *representations(model, test)
    assert knn(model, train, test) == knn_accuracy(*arrays, k=15)
    assert knn(model, train, test, k=1) == knn_accuracy(*arrays, k=1)


@by_table(
    "changes, message",
    [
        ({"k": 0}, "k must be a positive int; got 0"),
        ({"k": 5}, "a k of at most 4, the samples that vote; got 5"),
        ({"temperature": 0.0}, "temperature"),
        ({"labels": [0, 1, 2]}, r"expected features and labels of the shapes .*; got \(4, 2\), \(3,\)"),
        ({"test_features": np.zeros((0, 2)), "test_labels": []}, r"got \(4, 2\), \(4,\), \(0, 2\), \(0,\)"),
        ({"test_features": np.zeros((1, 3))}, r"got \(4, 2\), \(4,\), \(1, 3\), \(1,\)"),
        ({"labels": [0, 1, -1, 0]}, "expected labels of 0 or more; got -1"),
        ({"test_labels": [-1]}, "expected labels of 0 or more; got -1"),
        ({"features": np.full((4, 2), np.nan)}, "expected finite features; got NaN or infinity"),
        ({"test_features": [[np.inf, 0]]}, "expected finite features; got NaN or infinity"),
    ],
)
def test_invalid_arguments_are_refused(changes, message):
    arguments = {"features": np.eye(4)[:, :2], "labels": [0, 1, 0, 1], "test_features": [[1.0, 0.0]]}
    with pytest.raises(ValueError, match=message):
        knn_accuracy(**{**arguments, "test_labels": [0], "k": 2, **changes})
