"""Replace the seeds of a layer's random numbers while a block of code runs."""

import contextlib
import functools
import itertools


@contextlib.contextmanager
def override_seeds(layer, next_seed):
    """A context in which the seed generators of a layer, and of those within it, return other seeds.

    Args:
        layer: A Keras layer or model.
        next_seed: A function (number, default) → seed, called for each random operation. The numbers are
            0, 1, 2, … for the first generator, 1000, 1001, … for the second, and so on; `default()` returns
            the seed that the generator would have returned.

    Example:
        >>> dropout = keras.layers.Dropout(0.5)
        >>> with override_seeds(dropout, lambda number, default: np.array([number, 7], "uint32")):
        ...     first = dropout(np.ones((1, 8)), training=True)
        >>> with override_seeds(dropout, lambda number, default: np.array([number, 7], "uint32")):
        ...     second = dropout(np.ones((1, 8)), training=True)
        >>> bool(keras.ops.all(first == second))
        True
    """
    parts = layer._flatten_layers()
    generators = {id(generator): generator for part in parts for generator in part._seed_generators}
    defaults = [(generator, generator.next) for generator in generators.values()]
    overridden = [generator for generator, _ in defaults if "next" in vars(generator)]  # by an outer context
    for index, (generator, default) in enumerate(defaults):
        generator.next = functools.partial(_next, itertools.count(1000 * index), next_seed, default)
    try:
        yield
    finally:
        for generator, default in defaults:
            if generator in overridden:
                generator.next = default
            else:
                del generator.next


def _next(numbers, next_seed, default, ordered=True):
    return next_seed(next(numbers), default)


def replay_seeds(layer, function):
    """`function`, but with every call the layer uses the seeds of the first call.

    For `keras.remat`, whose second computation has to repeat the first.

    Example:
        >>> dropout = keras.layers.Dropout(0.5)
        >>> function = replay_seeds(dropout, lambda x: dropout(x, training=True))
        >>> x = np.ones((1, 8))
        >>> bool(keras.ops.all(function(x) == function(x)))
        True
    """
    seeds = {}

    def next_seed(number, default):
        if number not in seeds:
            seeds[number] = default()
        return seeds[number]

    def replayed(*args):
        with override_seeds(layer, next_seed):
            return function(*args)

    return replayed
