import dataclasses
import sys

import numpy as np
import pytest
from made.folders import write_classes
from reference.comparing import assert_close, numpy
from reference.small import small

from keras_vit.data.datasets import load_dataset
from keras_vit.evaluation.few_shot import (
    choose_shots,
    few_shot,
    few_shot_accuracy,
    representations,
    ridge_weights,
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    root = write_classes(tmp_path_factory.mktemp("data") / "images", ("a", "b", "c"), count=15)
    return load_dataset(f"folder:{root}")


def test_every_accuracy_is_the_official_ones_within_one_image(golden):
    with np.load(golden / "fewshot.expected.npz") as held:
        features, labels, n = held["features"], held["labels"], int(held["n_train"])
        digits = [str(digit) for digit in range(10)]
        for i, shots in enumerate(held["shots"]):
            for j, seed in enumerate(held["seeds"]):
                chosen = choose_shots(labels[:n], shots, seed, digits)
                found = few_shot_accuracy(
                    *(features[chosen], labels[chosen], features[n:], labels[n:]),
                    *(10, float(held["l2_reg"])),
                )
                assert abs(found - held["accuracy"][i, j]) <= 1.001 / (len(labels) - n)


@pytest.mark.parametrize("samples, width", [(40, 12), (12, 40), (20, 20)])
@pytest.mark.parametrize("l2", [0.5])
def test_the_weights_are_those_of_an_augmented_least_squares_problem(samples, width, l2, rng):
    x, y = rng.standard_normal((samples, width)), rng.standard_normal((samples, 3))
    x[:, -1] = 100
    longer = np.concatenate([x, np.sqrt(l2) * np.eye(width)])
    expected = np.linalg.lstsq(longer, np.concatenate([y, np.zeros((width, 3))]), rcond=None)[0]
    assert_close(ridge_weights(x, y, l2), expected, 1e-5)
    normal = np.linalg.solve(x.T @ x + l2 * np.eye(width), x.T @ y)
    assert_close(ridge_weights(x, y, l2), normal, 1e-5)


@pytest.mark.parametrize("l2", [0, -1.0, float("nan")])
def test_a_norm_that_does_not_count_is_refused(l2):
    with pytest.raises(ValueError, match="l2 must be above 0"):
        ridge_weights([[1.0]], [[1.0]], l2)


def test_shots_are_of_each_class_without_repeats_and_nested(rng):
    labels, names = rng.permutation(np.repeat(np.arange(4), 9)), list("abcd")
    three = choose_shots(labels, 3, 7, names).reshape(4, 3)
    np.testing.assert_array_equal(labels[three], np.repeat(np.arange(4), 3).reshape(4, 3))
    assert len(np.unique(three)) == 12
    np.testing.assert_array_equal(choose_shots(labels, 2, 7, names).reshape(4, 2), three[:, :2])
    assert (choose_shots(labels, 3, 8, names).reshape(4, 3) != three).any()
    assert {*choose_shots(labels, 9, 0, names)} == {*range(36)}


def test_too_few_images_of_a_class_are_refused_by_its_name():
    with pytest.raises(ValueError, match="expected 3 or more training images per class; got 2 of 'dog'"):
        choose_shots([0, 0, 0, 1, 1], 3, 0, ["cat", "dog"])
    with pytest.raises(ValueError, match="got 0 of 'cow'"):
        choose_shots([0, 0, 0, 1, 1], 2, 0, ["cat", "dog", "cow"])


def test_labels_that_are_no_class_are_refused():
    with pytest.raises(ValueError, match="expected labels from 0 to 1; got 2"):
        choose_shots([0, 1, 2], 1, 0, ["cat", "dog"])
    with pytest.raises(ValueError, match="got -1"):
        few_shot_accuracy([[0.0], [1.0]], [0, 1], [[0.0]], [-1], 2)


def test_the_fit_is_of_scaled_features_with_a_constant_to_one_and_minus_one(monkeypatch, rng):
    fitted = []
    module = sys.modules["keras_vit.evaluation.few_shot"]  # the package has the function by this name
    monkeypatch.setattr(module, "ridge_weights", lambda *given: fitted.append(given) or np.zeros((4, 2)))
    few_shot_accuracy(5 + 3 * rng.standard_normal((6, 3)), [0, 1, 1, 1, 0, 1], np.zeros((1, 3)), [0], 2, 7.0)
    ((features, targets, l2),) = fitted
    np.testing.assert_allclose(features.mean(0), [0, 0, 0, 100], atol=1e-6)
    np.testing.assert_allclose(features.std(0), [1, 1, 1, 0], atol=1e-4)
    np.testing.assert_array_equal(targets[:2], [[1, -1], [-1, 1]])
    assert l2 == 7.0


def test_features_are_standardised_and_a_constant_one_is_harmless():
    few, labels = np.array([[0.0, 7.0], [1e-3, 7.0]]), [0, 1]
    assert few_shot_accuracy(few, labels, [[1e-4, 7.0], [9e-4, 7.0]], [0, 1], 2, 1.0) == 1.0


def test_the_features_are_the_models_representation_in_order(dataset):
    model = small(representation_size=9)
    samples = dataset.split("test")
    features, labels = representations(model, samples, 4)
    images = model.preprocessing(list(samples.images))
    assert_close(features, numpy(model.feature_extractor(["representation"])(images)["representation"]), 1e-5)
    assert features.shape == (9, 9) and features.dtype == "float32"
    assert labels.tolist() == list(samples.labels)


def test_without_a_pooling_the_features_are_the_mean_of_the_patch_tokens(dataset):
    model = small(pooling=None, class_token=True, num_registers=2)
    samples = dataset.split("test")
    tokens = numpy(model.feature_extractor(["tokens"])(model.preprocessing(list(samples.images)))["tokens"])
    assert_close(representations(model, samples)[0], tokens[:, 3:].mean(1), 1e-5)


@pytest.mark.parametrize("known", [True, False])
def test_accuracies_are_those_of_the_parts_for_every_seed(known, dataset):
    model = small()
    train, test = (representations(model, dataset.split(split)) for split in ("train", "test"))
    found = few_shot(model, dataset if known else unread(dataset), shots=(1, 4), seeds=(0, 5), l2=2.0)
    assert found.keys() == {1, 4}
    for shots, accuracies in found.items():
        for seed, accuracy in zip((0, 5), accuracies, strict=True):
            few = choose_shots(train[1], shots, seed, "abc")
            assert accuracy == few_shot_accuracy(train[0][few], train[1][few], *test, 3, 2.0)


def test_brighter_classes_are_told_apart(dataset):
    model = small(pooling="gap", num_layers=None, num_heads=None, mlp_dim=None)
    assert (
        few_shot(model, dataset, shots=(8,), seeds=(0,), l2=1.0)[8][0] >= 8 / 9
    )  # a linear fit blurs the middle


def test_too_many_shots_are_refused_before_anything_is_computed(dataset):
    with pytest.raises(ValueError, match="expected 99"):
        few_shot(None, dataset, shots=(99,))


@pytest.mark.parametrize("options", [{"shots": ()}, {"shots": (0,)}, {"seeds": ()}])
def test_nothing_to_do_is_refused(options, dataset):
    with pytest.raises(ValueError, match="expected positive numbers of shots, and seeds"):
        few_shot(small(), dataset, **options)


def test_another_task_is_refused(dataset):
    with pytest.raises(ValueError, match="few-shot needs single labels; .* is regression"):
        few_shot(small(), dataclasses.replace(dataset, task="regression"))


def unread(dataset):
    """The same with labels that are not known before they are read."""
    splits = {split: Unread(samples) for split, samples in dataset.splits.items()}
    return dataclasses.replace(dataset, splits=splits)


class Unread:
    labels = None
    exif = False

    def __init__(self, samples):
        self.evaluation_records = samples.evaluation_records
        self.count = len(samples)

    def __len__(self):
        return self.count
