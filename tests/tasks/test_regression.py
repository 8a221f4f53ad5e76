import numpy as np
import pytest
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

from keras_vit.evaluation import regression_scores


def test_the_numbers_are_scikit_learns(rng):
    targets = rng.standard_normal((30, 3)) * [1, 10, 100]
    outputs = targets + rng.standard_normal((30, 3))
    assert regression_scores(outputs, targets) == pytest.approx(
        {
            "samples": 30,
            "mse": mean_squared_error(targets, outputs),
            "mae": mean_absolute_error(targets, outputs),
            "r2": r2_score(targets, outputs),
        }
    )


def test_targets_that_do_not_vary_have_no_share_to_explain():
    found = regression_scores([[1.0, 2.0], [2.0, 2.0]], [[1.0, 3.0], [2.0, 3.0]])
    assert found == {"samples": 2, "mse": 0.5, "mae": 0.5, "r2": None}


@pytest.mark.parametrize("outputs, targets", [((2, 1), (2,)), ((2, 1), (2, 2)), ((0, 1), (0, 1))])
def test_other_shapes_are_refused(outputs, targets):
    with pytest.raises(ValueError, match="expected outputs and targets of one shape"):
        regression_scores(np.zeros(outputs), np.zeros(targets))
