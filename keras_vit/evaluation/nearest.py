"""Classification by the labels of the nearest images, which fits nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from keras_vit.evaluation.representations import representations_of_splits
from keras_vit.rules import integer, number

if TYPE_CHECKING:
    import keras

    from keras_vit.data.samples import EncodedSamples

_AT_ONCE = 2**24  # similarities in memory


def knn(
    model: keras.Model,
    samples: EncodedSamples,
    test_samples: EncodedSamples,
    k: int = 20,
    temperature: float = 0.07,
    batch_size: int = 64,
) -> float:
    """The accuracy of classifying images by those with the most similar representations.

    Args:
        model: As for `representations`.
        samples, test_samples: Splits of a `Dataset` with single labels: those that vote, and those that are
            classified. The features of both are kept in memory: (samples, width) each.
        k, temperature: As for `knn_accuracy`; with fewer samples all vote.
        batch_size: Images per batch.

    Returns:
        float in [0, 1].

    Raises:
        ValueError: as `knn_accuracy`.

    Example:
        >>> digits = load_dataset("digits")
        >>> 0 <= knn(model, digits.split("train").take(range(100)), digits.split("validation")) <= 1
        True

    Source: Caron et al. 2021 (DINO), section 4.1.
    """
    train, test = representations_of_splits(model, (samples, test_samples), batch_size)
    return knn_accuracy(*train, *test, min(k, len(train[1])), temperature)


def knn_accuracy(
    features: np.ndarray,
    labels: np.ndarray,
    test_features: np.ndarray,
    test_labels: np.ndarray,
    k: int = 20,
    temperature: float = 0.07,
) -> float:
    """The accuracy of a weighted vote of the k samples with the largest cosine similarity.

    The vote of a sample of similarity s has the weight exp(s / temperature). Of classes with the same sum of
    weights the first is chosen.

    Args:
        features, test_features: (samples, width).
        labels, test_labels: Class indices (samples,), at least 0.
        k: Number of samples that vote.
        temperature: Above 0; the smaller it is, the more the nearest count.

    Returns:
        float in [0, 1].

    Raises:
        ValueError: for a k that is not between 1 and the number of samples, a temperature of 0 or less, no
            test samples, arrays whose numbers of samples or widths differ, negative labels, or features that
            are not finite.

    Example:
        >>> features = np.array([[1.0, 0.0], [0.0, 1.0], [0.1, 1.0]])
        >>> knn_accuracy(features, [0, 1, 1], [[0.2, 0.9], [1.0, 0.1]], [1, 1], k=2)
        0.5

    Source: `eval_knn.py` of `facebookresearch/dino`; Wu et al. 2018 (arXiv 1805.01978), section 3.4.
    """
    features, test_features = (np.asarray(each, "float32") for each in (features, test_features))
    labels, test_labels = np.asarray(labels), np.asarray(test_labels)
    number(above=0).check("temperature", temperature)
    if integer(at_least=1).check("k", k) > len(features):
        raise ValueError(f"expected a k of at most {len(features)}, the samples that vote; got {k}")
    shapes = features.shape, labels.shape, test_features.shape, test_labels.shape
    samples, width, tests = len(features), features.shape[-1], len(test_features)
    if shapes != ((samples, width), (samples,), (tests, width), (tests,)) or not tests:
        raise ValueError(
            "expected features and labels of the shapes (samples, width), (samples,), (tests, width) and "
            f"(tests,); got {', '.join(map(str, shapes))}"
        )
    lowest = min(labels.min(), test_labels.min())
    if lowest < 0:
        raise ValueError(f"expected labels of 0 or more; got {lowest}")
    features, test_features = _normalized(features), _normalized(test_features)
    classes, right = labels.max() + 1, 0
    rows = max(_AT_ONCE // samples, 1)
    for first in range(0, tests, rows):
        similarity = test_features[first : first + rows] @ features.T
        nearest = np.argpartition(-similarity, k - 1, axis=1)[:, :k]
        similarity = np.take_along_axis(similarity, nearest, axis=1).astype("float64")
        # Divided by the largest weight of a row, which changes no vote, they do not overflow.
        weights = np.exp((similarity - similarity.max(axis=1, keepdims=True)) / temperature)
        scores = np.zeros((len(nearest), classes))
        np.add.at(scores, (np.arange(len(nearest))[:, np.newaxis], labels[nearest]), weights)
        right += int((scores.argmax(axis=1) == test_labels[first : first + rows]).sum())
    return right / tests


def neighbor_difference(features: np.ndarray, other_features: np.ndarray, k: int = 10) -> np.ndarray:
    """The fraction of each sample's nearest samples that differ between two representations.

    It compares representations of any widths without a projection. The nearest samples are the others with
    the largest cosine similarities.

    Args:
        features, other_features: Of the same samples, (samples, width), of which the widths may differ.
        k: Number of nearest samples; with k samples or fewer, all others.

    Returns:
        float64 (samples,) in [0, 1], 0 for the same nearest samples.

    Raises:
        ValueError: for fewer than two samples, different numbers of them, or features that are not finite.

    Example:
        >>> features = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> neighbor_difference(features, features[:, ::-1], k=1).tolist()
        [0.0, 0.0, 0.0, 0.0]
        >>> neighbor_difference(features, features[[0, 2, 1, 3]], k=1).tolist()
        [1.0, 1.0, 1.0, 1.0]

    Source: Huh et al. 2024, "The Platonic Representation Hypothesis" (arXiv 2405.07987), section 3, whose
    alignment is 1 minus the mean.
    """
    samples = len(features)
    if samples < 2 or len(other_features) != samples:
        raise ValueError(
            f"expected two or more samples in both representations; got {samples} and {len(other_features)}"
        )
    k, rows = min(integer(at_least=1).check("k", k), samples - 1), max(_AT_ONCE // samples, 1)
    both = [_normalized(np.asarray(x, "float32")) for x in (features, other_features)]
    fractions = []
    for first in range(0, samples, rows):
        is_near = []
        for x in both:
            similarity = x[first : first + rows] @ x.T
            index = np.arange(len(similarity))
            similarity[index, first + index] = -np.inf
            near = np.zeros(similarity.shape, bool)
            np.put_along_axis(near, np.argpartition(-similarity, k - 1, axis=1)[:, :k], True, axis=1)
            is_near.append(near)
        fractions.append(1 - (is_near[0] & is_near[1]).sum(axis=1) / k)
    return np.concatenate(fractions)


def _normalized(features):
    if not np.isfinite(features).all():
        raise ValueError("expected finite features; got NaN or infinity")
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
