"""Keras layers as functions of a seed, which replaces the state of their random generators."""

import contextlib
import functools
import itertools
import pickle
import random

import numpy as np
import tensorflow as tf

from keras_vit.seeds import override_seeds

DETERMINISTIC_STATEFUL_OPS = ("ReadVariableOp", "Assert")


def apply_layer(layer, inputs, seed):
    """Call a layer as in training, with all its random numbers a function of `seed`.

    Keras's seed generators update a variable with each use, so that their seeds depend on how often, and
    by how many threads, they were used before. Here the n-th seed of a call is folded from `seed` and n.
    The layer is not changed.

    Args:
        layer: A Keras layer.
        inputs: Its inputs, with a batch axis.
        seed: Two ints, or an integer tensor (2,).

    Returns:
        The layer's outputs.

    Example:
        >>> noise = keras.layers.GaussianNoise(1.0)
        >>> first, second, other = (apply_layer(noise, tf.zeros((1, 3)), [0, n]) for n in (5, 5, 6))
        >>> bool(tf.reduce_all(first == second)), bool(tf.reduce_all(first == other))
        (True, False)
    """
    with _seeds_from(seed, layer):
        return layer(inputs, training=True)


def apply_rand_augment(layer, images, seed):
    """The result of `apply_layer` for `keras.layers.RandAugment`, computing only the chosen operations.

    The layer itself computes each of its eleven operations in each round and discards all but one.

    Args:
        layer: `keras.layers.RandAugment`.
        images: float32 (batch, height, width, 3) in the layer's `value_range`; all of a batch get the
            same operations.
        seed: As for `apply_layer`.

    Returns:
        float32, the shape of `images`.

    Example:
        >>> layer = keras.layers.RandAugment(num_ops=2, factor=0.5)
        >>> apply_rand_augment(layer, tf.zeros((1, 16, 16, 3)), [0, 5]).shape
        TensorShape([1, 16, 16, 3])
    """
    with _seeds_from(seed, layer):
        if not layer.built:
            layer.build(images.shape)
        sampled = layer.get_random_transformation(images)
    operations = [(getattr(layer, name), how) for name, how in sampled["transforms"].items()]
    for chosen in tf.unstack(sampled["layer_idxes"], layer.num_ops):
        branches = [functools.partial(each.transform_images, images, how) for each, how in operations]
        images = tf.ensure_shape(tf.switch_case(chosen, branches), images.shape)
    return images


def is_exact(layer):
    """Whether `apply_layer` makes a layer a function of its inputs and the seed.

    It does not where the layer has other random state: `tf.random`, a generator of TensorFlow, Keras's
    global one, or Python's, at each call or, as `keras.layers.AugMix`, once when it is traced.

    Args:
        layer: A Keras layer of images.

    Example:
        >>> is_exact(keras.layers.RandomRotation(0.1))
        True
    """

    def apply(images, seed):
        return apply_layer(layer, images, seed)

    inputs = tf.TensorSpec((1, 32, 32, 3)), tf.TensorSpec((2,), tf.int64)
    before = _python_random_state()
    operations = tf.function(apply).get_concrete_function(*inputs).graph.get_operations()
    if _python_random_state() != before:
        return False
    return not any(op.op_def.is_stateful and op.type not in DETERMINISTIC_STATEFUL_OPS for op in operations)


def _python_random_state():
    """The state of the generators of Python and NumPy."""
    return pickle.dumps((random.getstate(), np.random.get_state()))


@contextlib.contextmanager
def _seeds_from(seed, layer):
    """A context in which the layer's seeds are folded from a seed, in the order of their use."""
    counter, seed = itertools.count(), tf.cast(seed, tf.int64)
    # On another backend than TensorFlow, Keras's layers have a second generator for tf.data.
    parts = [part for part in layer._flatten_layers() if hasattr(part, "_get_seed_generator")]
    for part in parts:
        vars(part)["_get_seed_generator"] = lambda backend=None, part=part: part.generator
    try:
        with override_seeds(layer, lambda number, default: tf.random.fold_in(seed, next(counter))):
            yield
    finally:
        for part in parts:
            del vars(part)["_get_seed_generator"]
