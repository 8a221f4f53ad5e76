"""Image-text models: embeddings, zero-shot labels, files, and training on pairs."""

import keras
import numpy as np
import pytest
from reference.comparing import arrays, assert_close, numpy, randomize
from reference.small import SMALL

import keras_vit
from keras_vit import ImageTextModel, TextTransformer
from keras_vit.training import SGD
from keras_vit.weights.checkpoint import read_model

ON_JAX = keras.backend.backend() == "jax"
TEXT = {
    **{"vocabulary_size": 11, "length": 6, "hidden_size": 8, "num_layers": 1, "mlp_dim": 12, "num_heads": 2},
    "pooling": "last",
}
IMAGE = {**SMALL, "num_classes": None, "num_layers": 1, "pooling": "gap"}


def two_towers(**options):
    return randomize(
        ImageTextModel(IMAGE, TEXT, **{"text_projection": 12, "projection_bias": True} | options)
    )


def pairs(count):
    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, (count, 16, 16, 3)).astype("float32")
    return {"images": images, "ids": rng.integers(0, 11, (count, 6)).astype("int32")}


@pytest.fixture(scope="module")
def model():
    return two_towers()


def test_the_output_has_the_logits_that_similarity_computes(model):
    batch = pairs(3)
    vectors = numpy(model(batch))
    images = model.image_encoder(batch["images"])
    found = model.similarity(numpy(images), batch["ids"])
    assert_close(found, vectors[:, 0] @ vectors[:, 1].T, 1e-6)
    np.testing.assert_allclose(np.linalg.norm(images, axis=1), 1, rtol=1e-6)
    bias = float(model.get_layer("logit_factors").bias)
    scale = np.exp(float(model.get_layer("logit_factors").scale))
    assert_close(found, numpy(images) @ model.encode_text(batch["ids"]).T * scale + bias, 1e-6)


def test_vectors_of_any_length_are_compared_by_their_directions(model):
    size = model.image_encoder.output.shape[-1]
    rng = np.random.default_rng(0)
    images, texts = rng.normal(size=(3, size)), rng.normal(size=(2, size)).astype("float16")
    expected = model.similarity(
        *(of / np.linalg.norm(of.astype("float64"), axis=1, keepdims=True) for of in (images, texts))
    )
    assert_close(model.similarity(5 * images, texts), expected, 1e-3)
    assert_close(model.similarity(images, 0.1 * texts.astype("float64")), expected, 1e-3)
    for wrong in (np.zeros((1, size)), np.full((1, size), np.nan)):
        with pytest.raises(
            ValueError, match="expected vectors of finite lengths above 0; got one of length 0"
        ):
            model.similarity(wrong, texts)


def test_a_batch_size_of_0_is_refused(model):
    with pytest.raises(ValueError, match="batch_size must be .*; got 0"):
        model.encode_text(pairs(2)["ids"], batch_size=0)


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_sample_weights_weight_the_pairs():
    losses = []
    for weights in ([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [4.0, 1.0, 1.0]):
        model = two_towers()
        model.compile(SGD(0.1))
        history = model.fit(pairs(3), sample_weight=np.array(weights), batch_size=3, verbose=0, shuffle=False)
        losses.append(history.history["loss"][0])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert losses[2] != pytest.approx(losses[0], rel=1e-3)


def test_zero_shot_orders_the_labels_by_their_probabilities(model):
    batch = pairs(4)
    model.text_preprocessing = lambda texts: np.array([batch["ids"][int(text)] for text in texts])
    photos = (batch["images"] + 1) / 2
    logits = model.similarity(photos, ["0", "1", "2"])
    found = model.zero_shot(photos, ["0", "1", "2"], top=2)
    assert [len(one) for one in found] == [2] * 4
    for row, one in zip(logits, found):
        assert [label for label, _ in one] == [str(i) for i in np.argsort(-row)[:2]]
        np.testing.assert_allclose([p for _, p in one], 1 / (1 + np.exp(np.sort(-row)[:2])), rtol=1e-5)
    names, vectors = model.class_vectors({"a": "0", "b": ["1", "2"]})
    mean = model.encode_text(["1", "2"]).mean(axis=0)
    assert names == ["a", "b"]
    with pytest.raises(ValueError, match="expected different labels; got '1' twice"):
        model.vision_transformer(["0", "1", "1"])
    assert_close(vectors[1], mean / np.linalg.norm(mean), 1e-6)
    model.text_preprocessing = None


@pytest.mark.parametrize(
    "texts, message",
    [
        (["a cat"], "no text_preprocessing"),
        (np.zeros((2, 5), "int32"), r"\(texts, 6\)"),
        (np.zeros((2, 6)), "as ints"),
    ],
)
def test_texts_that_the_tower_cannot_read_are_refused(model, texts, message):
    with pytest.raises(ValueError, match=message):
        model.encode_text(texts)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"objective": "softmax", "image_projection": 5, "text_projection": 5, "projection_bias": False},
        pytest.param({"image_projection": 5, "text_projection": 5}, marks=pytest.mark.slow),
    ],
    ids=["sigmoid", "softmax", "projection with a bias"],
)
def test_a_vision_transformer_has_the_logits_of_labels(options):
    towers, batch = two_towers(**options), pairs(4)
    towers.text_preprocessing = lambda texts: np.array([batch["ids"][int(text)] for text in texts])
    classifier = towers.vision_transformer({"first": ["0", "1"], "second": "2"})
    vectors = towers.class_vectors({"first": ["0", "1"], "second": "2"})[1]
    embeddings = numpy(towers.image_encoder(batch["images"]))
    assert_close(numpy(classifier(batch["images"])), towers.similarity(embeddings, vectors), 1e-6)
    task = "single_label" if options.get("objective") == "softmax" else "multi_label"
    assert (classifier.class_names, classifier.task) == (("first", "second"), task)
    photo = np.random.default_rng(0).integers(0, 256, (16, 16, 3)).astype("uint8")
    [expected] = towers.zero_shot(photo, {"first": ["0", "1"], "second": "2"})
    assert dict(classifier.classify(photo)[0]) == pytest.approx(dict(expected), rel=1e-4)
    assert_close(numpy(towers.vision_transformer()(batch["images"])), embeddings, 1e-6)


def test_options_that_contradict_each_other_are_refused():
    for options, message in (
        ({"text_projection": None}, "one size of both towers; got 12 and 8"),
        ({"image_projection": 0}, "image_projection must be a positive int or None; got 0"),
        ({"objective": "triplet"}, "objective must be one of"),
        ({"image": {**IMAGE, "num_classes": 3}}, "image tower without a head"),
        ({"text": {**TEXT, "pooling": "eos"}}, "eos_id must be"),
    ):
        with pytest.raises(ValueError, match=message):
            ImageTextModel(**{"image": IMAGE, "text": TEXT, "text_projection": 12} | options)
    for options, message in (
        ({"loss": "mse"}, "expected loss=None, since ImageTextModel has a loss of its own; got 'mse'"),
        ({"accumulation_steps": 2}, "steps=1"),
    ):
        with pytest.raises(ValueError, match=message):
            two_towers().compile("sgd", **options)


def test_with_a_causal_mask_what_follows_the_end_of_a_text_has_no_effect():
    causal = {**TEXT, "num_layers": 2, "causal": True}
    text = randomize(TextTransformer(**{**causal, "pooling": "eos", "eos_id": 10}))
    ids = np.array([[1, 2, 10, 3, 4, 10], [1, 2, 10, 7, 7, 7]])
    vectors = numpy(text(ids))
    assert_close(vectors[0], vectors[1], 1e-6)
    highest = TextTransformer(**{**causal, "pooling": "argmax"})
    highest.set_weights(text.get_weights())
    assert_close(highest(ids), vectors, 1e-6)


@pytest.fixture
def quick(request):
    """Eager steps on TensorFlow."""
    return None if ON_JAX else request.getfixturevalue("eager")


def test_a_frozen_image_tower_stays_as_it_was(quick):
    model = two_towers()
    model.image.trainable, before = False, arrays(model)
    model.compile(SGD(0.05))
    model.fit(pairs(5), batch_size=5, verbose=0)
    after = arrays(model)
    changed = {path for path, weight in before.items() if not np.array_equal(weight, after[path])}
    assert all(path.startswith(("text", "logit_factors")) for path in changed)
    assert {"text_projection/kernel", "text/token_embedding/table", "logit_factors/scale"} <= changed


@pytest.mark.slow
def test_a_file_keeps_the_towers_and_what_was_frozen(model, tmp_path):
    copy = ImageTextModel.from_config(model.get_config())
    copy.set_weights(model.get_weights())
    copy.image.trainable = False
    copy.save(tmp_path / "model.keras")
    loaded = read_model(tmp_path / "model.keras")
    assert not loaded.image.trainable_variables and loaded.text.trainable_variables
    batch = pairs(2)
    np.testing.assert_array_equal(numpy(loaded(batch)), numpy(model(batch)))
    image = keras_vit.from_pretrained(tmp_path / "model.keras")
    assert_close(image(batch["images"]), numpy(model.image(batch["images"])), 1e-6)
    finished = copy.finished()
    assert finished.image.trainable_variables
    assert_close(finished(batch), numpy(model(batch)), 1e-6)
