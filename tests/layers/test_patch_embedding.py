import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.comparing import assert_close, numpy

from keras_vit.layers import PatchEmbedding, extract_patches


@given(st.tuples(*[st.integers(1, 4)] * 6))
def test_every_pixel_is_at_its_place_in_its_patch(sizes):
    batch, rows, columns, height, width, channels = sizes
    shape = (batch, rows * height, columns * width, channels)
    images = np.arange(np.prod(shape)).reshape(shape)
    patches = numpy(extract_patches(images, (height, width)))
    assert patches.shape == (batch, rows, columns, height * width * channels)
    assert patches.dtype == images.dtype or patches.dtype == "int32"  # JAX has no int64 by default
    for row in range(rows):
        for column in range(columns):
            patch = images[:, row * height : (row + 1) * height, column * width : (column + 1) * width]
            np.testing.assert_array_equal(patches[:, row, column], patch.reshape(batch, -1))


@pytest.mark.tensorflow_only("JAX knows every size when it compiles")
def test_a_size_known_only_in_the_graph_never_mixes_images(rng):
    import tensorflow as tf

    images = rng.standard_normal((2, 8, 16, 3)).astype("float32")
    spec = tf.TensorSpec((None, None, None, 3), tf.float32)
    extract = tf.function(lambda x: extract_patches(x, 8), input_signature=[spec])
    assert_close(extract(images), numpy(extract_patches(images, 8)), 0)
    with pytest.raises(tf.errors.InvalidArgumentError):  # 16 × 12 × 12 pixels would fill 36 × 8 × 8
        extract(np.zeros((16, 12, 12, 3), "float32"))


@pytest.mark.parametrize("crop, size", [(True, (13, 18)), (False, (12, 16))])
def test_patches_begin_earlier_by_the_padding(crop, size, rng):
    """Those of a convolution with zeros around the image, of which as many patches are kept as without."""
    layer = PatchEmbedding(5, 4, crop=crop, padding=1)
    images = rng.standard_normal((2, *size, 3)).astype("float32")
    found = numpy(layer(images))
    assert found.shape == layer.compute_output_shape(images.shape) == (2, size[0] // 4, size[1] // 4, 5)
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))[:, : found.shape[1] * 4, : found.shape[2] * 4]
    whole = PatchEmbedding(5, 4)
    whole.build(padded.shape)
    whole.set_weights(layer.get_weights())
    assert_close(found, numpy(whole(padded)))


@pytest.mark.parametrize(
    "use", [lambda x: PatchEmbedding(8, (4, 8))(x), lambda x: extract_patches(x, (4, 8))]
)
@pytest.mark.parametrize(
    "shape, message",
    [
        ((1, 8, 12, 3), "8×12 .* not divisible by the patch of 4×8"),
        ((1, 9, 16, 3), "9×16 .* not divisible by the patch of 4×8"),
        ((8, 16, 3), r"\(batch, height, width, channels\); got \(8, 16, 3\)"),
    ],
)
def test_images_that_do_not_fit_are_refused(use, shape, message):
    with pytest.raises(ValueError, match=message):
        use(np.zeros(shape, "float32"))
