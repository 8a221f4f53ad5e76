import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from made.tables import by_table

from keras_vit.data.augmentation.keras_layers import apply_layer, apply_rand_augment, is_exact

IMAGES = tf.constant(np.random.default_rng(0).uniform(0, 255, (1, 24, 24, 3)), tf.float32)
LAYERS = {
    "GaussianNoise": {"stddev": 0.5},
    "RandomCrop": {"height": 16, "width": 16},
    "RandomRotation": {"factor": 0.3},
}


def applied(layer, numbers, threads=tf.data.AUTOTUNE):
    """The layer's outputs for the images with seeds of these numbers, in the threads of a pipeline."""
    outputs = tf.data.Dataset.from_tensor_slices(np.asarray(numbers, "int64")).map(
        lambda i: apply_layer(layer, IMAGES, tf.stack([3, i])), threads
    )
    return np.stack([*outputs.as_numpy_iterator()])


@pytest.mark.parametrize("name", LAYERS)
def test_a_keras_layer_becomes_a_function_of_the_seed(name):
    layer = getattr(keras.layers, name)(**LAYERS[name])
    first = applied(layer, range(24))
    np.testing.assert_array_equal(applied(layer, range(12, 24), threads=1), first[12:])
    assert len({images.tobytes() for images in first}) >= 2
    assert is_exact(layer)


def test_the_random_numbers_of_one_call_differ():
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
    outputs = applied(layer, [0])[0]
    assert len({output.tobytes() for output in outputs}) == 4
    np.testing.assert_array_equal(outputs, applied(layer, [0])[0])


def test_the_layer_is_not_changed():
    layer, twin = (keras.layers.RandAugment(seed=3) for _ in range(2))
    before = vars(layer.random_shear.generator).copy()
    apply_layer(layer, IMAGES, [0, 0])
    with pytest.raises(IndexError):
        apply_layer(layer, tf.zeros((2, 2)), [0, 0])
    assert vars(layer.random_shear.generator) == before
    np.testing.assert_array_equal(layer(IMAGES, training=True), twin(IMAGES, training=True))


@pytest.mark.slow
def test_rand_augment_computes_what_the_layer_itself_does():
    layer = keras.layers.RandAugment(num_ops=1, factor=0.5)

    @tf.function
    def both(seed):
        return apply_layer(layer, IMAGES, seed), apply_rand_augment(layer, IMAGES, seed)

    results = set()
    for number in range(24):
        whole, chosen = both(tf.constant([1, number], tf.int64))
        np.testing.assert_array_equal(chosen, whole)
        results.add(chosen.numpy().tobytes())
    assert len(results) > 9


def noise_of_numpy(images):
    noise = tf.numpy_function(lambda: np.random.rand(24, 24, 3).astype("float32"), [], tf.float32)
    return tf.ensure_shape(images + noise, images.shape)


def noise_of_a_branch(images):
    return tf.cond(tf.reduce_mean(images) > 0, lambda: images * tf.random.uniform(()), lambda: images)


OTHERS = {
    "tf.random": lambda images: images + tf.random.normal(tf.shape(images)),
    "numpy": noise_of_numpy,
    "python, when traced": lambda images: images + random.random(),
    "a branch": noise_of_a_branch,
}


@by_table("name", OTHERS)
def test_other_random_state_is_found(name):
    class Other(keras.Layer):
        def call(self, images):
            return OTHERS[name](images)

    assert not is_exact(Other())
