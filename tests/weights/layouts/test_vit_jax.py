import numpy as np
import pytest

from keras_vit.weights.layouts import LAYOUTS


@pytest.mark.parametrize(
    "key, shape, expected",
    [
        ("gn_root/scale", (1, 1, 1, 32), (32,)),
        ("cls", (1, 1, 1, 32), (1, 1, 1, 32)),
        ("gn_root/scale", (1, 1, 2, 16), (1, 1, 2, 16)),
        ("gn_root/bias", (1, 32), (1, 32)),
    ],
)
def test_only_group_norms_of_before_flax_0_3_6_get_another_shape(key, shape, expected):
    """With all of a golden file, test_save.py compares the names and shapes of both times."""
    mapped = LAYOUTS["vit_jax"].read({"embedding/kernel": np.zeros((1, 1, 1, 1)), key: np.zeros(shape)})
    assert [array.shape for array in mapped.arrays.values()] == [(1, 1, 1, 1), expected]
