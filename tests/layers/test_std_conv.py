import numpy as np
import pytest
from reference import vit_numpy
from reference.comparing import assert_close, numpy, randomize

from keras_vit.layers import StdConv2D

CASES = [  # kernel, strides, image: odd and even, so that "same" pads one side more
    (1, 2, (7, 6)),
    (3, 1, (6, 5)),
    (3, 2, (8, 9)),
    (7, 2, (16, 15)),
]


@pytest.mark.parametrize("kernel_size, strides, image", CASES)
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_it_convolves_with_the_standardized_kernel(kernel_size, strides, image, padding, rng):
    images = rng.standard_normal((2, *image, 3)).astype("float32")
    layer = StdConv2D(8, kernel_size, strides, padding=padding, use_bias=False)
    layer.build(images.shape)
    randomize(layer)
    expected = vit_numpy.std_conv(images, numpy(layer.kernel), strides, padding)
    assert_close(layer(images), expected)
    assert tuple(layer.compute_output_shape(images.shape)) == expected.shape
    assert tuple(layer(images[:0]).shape) == (0, *expected.shape[1:])


def test_a_bias_is_added_after_the_convolution_and_dilation_changes_the_size(rng):
    images = rng.standard_normal((1, 4, 4, 2)).astype("float32")
    layer = StdConv2D(3, 3, padding="same")
    before = numpy(layer(images))
    layer.bias.assign([1, 2, 3])
    np.testing.assert_allclose(numpy(layer(images)) - before, np.broadcast_to([1, 2, 3], before.shape), 1e-4)
    assert StdConv2D(4, 3, dilation_rate=2)(np.zeros((2, 9, 9, 2))).shape == (2, 5, 5, 4)
