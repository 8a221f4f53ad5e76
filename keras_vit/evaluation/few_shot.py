"""Few-shot evaluation and linear probes: simple classifiers of the features of a frozen model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import keras
import numpy as np

from keras_vit.engine.distributed_model import DistributedModel
from keras_vit.evaluation.nearest import knn_accuracy
from keras_vit.evaluation.representations import computed_features, representations_of_splits
from keras_vit.labels import label_kind
from keras_vit.models.backbones import backbone
from keras_vit.models.features import grids_of_blocks
from keras_vit.rules import integer, optional

if TYPE_CHECKING:
    from keras_vit.data.datasets import Dataset

BIAS_FEATURE = 100.0  # the constant feature for the bias: large, so that it is hardly regularized
L2 = 1024.0  # of `fewshot_lsr.py`


def few_shot(
    model: keras.Model,
    dataset: Dataset,
    shots: Sequence[int] = (1, 5, 10, 25),
    seeds: Sequence[int] = (0, 1, 2),
    l2: float | None = None,
    batch_size: int = 64,
    k: int | None = None,
) -> dict[int, list[float]]:
    """Test accuracy of a ridge regression or of the nearest neighbors on the frozen representation.

    Images are preprocessed as for the model, without augmentation. The features of the training and test
    splits are kept in memory: (samples, width) each.

    Args:
        model: A `VisionTransformer`; without pooling the mean of its patch tokens is the representation.
        dataset: Dataset with single labels.
        shots: Numbers of training images per class to fit to.
        seeds: Seeds of their random choice.
        l2: Weight of the squared norm in a ridge regression; None for 1024.
        batch_size: Images per batch.
        k: Number of nearest training images that vote (see `knn_accuracy`; with fewer images all vote). None:
            a ridge regression.

    Returns:
        dict: for each number of shots a list of accuracies, one per seed.

    Raises:
        ValueError: for another task, no shots or seeds, a class with fewer training images than shots, an
            unknown label, shots or a k below 1, or both k and l2.

    Example:
        >>> sorted(few_shot(model, load_dataset("digits"), shots=(1, 5), seeds=(0,)))
        [1, 5]

    Source: `big_vision/evaluators/fewshot_lsr.py`.
    """
    _check_choices(shots, seeds, k, l2)
    splits = _checked_splits(dataset, shots, seeds)
    train, test = representations_of_splits(model, splits, batch_size)
    return few_shot_of_vectors(*train, *test, dataset.class_names, shots, seeds, l2, k)


def few_shot_of_vectors(
    features: np.ndarray,
    labels: np.ndarray,
    test_features: np.ndarray,
    test_labels: np.ndarray,
    class_names: Sequence[str],
    shots: Sequence[int] = (1, 5, 10, 25),
    seeds: Sequence[int] = (0, 1, 2),
    l2: float | None = None,
    k: int | None = None,
) -> dict[int, list[float]]:
    """As `few_shot`, of representations that were computed before.

    Args:
        features, test_features: (samples, width).
        labels, test_labels: Class indices.
        class_names: One name per class.
        shots, seeds, l2, k: As for `few_shot`.

    Returns:
        dict: for each number of shots a list of accuracies, one per seed.

    Raises:
        ValueError: as `few_shot`.

    Example:
        >>> features, labels = np.array([[0.0], [1.0], [0.1], [0.9]]), np.array([0, 1, 0, 1])
        >>> few_shot_of_vectors(features, labels, features, labels, ["cat", "dog"], (1, 2), (0,), l2=1.0)
        {1: [1.0], 2: [1.0]}
    """
    _check_choices(shots, seeds, k, l2)
    _check_labels(np.concatenate([labels, test_labels]), len(class_names))
    penalty = L2 if l2 is None else l2

    def accuracy(count, seed):
        chosen = choose_shots(labels, count, seed, class_names)
        few = features[chosen], labels[chosen]
        if k is None:
            return few_shot_accuracy(*few, test_features, test_labels, len(class_names), penalty)
        return knn_accuracy(*few, test_features, test_labels, min(k, len(chosen)))

    return {count: [accuracy(count, seed) for seed in seeds] for count in shots}


def probe_blocks(
    model: keras.Model,
    dataset: Dataset,
    shots: Sequence[int] | None = None,
    seeds: Sequence[int] = (0,),
    batch_size: int = 64,
    k: int | None = None,
) -> list[list[float]]:
    """Test accuracy of a linear classifier or of the nearest neighbors on the mean token of each block.

    A logistic regression is fitted to the standardized means of the patch tokens after the model's last norm,
    if it has one before the pooling. Standardization makes its scale and shift irrelevant: it is the norm of
    the next block, after which iGPT's authors take the mean.

    Args:
        model: A `VisionTransformer` with a Transformer, or a model with one.
        dataset: Dataset with single labels.
        shots: Number of training images per class; None: all training images.
        seeds: Seeds of their random choice; without shots one seed is enough.
        batch_size: Images per batch.
        k: Number of nearest training images that vote, as for `few_shot`. None: a logistic regression.

    Returns:
        list: for each block a list of accuracies, one per seed.

    Raises:
        ValueError: for another task, a model without blocks, no seeds, a class with fewer training images
            than shots, an unknown label, or shots or a k below 1.

    Example:
        >>> accuracies = probe_blocks(model, load_dataset("digits"), shots=10, seeds=(0, 1))
        >>> len(accuracies) == model.num_layers, len(accuracies[0])
        (True, 2)

    Source: Chen et al. 2020 (iGPT), sections 2.4 and 4.1.
    """
    counts = () if shots is None else (shots,)
    _check_choices(counts or (1,), seeds, k)
    splits = _checked_splits(dataset, counts, seeds)
    model = backbone(model)
    if model.num_layers is None:
        raise ValueError("expected a model with blocks; got num_layers=None")
    extractor = DistributedModel(model.input, grids_of_blocks(model, [*range(model.num_layers)]))

    def means(images):
        grids = keras.tree.flatten(extractor.predict_on_batch(images))  # (batch, rows, columns, width) each
        return np.stack([np.mean(grid, axis=(1, 2), dtype="float32") for grid in grids], axis=1)

    (train, train_labels), (test, test_labels) = (
        computed_features(means, samples, model.preprocessing, batch_size) for samples in splits
    )
    return [
        probe_vectors(
            *(train[:, block], train_labels, test[:, block], test_labels),
            *(dataset.class_names, shots, seeds, k),
        )
        for block in range(model.num_layers)
    ]


def probe_vectors(
    features: np.ndarray,
    labels: np.ndarray,
    test_features: np.ndarray,
    test_labels: np.ndarray,
    class_names: Sequence[str],
    shots: int | None = None,
    seeds: Sequence[int] = (0,),
    k: int | None = None,
) -> list[float]:
    """Test accuracy of a linear classifier or of the nearest neighbors on vectors.

    A logistic regression is fitted to the standardized vectors.

    Args:
        features, test_features: (samples, width).
        labels, test_labels: Class indices.
        class_names: One name per class.
        shots, seeds, k: As for `probe_blocks`.

    Returns:
        list of accuracies, one per seed.

    Raises:
        ValueError: as `probe_blocks`.

    Example:
        >>> features, labels = np.array([[0.0], [1.0], [0.1], [0.9]]), np.array([0, 1, 0, 1])
        >>> probe_vectors(features, labels, features, labels, ["cat", "dog"])
        [1.0]
    """
    from sklearn.linear_model import LogisticRegression  # Its import takes long.
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    _check_choices((1,) if shots is None else (shots,), seeds, k)
    _check_labels(np.concatenate([labels, test_labels]), len(class_names))

    def accuracy(seed):
        chosen = slice(None) if shots is None else choose_shots(labels, shots, seed, class_names)
        few = features[chosen], labels[chosen]
        if k is not None:
            return knn_accuracy(*few, test_features, test_labels, min(k, len(few[1])))
        probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(*few)
        return float(probe.score(test_features, test_labels))

    return [accuracy(seed) for seed in seeds]


def choose_shots(labels, shots, seed, class_names):
    """Sample the same number of indices from each class; fewer shots are a subset of more.

    Args:
        labels: Class indices.
        shots: Samples per class.
        seed: An int.
        class_names: One name per class.

    Returns:
        int64 (classes × shots,): indices of samples, class by class.

    Raises:
        ValueError: if a class has fewer samples, or a label is out of range.

    Example:
        >>> choose_shots([0, 1, 1, 0, 1], 2, seed=0, class_names=["cat", "dog"]).tolist()
        [0, 3, 4, 1]

    Source: `fewshot_lsr.py`, where one `default_rng(seed)` permutes the classes in turn.
    """
    labels, rng = np.asarray(labels), np.random.default_rng(seed)
    _check_labels(labels, len(class_names))
    chosen = []
    for label, name in enumerate(class_names):
        indices = rng.permutation(np.flatnonzero(labels == label))
        if len(indices) < shots:
            raise ValueError(
                f"expected {shots} or more training images per class; got {len(indices)} of {name!r}: "
                "choose fewer shots"
            )
        chosen.append(indices[:shots])
    return np.concatenate(chosen)


def few_shot_accuracy(features, labels, test_features, test_labels, num_classes, l2=L2):
    """Fit a ridge regression to samples, and return its accuracy on others.

    Features are standardized by the mean and standard deviation of the samples of the fit, and a constant
    feature is added for the bias. The targets are 1 for the label and -1 for the other classes.

    Args:
        features, test_features: (samples, width).
        labels, test_labels: Class indices.
        num_classes: The number of classes.
        l2: Weight of the squared norm.

    Returns:
        float.

    Raises:
        ValueError: if a label is out of range.

    Example:
        >>> few_shot_accuracy([[0.0], [1.0]], [0, 1], [[0.2], [0.9], [0.8]], [0, 1, 1], 2, l2=1.0)
        1.0

    Source: `fewshot_lsr.py`.
    """
    from sklearn.linear_model import Ridge  # Its import takes long.

    _check_labels(np.concatenate([labels, test_labels]), num_classes)
    features = np.asarray(features, "float64")
    mean, std = features.mean(axis=0), features.std(axis=0) + 1e-5

    def scaled(x):
        return np.pad((x - mean) / std, ((0, 0), (0, 1)), constant_values=BIAS_FEATURE)

    targets = 2 * np.eye(num_classes)[labels] - 1
    ridge = Ridge(l2, fit_intercept=False, solver="cholesky").fit(scaled(features), targets)
    scores = ridge.predict(scaled(np.asarray(test_features, "float64")))
    return float(np.mean(scores.argmax(axis=1) == test_labels))


def _checked_splits(dataset, shots, seeds):
    """The training and test splits, after the checks that need no features.

    Args:
        dataset: Dataset.
        shots: Numbers of training images per class, perhaps none.
        seeds: Seeds.

    Raises:
        ValueError: for another task, or too few images.
    """
    if not label_kind(dataset.task).is_class_id:
        raise ValueError(f"expected single labels; got {dataset.name!r} of the task {dataset.task!r}")
    train, test = dataset.split("train"), dataset.split("test")
    if shots and train.labels:  # Some data sets know their labels before they read the images.
        choose_shots(train.labels, max(shots), seeds[0], dataset.class_names)
    return train, test


def _check_choices(shots, seeds, k, l2=None):
    if not shots:
        raise ValueError("expected at least one number of shots; got none")
    if not seeds:
        raise ValueError("expected at least one seed; got none")
    for count in shots:
        integer(at_least=1).check("shots", count)
    optional(integer(at_least=1)).check("k", k)
    if k is not None and l2 is not None:
        raise ValueError(f"expected l2 or k: nearest neighbors have no penalty; got l2={l2} and k={k}")


def _check_labels(labels, num_classes):
    for label in (labels.min(initial=0), labels.max(initial=0)):
        if not 0 <= label < num_classes:
            raise ValueError(f"expected labels from 0 to {num_classes - 1}; got {label}")
