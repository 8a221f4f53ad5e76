import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops
from made.sampling import some
from made.tables import by_table
from reference.comparing import assert_close

from keras_vit.interpolation import INTERPOLATIONS, interpolation_weights

COUNTS = st.integers(1, 30)
# The weights of torch 2.13's `interpolate` for 2 points of 3 and for 3 of 2, "bicubic_offset" by a scale.
TORCH = {
    "bicubic": (
        [[0.773438, 0.261719, -0.035156], [-0.035156, 0.261719, 0.773438]],
        [[1.086806, -0.086806], [0.5, 0.5], [-0.086805, 1.086806]],
    ),
    "bicubic_offset": (
        [[0.809767, 0.217292, -0.027059], [-0.061498, 0.402241, 0.659257]],
        [[1.090036, -0.090037], [0.536274, 0.463726], [-0.066636, 1.066636]],
    ),
    "bicubic_antialias": (
        [[0.65008, 0.390048, -0.040128], [-0.040128, 0.390048, 0.65008]],
        [[1.065789, -0.065789], [0.5, 0.5], [-0.065789, 1.065789]],
    ),
    "bilinear_antialias": (
        [[0.625, 0.375, 0.0], [0.0, 0.375, 0.625]],
        [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]],
    ),
    "bilinear_half_pixel": (
        [[0.75, 0.25, 0.0], [0.0, 0.25, 0.75]],
        [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]],
    ),
}


@by_table("interpolation", TORCH)
def test_weights_are_those_of_torch(interpolation):
    fewer, more = TORCH[interpolation]
    np.testing.assert_allclose(interpolation_weights(np.arange(2), 2, 3, interpolation), fewer, atol=2e-6)
    np.testing.assert_allclose(interpolation_weights(np.arange(3), 3, 2, interpolation), more, atol=2e-6)


@pytest.mark.parametrize("interpolation", some(INTERPOLATIONS, 2))
@given(old=COUNTS, new=COUNTS)
def test_weights_have_the_sum_one_for_arrays_and_tensors(interpolation, old, new):
    if interpolation == "truncate":
        new = min(old, new)
    weights = interpolation_weights(np.arange(new), new, old, interpolation)
    np.testing.assert_allclose(weights.sum(axis=1), np.ones(new), atol=1e-6)
    index, size = ops.arange(new, dtype="float32"), ops.cast(new, "float32")
    assert_close(interpolation_weights(index, size, old, interpolation, ops), weights, 1e-4)


def test_each_index_may_have_a_size_of_its_own():
    index, new = np.array([[0.0, 1.0], [0.0, 2.0]]), np.array([[2.0], [3.0]])
    weights = interpolation_weights(index, new, 4, "bicubic_antialias")
    for row, (numbers, size) in enumerate(zip(index, (2, 3))):
        np.testing.assert_array_equal(
            weights[row], interpolation_weights(numbers, size, 4, "bicubic_antialias")
        )
