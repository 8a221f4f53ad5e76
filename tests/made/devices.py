"""Logical CPUs to train on, and images to train with."""

import keras
import numpy as np

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


def devices(count):
    """So many logical CPUs as replicas; the default strategy for none."""
    if not count:
        return tf.distribute.get_strategy()
    # TensorFlow's collectives allow one number of devices a process; the workers' tests use them.
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(count)], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def data(count, seed=3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 16, 16, 3)).astype("float32"), rng.integers(0, 5, count)
