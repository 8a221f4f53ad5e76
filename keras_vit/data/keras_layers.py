"""Keras layers as functions of a seed: what they draw at random comes from it and from nothing else."""

import contextlib
import functools
import itertools
import pickle
import random

import keras
import numpy as np
import tensorflow as tf

STATE_THAT_DRAWS_NOTHING = ("ReadVariableOp", "Assert")


def apply_layer(layer, inputs, seed):
    """Call a layer as in training, with every draw of its seed generators a function of `seed`.

    Keras's layers write to a variable with each draw, so that what they draw depends on how often,
    and by how many threads, they were called before. Here the n-th draw of a call is folded from
    the seed and n instead. The layer itself stays as it was.

    Args:
        layer: A Keras layer.
        inputs: What it takes, with a batch axis.
        seed: Two ints, or an integer tensor (2,).

    Returns:
        What the layer returns.

    Example:
        >>> noise = keras.layers.GaussianNoise(1.0)
        >>> first, second, other = (apply_layer(noise, tf.zeros((1, 3)), [0, n]) for n in (5, 5, 6))
        >>> bool(tf.reduce_all(first == second)), bool(tf.reduce_all(first == other))
        (True, False)
    """
    with _drawing_from(seed, layer):
        return layer(inputs, training=True)


def apply_rand_augment(layer, images, seed):
    """What `apply_layer` returns for `keras.layers.RandAugment`, computing the chosen changes alone.

    The layer computes each of its eleven changes and drops all but one, for each of its rounds.

    Args:
        layer: `keras.layers.RandAugment`.
        images: float32 (batch, height, width, 3) in the layer's `value_range`; all of a batch get the
            same kinds of changes.
        seed: As in `apply_layer`.

    Returns:
        float32, the shape of `images`.

    Example:
        >>> layer = keras.layers.RandAugment(num_ops=2, factor=0.5)
        >>> apply_rand_augment(layer, tf.zeros((1, 16, 16, 3)), [0, 5]).shape
        TensorShape([1, 16, 16, 3])
    """
    with _drawing_from(seed, layer):
        if not layer.built:
            layer.build(images.shape)
        drawn = layer.get_random_transformation(images)
    changes = [(getattr(layer, name), how) for name, how in drawn["transforms"].items()]
    for chosen in tf.unstack(drawn["layer_idxes"], layer.num_ops):
        branches = [functools.partial(change.transform_images, images, how) for change, how in changes]
        images = tf.ensure_shape(tf.switch_case(chosen, branches), images.shape)
    return images


def is_exact(layer):
    """Whether `apply_layer` makes a layer a function of its inputs and the seed.

    It does not where the layer draws from elsewhere: `tf.random`, a generator of TensorFlow, Keras's
    global one, or Python, at each call or, as `keras.layers.AugMix`, once for all.

    Args:
        layer: A Keras layer that takes images.

    Example:
        >>> is_exact(keras.layers.RandomRotation(0.1))
        True
    """

    def apply(images, seed):
        return apply_layer(layer, images, seed)

    inputs = tf.TensorSpec((1, 32, 32, 3)), tf.TensorSpec((2,), tf.int64)
    before = _state_of_python()
    operations = tf.function(apply).get_concrete_function(*inputs).graph.get_operations()
    if _state_of_python() != before:
        return False
    return not any(op.op_def.is_stateful and op.type not in STATE_THAT_DRAWS_NOTHING for op in operations)


def _state_of_python():
    """What Python and NumPy would draw next."""
    return pickle.dumps((random.getstate(), np.random.get_state()))


@contextlib.contextmanager
def _drawing_from(seed, layer):
    draws = itertools.count()
    seed = tf.cast(seed, tf.int64)
    generators = _seed_generators(layer)
    for generator in generators:
        generator.next = lambda ordered=True: tf.random.fold_in(seed, next(draws))
    try:
        yield
    finally:
        for generator in generators:
            del generator.next  # the class's own again


def _seed_generators(layer):
    """All seed generators that a layer holds, itself, in its layers or in other attributes."""
    found, seen, todo = [], set(), [layer]
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, keras.random.SeedGenerator):
            found.append(value)
        elif isinstance(value, dict):
            todo += value.values()
        elif isinstance(value, list | tuple | set):
            todo += value
        elif isinstance(value, keras.Layer):
            todo += vars(value).values()
    return found
