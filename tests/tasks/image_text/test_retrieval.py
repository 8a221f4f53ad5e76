import dataclasses

import numpy as np
import pytest
from reference.small import SMALL

from keras_vit import ImageTextModel
from keras_vit.data import evaluation_batches, load_dataset
from keras_vit.evaluation import recall, retrieval
from keras_vit.tasks.image_text.retrieval import CHUNK


def by_order(images, texts, owners, k):
    """The definition, by the order of all similarities."""
    scores = images @ texts.T
    of_images = [any(owners[t] == i for t in np.argsort(-row)[:k]) for i, row in enumerate(scores)]
    of_texts = [owners[t] in np.argsort(-column)[:k] for t, column in enumerate(scores.T)]
    return {f"image_to_text_recall_{k}": np.mean(of_images), f"text_to_image_recall_{k}": np.mean(of_texts)}


def vectors(count, rng):
    found = rng.standard_normal((count, 8)).astype("float32")
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.mark.parametrize("count", [7, CHUNK + 50], ids=["one chunk", "two chunks"])
def test_recall_is_its_definition(count):
    rng = np.random.default_rng(0)
    images = vectors(count, rng)
    owners = np.sort(np.concatenate([np.arange(count), rng.integers(0, count, count)]))
    texts = images[owners] + rng.standard_normal((2 * count, 8)) * 0.3
    found = recall(images, texts, owners, at=(1, 2, 5))
    expected = {}
    for k in (1, 2, 5):
        expected |= by_order(images, texts, owners, k)
    assert found == pytest.approx(expected) and 0 < found["image_to_text_recall_1"] < 1


@pytest.mark.parametrize("count", [6, 700])
def test_equal_vectors_find_nothing(count):
    rng = np.random.default_rng(0)
    same = np.repeat(vectors(1, rng), count, axis=0)
    rounded = same + rng.choice([-6e-8, 0, 6e-8], same.shape).astype("float32")
    for images in (same, rounded):
        assert {*recall(images, same, np.arange(count)).values()} == {0.0}


def test_copies_of_captions_nan_and_images_without_texts_find_nothing():
    for images in (np.repeat(vectors(40, np.random.default_rng(0)), 6, axis=0), np.full((2, 4), np.nan)):
        assert {*recall(images, images, np.arange(len(images))).values()} == {0.0}
    scores = recall(np.eye(3), np.eye(3)[:1], np.array([0]), at=[5])
    assert scores == {"image_to_text_recall_5": pytest.approx(1 / 3), "text_to_image_recall_5": 1.0}


@pytest.mark.slow
def test_all_captions_of_a_split_are_compared():
    text = {"vocabulary_size": 20, "length": 2, "hidden_size": 12, "num_layers": 1, "mlp_dim": 8}
    model = ImageTextModel({**SMALL, "num_classes": None, "pooling": "gap"}, {**text, "num_heads": 2})
    model.text_preprocessing = lambda texts: np.array([[int(each), 0] for each in texts])
    samples = load_dataset("digits").split("test").take(range(5))
    samples = dataclasses.replace(samples, labels=(4, 3, 2, 1, 0))
    captions = [("1", "2"), ("3",), ("4",), ("5", "6", "7"), ("8",)]
    found = retrieval(model, samples, captions, batch_size=2)
    ((batch, _),) = evaluation_batches(samples, model.preprocessing, 5)
    texts = model.encode_text(["8", "5", "6", "7", "4", "3", "1", "2"])
    expected = recall(np.asarray(model.image_encoder(batch)), texts, [0, 1, 1, 1, 2, 3, 4, 4])
    assert found == pytest.approx({"samples": 5, "texts": 8, **expected})
