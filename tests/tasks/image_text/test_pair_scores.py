import numpy as np
import pytest
from keras import ops

from keras_vit.evaluation import recall
from keras_vit.tasks.image_text.pair_scores import PairRecall
from keras_vit.tasks.image_text.task import Pairs


def pairs_of(count, seed=0):
    found = np.random.default_rng(seed).standard_normal((count, 1, 6)) + 0.8 * np.random.default_rng(
        seed + 1
    ).standard_normal((count, 2, 6))
    return (found / np.linalg.norm(found, axis=-1, keepdims=True)).astype("float32")


def scores(labels, pairs, weights=None):
    found = {}
    for metric in Pairs().metrics(None):
        metric.update_state(labels, pairs, weights)
        found[metric.name] = float(metric.result())
    return found


def test_scores_are_the_recall_of_the_batch():
    pairs = pairs_of(40)
    found = scores(np.arange(40), pairs)
    assert found == pytest.approx(recall(pairs[:, 0], pairs[:, 1], np.arange(40)))
    assert 0 < found["image_to_text_recall_1"] < found["image_to_text_recall_5"] < 1


def test_pairs_of_weight_0_neither_count_nor_compete():
    pairs, weights = pairs_of(12), np.float32([1] * 9 + [0] * 3)
    labels = np.array([*range(9), 0, 0, 0])
    assert scores(labels, pairs, weights) == pytest.approx(scores(labels[:9], pairs[:9]))


def test_any_text_of_its_label_is_an_images_own():
    pairs, labels = pairs_of(30), np.arange(30) % 3
    best = (pairs[:, 0] @ pairs[:, 1].T).argmax(axis=1)
    assert scores(labels, pairs)["image_to_text_recall_1"] == pytest.approx(np.mean(best % 3 == labels))


def test_equal_vectors_find_nothing():
    assert {*scores(np.arange(7), np.ones((7, 2, 4), "float32")).values()} == {0}


def test_vectors_with_nan_find_nothing():
    assert {*scores(np.arange(3), np.full((3, 2, 4), np.nan, "float32")).values()} == {0}


def test_a_copy_is_of_its_configuration():
    copy = PairRecall.from_config(PairRecall("text", 5).get_config())
    assert (copy.name, copy.of, copy.k) == ("text_to_image_recall_5", "text", 5)
    copy.update_state(np.zeros(0, "int32"), ops.zeros((0, 2, 4)))  # a part of a worker, which may be empty
    assert float(copy.result()) == 0
