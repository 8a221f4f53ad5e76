"""Detectors whose classes are the vectors of texts."""

import keras
import numpy as np
import pytest
from made.tables import by_table
from reference.comparing import arrays, assert_same_arrays, numpy, randomize
from reference.small import TEXT, compute, small

import keras_vit
from keras_vit.tasks.detection.words import most_distinct

IDS = [[3, 1, 0, 0, 0], [2, 7, 10, 0, 0], [0, 0, 0, 0, 0]]


def words(ids=IDS, **options):
    encoder = small(num_classes=None)
    text = {**TEXT, "causal": True, "pooling": "argmax"}
    options = {"merge_class_token": True, "query_size": 6, "text": text, "class_ids": ids, **options}
    return randomize(keras_vit.ObjectDetector(encoder, **options))


def lengths(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.fixture
def images(rng):
    return rng.standard_normal((2, 16, 16, 3)).astype("float32")


def test_logits_are_cosines_that_each_patch_shifts_and_scales(images):
    model = words()
    stages = compute(model, images, ["class_vectors", "merge_norm", "logits"])
    stages = {name: numpy(x) for name, x in stages.items()}
    patches = stages["merge_norm"]
    shift, scale = (
        patches @ numpy(layer.kernel) + numpy(layer.bias)
        for layer in map(model.get_layer, ("class_shift", "class_scale"))
    )
    cosines = lengths(stages["class_vectors"]) @ model.encode_text(np.array(IDS)).T
    expected = (cosines + shift) * np.where(scale > 0, scale + 1, np.exp(scale))
    np.testing.assert_allclose(stages["logits"][..., :2], expected[..., :2], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(stages["logits"][..., 2], -1e6)


@pytest.mark.slow
def test_a_saved_model_has_its_words(images, tmp_path):
    model = words(objectness=True)
    model.save(tmp_path / "model.keras")
    for again in (
        keras.saving.load_model(tmp_path / "model.keras"),
        keras_vit.from_pretrained(tmp_path / "model.keras"),
    ):
        assert_same_arrays(arrays(again), arrays(model))
        np.testing.assert_array_equal(numpy(again(images)), numpy(model(images)))


@pytest.mark.slow
def test_labels_make_a_detector_without_a_text_tower(images):
    model = words(IDS[:2])
    model.text_preprocessing = lambda texts: np.array([IDS[len(text)] for text in texts])
    found = model.with_labels({"one": ["", ""], "two": "a"})
    assert (found.class_names, found.text, found.query_size) == (("one", "two"), None, 6)
    np.testing.assert_allclose(numpy(found(images)), numpy(model(images)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(numpy(model.exported()(images)), numpy(model(images)), rtol=1e-4, atol=1e-5)


def test_the_text_tower_may_be_built_before():
    tower = keras_vit.TextTransformer(**{**TEXT, "causal": True, "pooling": "argmax"})
    assert words(text=tower).text is tower


def test_class_names_become_texts():
    prepare = lambda texts: np.array([[len(text)] * 5 for text in texts])  # noqa: E731
    named = words(None, class_names=("a_cat", "dog"), text_preprocessing=prepare)
    assert named.class_ids == ((5,) * 5, (3,) * 5) and not named.needs_texts
    assert words(None).class_ids == ((0,) * 5,)


def test_names_need_a_tokenizer():
    with pytest.raises(ValueError, match="class_names of a detector with a text tower need its tokenizer"):
        words(None, class_names=("a", "b"))


@pytest.mark.parametrize("train_text", [False, True])
def test_lora_leaves_a_frozen_text_tower(train_text, images):
    model = words(IDS[:2], objectness=True, train_text=train_text)
    of_text = {w.path for w in model.weights if w.path.startswith("text")}

    def trained():
        return {w.path for w in model.trainable_weights}

    assert of_text <= trained() if train_text else not of_text & trained()
    model.enable_lora(2)
    assert any("text" in path for path in trained()) == train_text
    model.merge_lora()
    assert of_text <= trained() if train_text else not of_text & trained()
    assert not any("objectness" in path for path in trained())


def test_a_model_without_words_detects_nothing(images):
    model = words(None)
    assert model.needs_texts
    for use in (lambda: model.detect(images, value_range=(-9, 9)), model.exported, model.compile):
        with pytest.raises(ValueError, match="^this model has no classes yet; give it"):
            use()


def test_objectness_is_a_stage_that_does_not_change_the_outputs(images):
    model = words(objectness=True)
    assert compute(model, images, ["objectness"])["objectness"].shape == (2, 4, 1)
    assert not model.get_layer("objectness_head").trainable_variables
    same = words()
    same.set_weights([w for w, v in zip(model.get_weights(), model.weights) if "objectness" not in v.path])
    np.testing.assert_array_equal(numpy(same(images)), numpy(model(images)))


@pytest.mark.slow
@pytest.mark.parametrize("objectness", [False, True])
def test_image_queries_find_the_patch_they_come_from(objectness, rng):
    model = words(IDS[:2], objectness=objectness)
    pixels = rng.integers(0, 256, (2, 16, 16, 3), "uint8")
    queries = model.image_queries(pixels)
    stages = compute(model, model.preprocessing(pixels), ["class_vectors", "boxes"])
    for query, vectors in zip(queries, numpy(stages["class_vectors"])):
        assert np.abs(vectors - query).max(axis=-1).min() < 1e-5
    found = model.with_queries(["first", "second"], queries)
    assert found(model.preprocessing(pixels)).shape == (2, 4, 6)


def test_the_most_distinct_patch_fills_the_image():
    boxes = np.array([[0.5, 0.5, 1.0, 1.0], [0.5, 0.5, 1.0, 0.9], [0.5, 0.5, 0.3, 0.3], [0.5, 0.5, 1.0, 0.7]])
    vectors = np.array([[1.0, 1.0], [0.5, -1.0], [-9.0, -9.0], [-9.0, 5.0]])
    assert most_distinct(boxes, vectors) == 0
    assert most_distinct(boxes, vectors[[1, 0, 2, 3]]) == 1


@by_table(
    "options, message",
    [
        ({"query_size": None}, "needs query_size, and class_ids of all classes; got query_size=None"),
        ({"num_classes": 2}, "query_size=6, num_classes=2 and ids of 3$"),
        (
            {"ids": [[1, 2]]},
            r"class_ids of the shape \(classes, 5\) as ints; got int64 of the shape \(1, 2\)",
        ),
        ({"ids": [[1.0] * 5]}, "as ints; got float64"),
        ({"head_activation": "tanh"}, "head_activation must be"),
    ],
)
def test_wrong_words_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        words(**options)


def test_labels_need_a_text_tower_and_queries_their_size():
    fixed = words().with_queries(["a"], np.ones((1, 6)))
    with pytest.raises(ValueError, match="^with_labels needs a detector with a text tower, such as OWL-ViT$"):
        fixed.with_labels(["cat"])
    message = r"and 2 vectors of this size; got query_size=6 and vectors of the shape \(2, 5\)"
    with pytest.raises(ValueError, match=message):
        fixed.with_queries(["a", "b"], np.ones((2, 5)))
    linear = randomize(keras_vit.ObjectDetector(small(num_classes=None), 3))
    with pytest.raises(ValueError, match="^image queries need a detector whose classes have vectors"):
        linear.image_queries(np.zeros((1, 16, 16, 3)))
