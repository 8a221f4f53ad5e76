import numpy as np
import pytest
from reference.comparing import numpy

from keras_vit.layers import GridToTokens, TokensToGrid


@pytest.mark.parametrize("prefix", [0, 1, 4])
def test_a_grid_is_flattened_row_by_row_and_restored_without_the_prefix(prefix, rng):
    grid = rng.standard_normal((2, 3, 4, 5)).astype("float32")
    tokens = numpy(GridToTokens()(grid))
    np.testing.assert_array_equal(tokens[:, 6], grid[:, 1, 2])
    tokens = np.concatenate([np.full((2, prefix, 5), 9.0, "float32"), tokens], 1)
    np.testing.assert_array_equal(numpy(TokensToGrid()(tokens, np.zeros((2, 3, 4, 1)))), grid)


@pytest.mark.tensorflow_only("JAX knows every size when it compiles")
def test_sizes_known_only_in_the_graph_give_the_same(rng):
    import tensorflow as tf

    grid = rng.standard_normal((2, 3, 4, 5)).astype("float32")
    there_and_back = tf.function(
        lambda x: TokensToGrid()(GridToTokens()(x), x), input_signature=[tf.TensorSpec((None,) * 3 + (5,))]
    )
    np.testing.assert_array_equal(there_and_back(grid), grid)


def test_output_shapes_may_be_unknown():
    assert GridToTokens().compute_output_shape((None, 3, 4, 5)) == (None, 12, 5)
    assert GridToTokens().compute_output_shape((None, None, 4, 5)) == (None, None, 5)
    assert TokensToGrid().compute_output_shape((None, 13, 5), (None, 3, 4, 8)) == (None, 3, 4, 5)
