import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data.keras_layers import apply_layer, apply_rand_augment, is_exact

IMAGES = tf.constant(np.random.default_rng(0).uniform(0, 255, (1, 24, 24, 3)), tf.float32)
LAYERS = {
    "Dropout": {"rate": 0.5},
    "GaussianNoise": {"stddev": 0.5},
    "RandAugment": {},
    "RandomBrightness": {"factor": 0.3},
    "RandomColorDegeneration": {"factor": 0.5},
    "RandomColorJitter": {"brightness_factor": 0.3, "hue_factor": 0.3},
    "RandomContrast": {"factor": 0.3},
    "RandomCrop": {"height": 16, "width": 16},
    "RandomElasticTransform": {"factor": 1.0},
    "RandomErasing": {"factor": 1.0},
    "RandomFlip": {},
    "RandomGaussianBlur": {"factor": 1.0},
    "RandomGrayscale": {"factor": 0.5},
    "RandomHue": {"factor": 0.3},
    "RandomInvert": {"factor": 1.0},
    "RandomPerspective": {"factor": 1.0},
    "RandomPosterization": {"factor": 3},
    "RandomRotation": {"factor": 0.3},
    "RandomSaturation": {"factor": 0.3},
    "RandomSharpness": {"factor": 0.3},
    "RandomShear": {"x_factor": 0.3, "y_factor": 0.3},
    "RandomTranslation": {"height_factor": 0.3, "width_factor": 0.3},
    "RandomZoom": {"height_factor": 0.3},
    "Solarization": {"addition_factor": 0.5, "threshold_factor": 0.5},
}


def drawn(layer, numbers, threads=tf.data.AUTOTUNE):
    """What the layer makes of the images, in the threads of a pipeline."""
    made = tf.data.Dataset.from_tensor_slices(np.asarray(numbers, "int64")).map(
        lambda i: apply_layer(layer, IMAGES, tf.stack([3, i])), threads
    )
    return np.stack([*made.as_numpy_iterator()])


@pytest.mark.parametrize("name", LAYERS)
def test_a_keras_layer_becomes_a_function_of_the_seed(name):
    layer = getattr(keras.layers, name)(**LAYERS[name])
    first = drawn(layer, range(24))
    np.testing.assert_array_equal(drawn(layer, range(24)), first)
    np.testing.assert_array_equal(drawn(layer, range(12, 24), threads=1), first[12:])
    assert len({images.tobytes() for images in first}) >= 2
    assert is_exact(layer)


def test_a_layer_built_anew_draws_the_same():
    layers = [keras.layers.RandomRotation(0.3, seed=seed) for seed in (None, None, 5)]
    first, *others = (drawn(layer, range(4)) for layer in layers)
    for other in others:
        np.testing.assert_array_equal(other, first)


def test_the_draws_of_one_call_differ():
    class Twice(keras.Layer):
        def __init__(self):
            super().__init__()
            self.parts = {"a": [keras.layers.GaussianNoise(1.0)], "b": (keras.layers.GaussianNoise(1.0),)}
            self.own = keras.random.SeedGenerator()

        def call(self, images, training=False):
            first = self.parts["a"][0](images, training=training)
            second = self.parts["b"][0](images, training=training)
            third, fourth = (images + keras.random.normal(images.shape, seed=self.own) for _ in range(2))
            return keras.ops.stack([first, second, third, fourth])

    layer = Twice()
    assert is_exact(layer)
    draws = drawn(layer, [0])[0]
    assert len({draw.tobytes() for draw in draws}) == 4
    np.testing.assert_array_equal(draws, drawn(layer, [0])[0])


def test_the_layer_stays_as_it_was():
    layer, twin = (keras.layers.RandAugment(seed=3) for _ in range(2))
    before = vars(layer.random_shear.generator).copy()
    apply_layer(layer, IMAGES, [0, 0])
    with pytest.raises(IndexError):
        apply_layer(layer, tf.zeros((2, 2)), [0, 0])
    assert vars(layer.random_shear.generator) == before
    assert layer.generator.state.numpy().tolist() == [3, 0]
    np.testing.assert_array_equal(layer(IMAGES, training=True), twin(IMAGES, training=True))


def test_rand_augment_chooses_and_changes_as_the_layer_itself():
    layer = keras.layers.RandAugment(num_ops=2, factor=0.5)

    @tf.function
    def both(seed):
        return apply_layer(layer, IMAGES, seed), apply_rand_augment(layer, IMAGES, seed)

    results = set()
    for number in range(60):
        whole, chosen = both(tf.constant([1, number], tf.int64))
        np.testing.assert_array_equal(chosen, whole)
        results.add(chosen.numpy().tobytes())
    assert len(results) > 50


class FromTensorFlow(keras.Layer):
    def call(self, images):
        return images + tf.random.normal(tf.shape(images))


class FromKerass(keras.Layer):
    """Draws from Keras's global generator."""

    def call(self, images):
        return images + keras.random.normal(keras.ops.shape(images))


class FromAGenerator(keras.Layer):
    def __init__(self):
        super().__init__()
        self.generator = tf.random.Generator.from_seed(0)

    def call(self, images):
        return images + self.generator.normal(tf.shape(images))


class FromPython(keras.Layer):
    def call(self, images):
        noise = tf.numpy_function(lambda: np.random.rand(24, 24, 3).astype("float32"), [], tf.float32)
        return tf.ensure_shape(images + noise, images.shape)


class FromPythonOnce(keras.Layer):
    def call(self, images):
        return images + random.random()


class FromNumPyOnce(keras.Layer):
    def call(self, images):
        return images + np.random.rand()


class FromABranch(keras.Layer):
    def call(self, images):
        return tf.cond(tf.reduce_mean(images) > 0, lambda: images * tf.random.uniform(()), lambda: images)


@pytest.mark.parametrize(
    "layer",
    [
        FromTensorFlow,
        FromKerass,
        FromAGenerator,
        FromPython,
        FromPythonOnce,
        FromNumPyOnce,
        FromABranch,
        keras.layers.AugMix,
    ],
)
def test_draws_from_elsewhere_are_found(layer):
    assert not is_exact(layer())
    assert drawn(layer(), [0]).shape == (1, *IMAGES.shape)


@pytest.mark.parametrize(
    "layer", [keras.layers.Rescaling(2.0), keras.layers.Resizing(8, 8), keras.layers.Equalization()]
)
def test_a_layer_that_draws_nothing_is_exact(layer):
    assert is_exact(layer)


def test_layers_of_keras_cv_run_and_are_told_apart():
    keras_cv = pytest.importorskip("keras_cv", reason="keras_cv is not among the requirements")
    hue = keras_cv.layers.RandomHue(0.5, value_range=(0, 255))
    assert not is_exact(hue) and is_exact(keras_cv.layers.Grayscale(3))
    made = drawn(hue, range(6))
    assert made.shape == (6, *IMAGES.shape) and len({images.tobytes() for images in made}) > 1
