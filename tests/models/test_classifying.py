import numpy as np
import pytest

from keras_vit.models.classifying import most_probable


@pytest.mark.parametrize("top", [1, 3, 40, 60])
def test_the_most_probable_classes_are_the_first_of_a_stable_order(top):
    probabilities = np.random.default_rng(0).integers(0, 9, (5, 40)) / 9  # many are equal
    names = [str(number) for number in range(40)]
    expected = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
    order = [[int(name) for name, _ in best] for best in most_probable(probabilities, names, top)]
    np.testing.assert_array_equal(order, expected)
