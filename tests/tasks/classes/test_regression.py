import numpy as np
import pytest

from keras_vit.evaluation import regression_scores


def test_scores_equal_their_definitions(rng):
    targets = rng.standard_normal((30, 3)) * [1, 10, 100]
    errors = rng.standard_normal((30, 3))
    explained = 1 - (errors**2).sum(0) / ((targets - targets.mean(0)) ** 2).sum(0)
    expected = {"mse": (errors**2).mean(), "mae": np.abs(errors).mean(), "r2": explained.mean()}
    assert regression_scores(targets + errors, targets) == pytest.approx({"samples": 30, **expected})


def test_constant_targets_have_no_coefficient_of_determination():
    found = regression_scores([[1.0, 2.0], [2.0, 2.0]], [[1.0, 3.0], [2.0, 3.0]])
    assert found == {"samples": 2, "mse": 0.5, "mae": 0.5, "r2": None}


@pytest.mark.parametrize("outputs, targets", [((2, 1), (2,)), ((2, 1), (2, 2)), ((0, 1), (0, 1))])
def test_other_shapes_are_refused(outputs, targets):
    with pytest.raises(ValueError, match="expected outputs and targets of one shape"):
        regression_scores(np.zeros(outputs), np.zeros(targets))
