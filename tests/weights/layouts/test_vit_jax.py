import numpy as np
import pytest
from reference.comparing import arrays, assert_same_arrays
from reference.goldens import stored

from keras_vit import from_pretrained, save_weights
from keras_vit.weights.array_files import read_arrays
from keras_vit.weights.layouts import LAYOUTS


def test_published_names_load_as_the_linen_names_that_are_written(golden, tmp_path):
    model = from_pretrained(golden / "hybrid.npz")
    linen = save_weights(model, tmp_path / "linen.npz", "vit_jax")
    assert read_arrays(linen).keys() != stored(golden, "hybrid").keys()
    assert_same_arrays(arrays(from_pretrained(linen)), arrays(model))


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
    mapped = LAYOUTS["vit_jax"].read({"embedding/kernel": np.zeros((1, 1, 1, 1)), key: np.zeros(shape)})
    assert [array.shape for array in mapped.arrays.values()] == [(1, 1, 1, 1), expected]
