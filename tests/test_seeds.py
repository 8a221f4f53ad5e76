import keras
import numpy as np
import pytest
from reference.comparing import numpy

from keras_vit.layers import EncoderBlock
from keras_vit.seeds import override_seeds, replay_seeds

ONES = np.ones((4, 5, 12), "float32")


def numbered(start=0):
    return lambda number, usual: np.array([start, number], "uint32")


def block(**options):
    layer = EncoderBlock(3, 20, **{"dropout_rate": 0.5, "stochastic_depth_rate": 0.3, **options})
    layer.build(ONES.shape)
    return layer


def states(layer):
    generators = {id(g): g for part in layer._flatten_layers() for g in part._seed_generators}
    return [numpy(generator.state).tolist() for generator in generators.values()]


def test_what_is_drawn_comes_from_the_seeds_that_are_given():
    layer = block()
    with override_seeds(layer, numbered()):
        first = numpy(layer(ONES, training=True))
    layer(ONES, training=True)
    with override_seeds(layer, numbered()):
        again = numpy(layer(ONES, training=True))
    with override_seeds(layer, numbered(1)):
        other = numpy(layer(ONES, training=True))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_every_draw_has_a_number_of_its_own():
    asked = []

    def next_seed(number, usual):
        asked.append(number)
        return np.array([0, number], "uint32")

    layer = block()
    with override_seeds(layer, next_seed):
        layer(ONES, training=True)
    assert len(asked) == len(set(asked)) == 5  # three dropouts, of which one twice, and two branches
    assert {number // 1000 for number in asked} == set(range(len(states(layer))))


def test_within_no_state_moves_and_afterwards_all_is_as_it_was():
    layer = block()
    before = states(layer)
    with override_seeds(layer, numbered()):
        layer(ONES, training=True)
    assert states(layer) == before
    layer(ONES, training=True)
    assert states(layer) != before


@pytest.mark.parametrize("inside", [override_seeds, "error"])
def test_afterwards_the_generators_are_their_own_again(inside):
    dropout = keras.layers.Dropout(0.5)
    if inside == "error":
        with pytest.raises(KeyError), override_seeds(dropout, numbered()):
            raise KeyError
    else:
        with override_seeds(dropout, numbered()):
            with override_seeds(dropout, numbered(7)):
                inner = numpy(dropout(ONES, training=True))
            outer = numpy(dropout(ONES, training=True))
        with override_seeds(dropout, numbered(7)):
            np.testing.assert_array_equal(numpy(dropout(ONES, training=True)), inner)
        with override_seeds(dropout, numbered()):
            np.testing.assert_array_equal(numpy(dropout(ONES, training=True)), outer)
        assert (inner != outer).any()
    assert "next" not in vars(dropout.seed_generator)


def test_a_function_can_be_computed_again_with_the_same_draws():
    dropout = keras.layers.Dropout(0.5)
    function = replay_seeds(dropout, lambda x: dropout(x, training=True))
    first, second = numpy(function(ONES)), numpy(function(ONES))
    np.testing.assert_array_equal(first, second)
    anew = replay_seeds(dropout, lambda x: dropout(x, training=True))
    assert (numpy(anew(ONES)) != first).any()


def test_two_draws_of_one_computation_differ():
    dropout = keras.layers.Dropout(0.5)
    function = replay_seeds(dropout, lambda x: (dropout(x, training=True), dropout(x, training=True)))
    one, other = map(numpy, function(ONES))
    assert (one != other).any()
