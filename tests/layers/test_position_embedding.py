import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops
from made.tables import by_table
from reference import vit_numpy
from reference.comparing import assert_close, numpy
from scipy.ndimage import zoom

from keras_vit.interpolation import INTERPOLATIONS
from keras_vit.layers import AddPositionEmbs, resize_position_grid, sincos_2d

# None of these sides is one of the pairs at which scipy zeroes the border.
RESIZES = [((4, 4), (6, 6)), ((14, 14), (7, 7)), ((7, 7), (12, 12)), ((5, 9), (8, 3)), ((3, 2), (2, 17))]


def random_grid(size, channels=3):
    return np.random.default_rng(0).standard_normal((*size, channels))


def zoomed(grid, size):
    factors = [new / old for new, old in zip(size, grid.shape)]
    return zoom(grid, (*factors, 1), order=1)


@given(*[st.tuples(st.integers(2, 20), st.integers(2, 20))] * 2)
def test_resizing_equals_the_official_one_between_any_two_rectangles(old, new):
    grid = random_grid(old, 1)
    assert_close(resize_position_grid(grid, new), zoomed(grid, new), 1e-12)


@pytest.mark.parametrize("old, new", [(28, 48), (16, 30), (24, 43)])
def test_the_border_is_kept_where_scipy_zeroes_it(old, new):
    grid = random_grid((old, old))
    resized, official = resize_position_grid(grid, (new, new)), zoomed(grid, (new, new))
    assert_close(resized[:-1, :-1], official[:-1, :-1], 1e-12)
    np.testing.assert_allclose(resized[-1, -1], grid[-1, -1], rtol=1e-12)
    assert np.abs(resized[-1]).min() > 0
    assert np.abs(resized[:, -1]).min() > 0


@pytest.mark.tensorflow_only("the peer is TensorFlow")
@given(*[st.tuples(st.integers(1, 20), st.integers(1, 20))] * 2)
def test_the_antialiased_resize_is_tensorflows(old, new):
    import tensorflow as tf

    grid = random_grid(old)
    expected = tf.image.resize(grid, new, "bilinear", antialias=True)
    assert_close(resize_position_grid(grid, new, "bilinear_antialias"), expected.numpy(), 1e-5)


@given(*[st.tuples(st.integers(1, 9), st.integers(1, 9))] * 2)
def test_tensors_and_arrays_are_resized_alike_and_corners_stay_aligned(old, new):
    grid = random_grid(old).astype("float32")
    resized = resize_position_grid(grid, new)
    assert resized.dtype == grid.dtype
    assert_close(resize_position_grid(ops.convert_to_tensor(grid), new), resized, 1e-6)
    np.testing.assert_allclose(resized[0, 0], grid[0, 0], rtol=1e-6)
    if min(new) > 1:
        np.testing.assert_allclose(resized[-1, -1], grid[-1, -1], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.tensorflow_only("JAX knows every size when it compiles")
@pytest.mark.parametrize("interpolation", [name for name in INTERPOLATIONS if name != "truncate"])
@pytest.mark.parametrize("old, new", [*RESIZES, ((28, 28), (48, 48)), ((3, 3), (1, 4))])
def test_resizing_to_a_size_known_only_in_the_graph_gives_the_same(old, new, interpolation):
    import tensorflow as tf

    grid = random_grid(old).astype("float32")
    resize = tf.function(lambda grid, *size: resize_position_grid(grid, size, interpolation))
    resized = resize(tf.constant(grid), *map(tf.constant, new))
    assert_close(resized, resize_position_grid(grid, new, interpolation), 1e-5)


@by_table("rows, columns, channels", [(2, 3, 8), (4, 4, 24), (1, 5, 12), (14, 9, 64)])
def test_sincos2d_is_the_published_formula(rows, columns, channels):
    assert_close(sincos_2d(rows, columns, channels), vit_numpy.sincos(rows, columns, channels), 2e-6)


@by_table("channels", [4, 6, 10, 30])
def test_sincos2d_refuses_channels_that_it_cannot_split(channels):
    with pytest.raises(ValueError, match=f"multiples of 4, at least 8; got {channels}"):
        sincos_2d(2, 2, channels)
    with pytest.raises(ValueError, match=f"^sincos2d needs .*; got {channels}"):
        AddPositionEmbs("sincos2d", (2, 2)).build((1, 4, channels))


@pytest.mark.tensorflow_only("JAX knows every size when it compiles")
@pytest.mark.parametrize("kind", ["learned", "sincos2d"])
def test_a_grid_known_only_in_the_graph_gives_the_same(kind, rng):
    import tensorflow as tf

    tokens = rng.standard_normal((2, 1 + 20, 8)).astype("float32")
    layer = AddPositionEmbs(kind, (2, 3), 1)
    layer.build((None, None, 8))
    shapes = [tf.TensorSpec((None, None, 8)), tf.TensorSpec((None, None, None, 1))]
    grid = np.zeros((2, 4, 5, 1), "float32")
    assert_close(tf.function(layer, input_signature=shapes)(tokens, grid), numpy(layer(tokens, grid)), 1e-5)


@pytest.mark.parametrize("tokens, grid", [((1, 6, 8), None), ((1, 7, 8), (1, 2, 2, 3))])
def test_tokens_that_do_not_fit_the_grid_are_refused(tokens, grid):
    layer = AddPositionEmbs("learned", (2, 3), 1)
    with pytest.raises(
        ValueError, match=rf"expected \d tokens, for a grid of 2×\d and 1 prefix tokens; got {tokens[1]}"
    ):
        layer(np.zeros(tokens), *([] if grid is None else [np.zeros(grid)]))
