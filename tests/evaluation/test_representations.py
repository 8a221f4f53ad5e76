import keras
import numpy as np
import pytest
from made.devices import devices
from made.photos import photo, waves
from made.sampling import some
from reference.comparing import assert_close, numpy
from reference.small import small

from keras_vit.data.samples import Samples
from keras_vit.evaluation.representations import representations

pytestmark = pytest.mark.usefixtures("eager")


@pytest.mark.parametrize("num_classes", some([5, None], 2))
def test_the_features_are_the_models_representation_in_order(num_classes, dataset):
    model = small(num_layers=1, representation_size=9, num_classes=num_classes)
    samples = dataset.split("test")
    features, labels = representations(model, samples, 4)
    images = model.preprocessing(list(samples.images))
    assert_close(features, numpy(model.feature_extractor(["representation"])(images)["representation"]), 1e-5)
    assert features.shape == (9, 9) and features.dtype == "float32"
    assert labels.tolist() == list(samples.labels)


def test_without_a_pooling_the_features_are_the_mean_of_the_patch_tokens(dataset):
    model = small(num_layers=1, pooling=None, class_token=True, num_registers=2)
    samples = dataset.split("test")
    tokens = numpy(model.feature_extractor(["tokens"])(model.preprocessing(list(samples.images)))["tokens"])
    assert_close(representations(model, samples)[0], tokens[:, 3:].mean(1), 1e-5)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's replicas")
def test_a_model_on_several_replicas_has_a_feature_for_each_image(dataset):
    with devices(2).scope():
        model = small(num_layers=1, num_classes=None)
    samples = dataset.split("test")
    expected = model(model.preprocessing(list(samples.images)), training=False)
    assert_close(representations(model, samples)[0], numpy(expected), 1e-5)


def test_a_model_for_any_size_has_a_feature_for_each_of_images_of_several_sizes():
    model = small(num_layers=1, image_size=(None, None), pooling="gap")
    images = tuple(photo(1, "PNG", waves(*size)) for size in ((16, 24), (32, 16), (16, 16)))
    features, labels = representations(model, Samples(images, (0, 1, 2)), 2)
    expected = [
        numpy(model.feature_extractor(["pooled"])(model.preprocessing([one]))["pooled"]) for one in images
    ]
    assert_close(features, np.concatenate(expected), 1e-5)
    assert labels.tolist() == [0, 1, 2]
