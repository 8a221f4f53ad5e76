import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from made.sampling import some
from made.tables import by_table
from made.unread import Unread
from reference.comparing import numpy
from reference.small import small
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from keras_vit.data.batches import evaluation_batches
from keras_vit.data.datasets import load_dataset
from keras_vit.evaluation.few_shot import (
    choose_shots,
    few_shot,
    few_shot_accuracy,
    few_shot_of_vectors,
    probe_blocks,
    probe_vectors,
)
from keras_vit.evaluation.nearest import knn_accuracy
from keras_vit.evaluation.representations import representations

pytestmark = pytest.mark.usefixtures("eager")
FUNCTIONS = few_shot, probe_blocks


def test_every_accuracy_is_the_official_ones_within_one_image(golden):
    with np.load(golden / "fewshot.expected.npz") as held:
        features, labels, n = held["features"], held["labels"], int(held["n_train"])
        digits = [str(digit) for digit in range(10)]
        for i, shots in enumerate(held["shots"]):
            for j, seed in enumerate(held["seeds"]):
                chosen = choose_shots(labels[:n], shots, seed, digits)
                few, rest = (features[chosen], labels[chosen]), (features[n:], labels[n:])
                found = few_shot_accuracy(*few, *rest, 10, float(held["l2_reg"]))
                assert abs(found - held["accuracy"][i, j]) <= 1.001 / (len(labels) - n)


def test_shots_are_of_each_class_without_repeats_and_nested(rng):
    labels, names = rng.permutation(np.repeat(np.arange(4), 9)), list("abcd")
    three = choose_shots(labels, 3, 7, names).reshape(4, 3)
    np.testing.assert_array_equal(labels[three], np.repeat(np.arange(4), 3).reshape(4, 3))
    assert len(np.unique(three)) == 12
    np.testing.assert_array_equal(choose_shots(labels, 2, 7, names).reshape(4, 2), three[:, :2])
    assert (choose_shots(labels, 3, 8, names).reshape(4, 3) != three).any()
    assert {*choose_shots(labels, 9, 0, names)} == {*range(36)}


def test_labels_of_other_classes_and_too_few_images_are_refused():
    with pytest.raises(ValueError, match="expected 2 or more .* per class; got 1 of 'dog'"):
        choose_shots([0, 0, 1], 2, 0, ["cat", "dog"])
    with pytest.raises(ValueError, match="expected labels from 0 to 1; got -1"):
        few_shot_accuracy([[0.0], [1.0]], [0, 1], [[0.0]], [-1], 2)


@by_table(
    "function, options",
    [
        (few_shot_of_vectors, {"shots": (1,), "seeds": (0,)}),
        (probe_vectors, {}),
        (probe_vectors, {"shots": 1}),
    ],
)
def test_unknown_labels_of_vectors_are_refused(function, options):
    features, labels, unknown = np.arange(4.0)[:, np.newaxis], np.array([0, 1, 0, 1]), np.array([0, 1, 0, -1])
    for k in (None, 1):
        for pair in ((labels, unknown), (unknown, labels), (labels, labels * 2)):
            with pytest.raises(ValueError, match="expected labels from 0 to 1; got (-1|2)"):
                function(features, pair[0], features, pair[1], ["cat", "dog"], k=k, **options)


def test_features_are_standardized_and_a_constant_one_is_harmless():
    few, labels = np.array([[0.0, 7.0], [1e-3, 7.0]]), [0, 1]
    assert few_shot_accuracy(few, labels, [[1e-4, 7.0], [9e-4, 7.0]], [0, 1], 2, 1.0) == 1.0


@pytest.mark.slow
def test_accuracies_are_those_of_the_parts_for_every_seed(dataset):
    model = small(num_layers=1)
    train, test = (representations(model, dataset.split(split)) for split in ("train", "test"))
    found = few_shot(model, unread(dataset), shots=(1, 4), seeds=(0, 5), l2=2.0)
    assert found.keys() == {1, 4}
    for shots, accuracies in found.items():
        for seed, accuracy in zip((0, 5), accuracies, strict=True):
            few = choose_shots(train[1], shots, seed, "abc")
            assert accuracy == few_shot_accuracy(train[0][few], train[1][few], *test, 3, 2.0)


@pytest.mark.slow
@pytest.mark.parametrize("shots, votes", [(4, 5), (1, 3)])
def test_the_nearest_images_vote_or_all_where_there_are_fewer(shots, votes, dataset):
    model = small(num_layers=1)
    (features, labels), test = (representations(model, dataset.split(split)) for split in ("train", "test"))
    few = choose_shots(labels, shots, 6, "abc")
    expected = knn_accuracy(features[few], labels[few], *test, votes)
    assert few_shot(model, dataset, (shots,), (6,), k=5) == {shots: [expected]}


@by_table(
    "function, options, words",
    [
        (few_shot, {"shots": (99,)}, "expected 99"),
        (few_shot, {"shots": ()}, "expected at least one number of shots; got none"),
        (few_shot, {"shots": (5, 0)}, "shots must be a positive int; got 0"),
        (few_shot, {"k": 0}, "k must be .*; got 0"),
        (few_shot, {"k": 3, "l2": 1.0}, "expected l2 or k: .*; got l2=1.0 and k=3"),
        (probe_blocks, {"shots": 99}, "expected 99"),
        (probe_blocks, {"shots": 0}, "shots must be a positive int; got 0"),
        *((function, {"seeds": ()}, "expected at least one seed; got none") for function in FUNCTIONS),
        *((function, {}, "single labels; got .* of the task 'regression'") for function in FUNCTIONS),
    ],
)
def test_bad_options_are_refused_before_the_model_runs(function, options, words, dataset):
    dataset = dataset if options else dataclasses.replace(dataset, task="regression")
    with pytest.raises(ValueError, match=words):
        function(SimpleNamespace(num_layers=2), dataset, **options)


def unread(dataset):
    """The same data set, with labels that are unknown until they are read."""
    splits = {split: Unread(samples) for split, samples in dataset.splits.items()}
    return dataclasses.replace(dataset, splits=splits)


@pytest.mark.slow
def test_each_block_is_probed_by_its_mean_token():
    model = small(num_layers=2, num_classes=None)
    digits = load_dataset("digits")
    few = {split: digits.split(split).take(range(200)) for split in ("train", "test")}
    dataset = dataclasses.replace(digits, splits=few)
    ((first,), second) = probe_blocks(model, dataset)
    extractor = model.feature_extractor("encoder_block_0")
    features = []
    for split in ("train", "test"):
        ((images, labels),) = evaluation_batches(dataset.split(split), model.preprocessing, 2000)
        tokens = extractor.predict_on_batch(images.numpy())["encoder_block_0"]
        tokens = numpy(model.get_layer("encoder_norm")(tokens))[:, 1:]
        features.append((tokens.mean(axis=1), labels.numpy()))
    train, test = features
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(*train)
    expected = probe.score(*test)
    assert first == pytest.approx(expected, abs=0.01) and second != [first]


@pytest.mark.slow
def test_a_probe_of_a_few_images_has_an_accuracy_for_each_seed(dataset):
    model = small(num_layers=2, num_classes=None)
    found = probe_blocks(model, dataset, shots=2, seeds=(0, 5))
    assert np.shape(found) == (2, 2)
    few = dataclasses.replace(dataset, splits=dict(dataset.splits))
    chosen = choose_shots(dataset.split("train").labels, 2, 5, "abc")
    few.splits["train"] = dataset.split("train").take(sorted(chosen.tolist()))
    alone = [accuracy for (accuracy,) in probe_blocks(model, few)]
    assert np.shape(probe_blocks(small(num_layers=1), few)) == (1, 1)
    np.testing.assert_allclose([each[1] for each in found], alone, atol=0.12)  # an image of nine


@pytest.mark.parametrize("shots, evaluation", some([((99,), few_shot), (99, probe_blocks)], 2))
def test_shots_of_unknown_labels_are_checked_after_the_features(shots, evaluation, dataset):
    with pytest.raises(ValueError, match="expected 99"):
        evaluation(small(num_layers=1), unread(dataset), shots=shots)
