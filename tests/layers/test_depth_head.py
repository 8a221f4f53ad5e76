"""The layers of heads for depth."""

import keras
import numpy as np
from made.tables import by_table
from reference.comparing import assert_close, numpy, randomize

from keras_vit.layers.aligned_resize import aligned_resize
from keras_vit.layers.depth_head import DepthBins, FusionBlock, PixelValues, Readout, Reassemble, ResidualUnit


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def along(x, axis, length):
    """Linear interpolation along an axis, with the ends in their places."""
    old, places = x.shape[axis], np.linspace(0, x.shape[axis] - 1, length)
    return np.apply_along_axis(lambda row: np.interp(places, np.arange(old), row), axis, x)


@by_table(
    "shape, size", [((3, 4), (5, 9)), ((3, 4), (3, 4)), ((3, 4), (2, 1)), ((3, 4), (1, 1)), ((1, 1), (2, 4))]
)
def test_an_aligned_resize_interpolates_between_the_corners(shape, size):
    x = numbers(2, *shape, 5)
    expected = along(along(x, 1, size[0]), 2, size[1])
    assert_close(numpy(aligned_resize(x, size)), expected, 1e-6)


def test_readouts_say_what_the_class_token_adds():
    tokens, grid = numbers(2, 7, 8), np.zeros((2, 2, 3, 1))
    patches, token = (
        tokens[:, 1:].reshape(2, 2, 3, 8),
        np.broadcast_to(tokens[:, 0, None, None], (2, 2, 3, 8)),
    )
    assert_close(numpy(Readout("ignore")(tokens, grid)), patches)
    assert_close(numpy(Readout("add")(tokens, grid)), patches + token)
    both = np.concatenate([patches, token], axis=-1)
    assert_close(numpy(Readout("concatenate")(tokens, grid)), both)
    layer = Readout("project", "gelu_tanh")
    layer(tokens, grid)
    randomize(layer)
    expected = keras.ops.gelu(both @ numpy(layer.dense.kernel) + numpy(layer.dense.bias), approximate=True)
    assert_close(numpy(layer(tokens, grid)), numpy(expected))


@by_table("factor, size", [(4, (12, 20)), (2, (6, 10)), (1, (3, 5)), (0.5, (2, 3))])
def test_reassemble_changes_the_resolution_by_its_factor(factor, size):
    layer, grid = Reassemble(6, 7, factor), np.zeros((2, 3, 5, 8))
    assert layer(grid).shape == (2, *size, 7)


def test_a_residual_unit_of_zeros_is_its_input():
    layer, x = ResidualUnit(), numbers(1, 4, 4, 8)
    layer.build(x.shape)
    for weight in layer.weights:
        weight.assign(np.zeros(weight.shape))
    assert_close(numpy(layer(x)), x)


def test_the_batch_norms_of_a_residual_unit_use_the_batch_in_training():
    layer, x = ResidualUnit("batch"), numbers(4, 3, 3, 8)
    assert np.abs(numpy(layer(x, training=True) - layer(x, training=False))).max() > 0.01
    assert np.abs(numpy(layer.norms[1].moving_mean)).max() > 0


def test_fusion_resizes_the_map_that_it_adds():
    layer, x, addend = FusionBlock(), numbers(1, 4, 4, 8), numbers(1, 3, 5, 8, seed=1)
    resized = numpy(keras.ops.image.resize(addend, (4, 4), "bilinear", data_format="channels_last"))
    assert_close(numpy(layer(x, None, addend)), numpy(layer(x, None, resized)))


@by_table(
    "activation, low, high", [("sigmoid", 0, 20), ("exp", 0, np.inf), ("relu", 0, np.inf), ("linear", -9, 9)]
)
def test_pixel_values_are_in_the_range_of_their_activation(activation, low, high):
    values = numpy(PixelValues(activation, 20.0 if activation == "sigmoid" else 1.0)(numbers(1, 3, 3, 1)))
    assert values.dtype == "float32"
    assert low <= values.min() and values.max() <= high


def test_bins_are_the_expected_depth():
    layer, scores = DepthBins(1.0, 4.0), numbers(1, 1, 1, 4)
    weights = np.maximum(scores, 0) + 0.1
    expected = (weights * [1, 2, 3, 4]).sum(-1, keepdims=True) / weights.sum(-1, keepdims=True)
    assert_close(numpy(layer(scores)), expected * np.ones((1, 4, 4, 1)))


def test_bins_of_large_scores_stay_finite():
    values = numpy(DepthBins(1.0, 4.0)(np.full((1, 1, 1, 256), 1e6, "float32")))
    assert_close(values, np.full((1, 4, 4, 1), 2.5), 1e-4)
