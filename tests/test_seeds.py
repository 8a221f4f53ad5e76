import keras
import numpy as np
import pytest
from reference.comparing import numpy

from keras_vit.layers import standard_block
from keras_vit.seeds import override_seeds, replay_seeds

ONES = np.ones((4, 5, 12), "float32")


def numbered(start=0):
    return lambda number, usual: np.array([start, number], "uint32")


def block(**options):
    rates = {"dropout_rate": 0.5, "stochastic_depth_rate": 0.3}
    layer = standard_block(3, 20, **rates, **options)
    layer.build(ONES.shape)
    return layer


def states(layer):
    generators = {id(g): g for part in layer._flatten_layers() for g in part._seed_generators}
    return [numpy(generator.state).tolist() for generator in generators.values()]


def test_every_random_operation_has_its_own_number():
    numbers = []

    def next_seed(number, usual):
        numbers.append(number)
        return np.array([0, number], "uint32")

    layer = block()
    with override_seeds(layer, next_seed):
        layer(ONES, training=True)
    assert len(numbers) == len(set(numbers)) == 5  # three dropouts, one of them twice, and two branches
    assert {number // 1000 for number in numbers} == set(range(len(states(layer))))


def test_the_state_of_the_generators_does_not_change():
    layer = block()
    before = states(layer)
    with override_seeds(layer, numbered()):
        layer(ONES, training=True)
    assert states(layer) == before
    layer(ONES, training=True)
    assert states(layer) != before


def test_afterwards_the_generators_are_restored():
    dropout = keras.layers.Dropout(0.5)
    with override_seeds(dropout, numbered()):
        with pytest.raises(KeyError), override_seeds(dropout, numbered(7)):
            inner = numpy(dropout(ONES, training=True))
            raise KeyError
        outer = numpy(dropout(ONES, training=True))
    for seed, expected in ((7, inner), (0, outer)):
        with override_seeds(dropout, numbered(seed)):
            np.testing.assert_array_equal(numpy(dropout(ONES, training=True)), expected)
    assert (inner != outer).any()
    assert "next" not in vars(dropout.seed_generator)


def test_a_replayed_function_repeats_its_random_numbers():
    dropout = keras.layers.Dropout(0.5)
    function = replay_seeds(dropout, lambda x: [dropout(x, training=True) for _ in range(2)])
    first, second = (list(map(numpy, function(ONES))) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert (first[0] != first[1]).any()
    other = replay_seeds(dropout, lambda x: dropout(x, training=True))
    assert (numpy(other(ONES)) != first[0]).any()
