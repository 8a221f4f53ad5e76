"""Where layers get their random numbers from, while a block of code runs."""

import contextlib


@contextlib.contextmanager
def draws_from(layer, next_seed):
    """Within, what the layer and those below it draw comes from `next_seed`.

    Args:
        layer: A Keras layer or model, whose `keras.random.SeedGenerator`s are meant.
        next_seed: A function (number of the draw, how it would have been drawn) → seed. The draws are
            numbered generator by generator, each having a thousand.

    Example:
        >>> dropout = keras.layers.Dropout(0.5)
        >>> with draws_from(dropout, lambda number, usual: np.array([number, 7], "uint32")):
        ...     first = dropout(np.ones((1, 8)), training=True)
        >>> with draws_from(dropout, lambda number, usual: np.array([number, 7], "uint32")):
        ...     second = dropout(np.ones((1, 8)), training=True)
        >>> bool(keras.ops.all(first == second))
        True
    """
    generators = {}
    for part in layer._flatten_layers():
        generators |= {id(generator): generator for generator in part._seed_generators}
    usual = [(generator, generator.next) for generator in generators.values()]
    patched = [generator for generator, _ in usual if "next" in vars(generator)]
    for place, (generator, next_usual) in enumerate(usual):
        generator.next = _next(range(1000 * place, 1000 * place + 1000), next_seed, next_usual)
    try:
        yield
    finally:
        for generator, next_usual in usual:
            if generator in patched:
                generator.next = next_usual
            else:
                del generator.next


def _next(numbers, next_seed, usual):
    numbers = iter(numbers)
    return lambda ordered=True: next_seed(next(numbers), usual)


def same_draws(layer, function):
    """`function`, but that each time it is called the layer draws what it drew the first time.

    For `keras.remat`, whose second computation has to repeat the first.
    """
    drawn = {}

    def next_seed(number, usual):
        if number not in drawn:
            drawn[number] = usual()
        return drawn[number]

    def repeated(*args):
        with draws_from(layer, next_seed):
            return function(*args)

    return repeated
