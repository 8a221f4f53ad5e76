"""No warning of TensorFlow about retracing where several models, sizes and batches meet in a process."""

import keras
import numpy as np
import pytest
from made.tracing import tracing_warnings
from reference.small import one_block

import keras_vit
from keras_vit.data.datasets import load_dataset
from keras_vit.evaluation import representations

pytestmark = pytest.mark.tensorflow_only("other backends do not trace")


@pytest.fixture
def warned():
    with tracing_warnings() as texts:
        yield texts


def test_the_warning_is_there_if_one_function_is_traced_too_often(warned):
    for _ in range(5):
        layers = [keras.layers.Input((1,)), keras.layers.Dense(1)]
        keras.Sequential(layers).predict_on_batch(np.zeros((1, 1)))
    assert [text for text in warned if "5 out of the last 5 calls" in text]


@pytest.mark.slow
def test_several_models_classify_without_a_warning(warned):
    for _ in range(5):
        one_block().classify(np.zeros((1, 20, 20, 3), "uint8"))
    assert warned == []


@pytest.mark.slow
def test_batches_and_images_of_several_sizes_are_computed_without_a_warning(warned):
    model = one_block(image_size=(None, None), position_embedding="sincos2d")
    for count in range(1, 6):
        model.classify(np.zeros((count, 16, 8 * count, 3), "uint8"))
        keras_vit.dense_features(model, np.zeros((1, 16, 8 * count, 3), "uint8"))
    assert warned == []


@pytest.mark.slow
def test_features_of_several_models_are_computed_without_a_warning(warned):
    samples = load_dataset("digits").split("test").take(range(3))
    for _ in range(3):
        representations(one_block(), samples, batch_size=2)
    assert warned == []
