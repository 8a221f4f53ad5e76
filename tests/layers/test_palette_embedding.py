import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.comparing import numpy, randomize

from keras_vit.layers import PaletteEmbedding
from keras_vit.layers.palette_embedding import nearest_colors


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 4))
def test_each_pixel_has_the_nearest_color(seed, colors, channels):
    rng = np.random.default_rng(seed)
    images = rng.uniform(-1, 1, (2, 3, 4, channels)).astype("float32")
    palette = rng.uniform(-1, 1, (colors, channels)).astype("float32")
    found = numpy(nearest_colors(images, palette))
    distance = np.square(images[..., np.newaxis, :].astype("float64") - palette).sum(-1)
    chosen = np.take_along_axis(distance, found[..., np.newaxis], -1)[..., 0]
    np.testing.assert_allclose(chosen, distance.min(-1), atol=1e-6)


def test_the_first_of_equal_colors_is_chosen():
    assert numpy(nearest_colors(np.zeros((1, 1)), np.zeros((3, 1)))).tolist() == [0]


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_a_pixel_has_the_vector_of_its_color_and_the_palette_is_not_trained(dtype):
    layer = PaletteEmbedding(hidden_size=5, colors=30, dtype=dtype)
    layer.build((None, 2, 2, 3))
    randomize(layer)
    # Colors that 16 bits cannot distinguish.
    layer.palette.assign(np.linspace(0.9, 1, 30, dtype="float32")[:, np.newaxis].repeat(3, 1))
    ids = np.array([[[7, 8], [29, 0]]])
    found = layer(numpy(layer.palette)[ids])
    assert keras.backend.standardize_dtype(found.dtype) == layer.compute_dtype
    expected = numpy(keras.ops.cast(layer.table, layer.compute_dtype))[ids]
    np.testing.assert_array_equal(numpy(found), expected)
    assert [weight.name for weight in layer.trainable_weights] == ["table"]
