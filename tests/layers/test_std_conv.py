import numpy as np
import pytest
from reference import vit_numpy
from reference.comparing import assert_close, numpy, randomise

from keras_vit.layers import StdConv2D

CASES = [  # kernel, strides, image: odd and even, so that SAME pads one side more
    (1, 1, (6, 6)),
    (1, 2, (7, 6)),
    (3, 1, (6, 5)),
    (3, 2, (8, 9)),
    (7, 2, (16, 15)),
]


@pytest.mark.parametrize("kernel_size, strides, image", CASES)
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_it_convolves_with_the_standardised_kernel(kernel_size, strides, image, padding, rng):
    images = rng.standard_normal((2, *image, 3)).astype("float32")
    layer = StdConv2D(8, kernel_size, strides, padding=padding, use_bias=False)
    layer.build(images.shape)
    randomise(layer)
    expected = vit_numpy.std_conv(images, numpy(layer.kernel), strides, padding)
    assert_close(layer(images), expected)
    assert tuple(layer.compute_output_shape(images.shape)) == expected.shape


@pytest.mark.parametrize("form", ["vit_jax", "timm"])
@pytest.mark.parametrize("scale", [1e-5, 1e-4, 0.3])
def test_what_is_added_to_deviation_and_variance_may_be_chosen(form, scale, rng):
    images = rng.standard_normal((2, 6, 6, 3)).astype("float32")
    epsilons = vit_numpy.RESNET_EPSILONS[form]
    layer = StdConv2D(8, 3, use_bias=False, epsilon=epsilons[0], variance_epsilon=epsilons[1])
    layer.build(images.shape)
    randomise(layer, scale)
    assert_close(layer(images), vit_numpy.std_conv(images, numpy(layer.kernel), 1, "valid", epsilons), 1e-5)
    again = StdConv2D.from_config(layer.get_config())
    assert (again.epsilon, again.variance_epsilon) == epsilons[:2]


def test_the_official_epsilon_is_the_default():
    layer = StdConv2D(8, 3)
    assert (layer.epsilon, layer.variance_epsilon) == (1e-5, 0)


def test_neither_the_mean_nor_the_scale_of_the_stored_kernel_matters(rng):
    images = rng.standard_normal((1, 6, 6, 3)).astype("float32")
    layer = StdConv2D(8, 3, use_bias=False)
    before = numpy(layer(images))
    raw = numpy(layer.kernel)
    layer.kernel.assign(5 * raw + 0.5)
    assert_close(layer(images), before, 2e-4)  # but for the 1e-5 added to the deviation
    np.testing.assert_array_equal(numpy(layer.kernel), (5 * raw + np.float32(0.5)).astype("float32"))


def test_a_bias_is_added_after_the_convolution(rng):
    images = rng.standard_normal((1, 4, 4, 2)).astype("float32")
    layer = StdConv2D(3, 3, padding="same")
    before = numpy(layer(images))
    layer.bias.assign([1, 2, 3])
    np.testing.assert_allclose(numpy(layer(images)) - before, np.broadcast_to([1, 2, 3], before.shape), 1e-4)


@pytest.mark.parametrize("kernel_size, strides, image", CASES)
def test_a_batch_of_no_images_gives_the_right_size(kernel_size, strides, image):
    for padding in ("same", "valid"):
        if padding == "valid" and kernel_size > min(image):
            continue
        layer = StdConv2D(8, kernel_size, strides, padding=padding)
        shape = layer.compute_output_shape((0, *image, 3))
        assert tuple(layer(np.zeros((0, *image, 3))).shape) == tuple(shape)


def test_dilation_is_counted_in_the_size(rng):
    images = rng.standard_normal((2, 9, 9, 2)).astype("float32")
    assert StdConv2D(4, 3, dilation_rate=2)(images).shape == (2, 5, 5, 4)
