import keras
import numpy as np
import pytest
from made.tables import by_table
from reference.comparing import numpy
from scipy.optimize import linear_sum_assignment

from keras_vit.tasks.segmentation.matching import _by_loops, assign


@by_table("rows, columns", [(1, 1), (4, 7), (8, 8)])
def test_the_assignment_is_that_of_scipy(rows, columns, rng):
    costs = rng.standard_normal((12, rows, columns)).astype("float32")
    counts = rng.integers(0, rows + 1, 12)
    found = numpy(assign(costs, counts))
    for cost, count, row in zip(costs, counts, found):
        expected = linear_sum_assignment(cost[:count])[1]
        assert row.tolist() == [*expected, *[-1] * (rows - count)]


@pytest.mark.parametrize(
    "rows, columns", [(4, 7), *(pytest.param(*s, marks=pytest.mark.slow) for s in [(8, 8), (7, 4)])]
)
def test_the_loops_of_xla_assign_as_scipy_does(rows, columns, rng):
    costs, counts = rng.standard_normal((6, rows, columns)).astype("float32"), rng.integers(0, rows + 1, 6)
    costs[:3, :2, :3] = [[np.nan, np.inf, -np.inf]] * 2
    loops = _by_loops(keras.ops.convert_to_tensor(costs), keras.ops.convert_to_tensor(counts, "int32"))
    np.testing.assert_array_equal(numpy(loops), numpy(assign(costs, counts)))


def test_costs_that_are_not_finite_are_matched_last():
    costs = np.array([[[np.nan, 1.0, 5.0], [2.0, 1.0, np.inf]]])
    assert numpy(assign(costs, [2])).tolist() == [[1, 0]]


@pytest.mark.tensorflow_only("it compiles graphs or runs them")
@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_graphs_of_any_shape_call_scipy_unless_xla_compiles_them(jit_compile, rng):
    import tensorflow as tf

    signature = [tf.TensorSpec((None, None, None)), tf.TensorSpec((None,), tf.int32)]
    graph = tf.function(assign, input_signature=signature, jit_compile=jit_compile)
    calls = [op.type for op in graph.get_concrete_function().graph.get_operations()]
    assert ("PyFuncStateless" in calls) == (not jit_compile)
    for rows, columns in (2, 3), (3, 2):
        costs, counts = rng.standard_normal((2, rows, columns)).astype("float32"), np.array([1, 2], "int32")
        np.testing.assert_array_equal(graph(costs, counts), assign(costs, counts))
