"""Models of raw images."""

import keras
import numpy as np
import pytest
from reference.comparing import assert_close, numpy, randomize
from reference.small import DECODER, PACKED, SMALL, one_block

import keras_vit
from keras_vit.training import compile_model

PHOTOS = np.random.default_rng(1).integers(0, 256, (4, 30, 40, 3)).astype("uint8")
BARE = {**SMALL, "num_classes": None}
LABELS = np.arange(4) % 3


@pytest.fixture
def classifier():
    return randomize(one_block())


@pytest.fixture
def whole(classifier):
    return classifier.with_preprocessing()


def test_raw_images_have_the_probabilities_of_classify(classifier, whole):
    logits = np.asarray(whole.predict(PHOTOS, verbose=0), "float64")
    found = np.exp(logits - logits.max(1, keepdims=True))
    found /= found.sum(1, keepdims=True)
    expected = [dict(row) for row in classifier.classify(PHOTOS, top=logits.shape[1])]
    assert_close(found, np.array([[row[str(i)] for i in range(logits.shape[1])] for row in expected]), 1e-5)


def test_floats_in_a_range_have_the_outputs_of_their_pixels(classifier, whole):
    of_floats = classifier.with_preprocessing(value_range=(-1, 1))
    found = of_floats.predict((PHOTOS / 127.5 - 1).astype("float32"), verbose=0)
    assert_close(found, whole.predict(PHOTOS, verbose=0), 1e-5)


def test_fit_trains_the_model_as_it_would_be_trained_on_its_input(classifier, eager):
    compile_model(classifier, "finetune", epochs=1, steps_per_epoch=2, base_lr=0.1, warmup_steps=0)
    whole = classifier.with_preprocessing()
    before = [numpy(weight) for weight in classifier.weights]
    whole.fit(PHOTOS, LABELS, batch_size=2, epochs=1, shuffle=False, verbose=0)
    trained = [numpy(weight) for weight in classifier.weights]
    assert any((x != y).any() for x, y in zip(before, trained))
    for weight, value in zip(classifier.weights, before):
        weight.assign(value)
    classifier.fit(classifier.preprocessing(PHOTOS), LABELS, batch_size=2, epochs=1, shuffle=False, verbose=0)
    for found, expected in zip(trained, classifier.weights):
        assert_close(found, numpy(expected), 1e-4)
    found = whole.evaluate(PHOTOS, LABELS, verbose=0, return_dict=True)
    expected = classifier.evaluate(classifier.preprocessing(PHOTOS), LABELS, verbose=0, return_dict=True)
    assert found == pytest.approx(expected, rel=1e-4)


def test_the_loss_is_scaled_as_for_the_model_in_it(tmp_path):
    classifier = one_block(dtype="mixed_float16")
    compile_model(classifier, "finetune", total_steps=2)
    copied, own = classifier.with_preprocessing(), classifier.with_preprocessing()
    own.compile("sgd", "mse")
    own.save(tmp_path / "whole.keras")
    for whole in (copied, own, keras.saving.load_model(tmp_path / "whole.keras")):
        assert isinstance(whole.optimizer, keras.optimizers.LossScaleOptimizer)


def test_labels_that_are_no_classes_are_refused(whole):
    whole.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="^expected labels from 0 to 4, for a model of 5 classes; got"):
        whole.fit(PHOTOS, LABELS + 4, verbose=0)


def test_a_file_has_the_model_and_its_preprocessing(whole, tmp_path):
    whole.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    whole.save(tmp_path / "whole.keras")
    loaded = keras.saving.load_model(tmp_path / "whole.keras", safe_mode=True)
    assert loaded.compiled
    np.testing.assert_array_equal(loaded.predict(PHOTOS, verbose=0), whole.predict(PHOTOS, verbose=0))


@pytest.mark.tensorflow_only("Keras exports from its TensorFlow backend")
def test_keras_exports_it_with_its_preprocessing(whole, tmp_path):
    import tensorflow as tf

    whole.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    assert_close(served.serve(tf.constant(PHOTOS)), whole.predict(PHOTOS, verbose=0), 1e-5)


@pytest.mark.parametrize("call", ["predict", "evaluate", "__call__"])
def test_floats_are_refused_in_place_of_being_rounded(whole, call):
    whole.compile("sgd", "mse")
    with pytest.raises(ValueError, match="^expected uint8 images, or value_range=.*; got float32$"):
        getattr(whole, call)((PHOTOS / 255).astype("float32"))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: keras_vit.PackedVisionTransformer(**{**SMALL, **PACKED}), "packs patches"),
        (lambda: keras_vit.MaskedAutoencoder(BARE, **DECODER), "got MaskedAutoencoder: map"),
        (
            lambda: keras_vit.ImageSegmenter(BARE, 3, head="mask", query_blocks=1),
            "got ImageSegmenter: map its preprocessing over the data",
        ),
    ],
)
def test_models_that_need_more_than_images_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make().with_preprocessing()
