import numpy as np
import pytest
from reference.comparing import numpy
from scipy.optimize import linear_sum_assignment

from keras_vit.tasks.segmentation.matching import assign


@pytest.mark.slow
@pytest.mark.parametrize("rows, columns", [(1, 1), (4, 7), (8, 8)])
def test_the_assignment_is_that_of_scipy(rows, columns, rng):
    costs = rng.standard_normal((12, rows, columns)).astype("float32")
    counts = rng.integers(0, rows + 1, 12)
    found = numpy(assign(costs, counts))
    for cost, count, row in zip(costs, counts, found):
        expected = linear_sum_assignment(cost[:count])[1]
        assert row.tolist() == [*expected, *[-1] * (rows - count)]


def test_costs_that_are_not_finite_are_matched_last():
    costs = np.array([[[np.nan, 1.0, 5.0], [2.0, 1.0, np.inf]]])
    assert numpy(assign(costs, [2])).tolist() == [[1, 0]]
