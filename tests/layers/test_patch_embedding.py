import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops
from reference import vit_numpy
from reference.comparing import assert_close, numpy, randomise

from keras_vit.layers import PatchEmbedding, extract_patches

GEOMETRIES = [  # image, patch, channels
    ((16, 16), 8, 3),
    ((12, 24), 4, 3),
    ((12, 10), (3, 5), 1),
    ((8, 8), 2, 4),
    ((6, 4), 1, 5),
    ((8, 12), (8, 12), 3),
]


@pytest.mark.parametrize("image, patch, channels", GEOMETRIES)
@pytest.mark.parametrize("use_bias", [True, False])
def test_the_convolution_equals_unfolding_and_then_projecting(image, patch, channels, use_bias, rng):
    images = rng.standard_normal((2, *image, channels)).astype("float32")
    layer = PatchEmbedding(12, patch, use_bias)
    layer.build(images.shape)
    randomise(layer)
    bias = numpy(layer.bias) if use_bias else 0
    unfolded = numpy(extract_patches(images, patch)).astype("float64")
    projected = unfolded @ numpy(layer.kernel).reshape(-1, 12) + bias
    assert_close(layer(images), projected)
    assert_close(layer(images), vit_numpy.patch_embedding(images, numpy(layer.kernel), bias))
    assert layer.compute_output_shape(images.shape) == projected.shape


@given(st.tuples(*[st.integers(1, 4)] * 6))
def test_every_pixel_lands_in_its_own_patch_at_its_own_place(sizes):
    batch, rows, columns, height, width, channels = sizes
    shape = (batch, rows * height, columns * width, channels)
    images = np.arange(np.prod(shape)).reshape(shape)
    patches = numpy(extract_patches(images, (height, width)))
    assert patches.shape == (batch, rows, columns, height * width * channels)
    assert patches.dtype == images.dtype or patches.dtype == "int32"  # JAX has no int64 by default
    for row in range(rows):
        for column in range(columns):
            cut = images[:, row * height : (row + 1) * height, column * width : (column + 1) * width].reshape(
                batch, -1
            )
            np.testing.assert_array_equal(patches[:, row, column], cut)


def test_a_batch_of_no_images_gives_no_patches():
    assert extract_patches(np.zeros((0, 8, 4, 3)), 4).shape == (0, 2, 1, 48)
    assert PatchEmbedding(12, 4)(np.zeros((0, 8, 4, 3))).shape == (0, 2, 1, 12)


@pytest.mark.tensorflow_only("JAX knows every size when it compiles")
def test_sizes_known_only_in_the_graph_give_the_same(rng):
    import tensorflow as tf

    images = rng.standard_normal((2, 8, 12, 3)).astype("float32")
    layer = PatchEmbedding(12, 4)
    signature = [tf.TensorSpec((None, None, None, 3))]
    cut = tf.function(lambda x: extract_patches(x, 4), input_signature=signature)
    embed = tf.function(layer, input_signature=signature)
    assert_close(cut(images), numpy(extract_patches(images, 4)), 0)
    assert_close(embed(images), numpy(layer(images)))


def test_the_kernel_starts_lecun_normal_and_the_bias_zero():
    layer = PatchEmbedding(256, 8)
    layer.build((None, 16, 16, 3))
    kernel = numpy(layer.kernel)
    assert kernel.std() == pytest.approx((1 / (8 * 8 * 3)) ** 0.5, rel=0.05)
    assert abs(kernel.mean()) < 0.01
    assert not numpy(layer.bias).any()


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


@pytest.mark.parametrize("patch", [0, -2, (4,), (4, 4, 4), 2.0, (2, 0)])
def test_a_patch_size_that_is_none_is_refused(patch):
    with pytest.raises((ValueError, TypeError), match="patch_size|not iterable"):
        PatchEmbedding(8, patch)


def test_gradients_reach_the_pixels(rng):
    """A stride equal to the kernel leaves no pixel out: every one changes the output."""
    images = rng.standard_normal((1, 8, 8, 1)).astype("float32")
    layer = PatchEmbedding(4, 4)
    start = numpy(layer(images))
    for row in range(8):
        changed = images.copy()
        changed[0, row, 3] += 1
        assert ops.max(ops.abs(layer(changed) - start)) > 0


@pytest.mark.tensorflow_only("JAX knows every size when it compiles")
def test_a_size_known_only_in_the_graph_never_mixes_images():
    import tensorflow as tf

    spec = tf.TensorSpec((None, None, None, 3), tf.float32)
    cut = tf.function(lambda images: extract_patches(images, 8), input_signature=[spec])
    with pytest.raises(tf.errors.InvalidArgumentError):  # 16 × 12 × 12 pixels would fill 36 × 8 × 8
        cut(np.zeros((16, 12, 12, 3), "float32"))
