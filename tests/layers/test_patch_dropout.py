"""Patch dropout: which tokens training keeps, and the positions of these."""

import keras
import numpy as np
import pytest
from made.tables import by_table
from reference.comparing import numpy

from keras_vit.layers import PatchDropout, RotaryPositions
from keras_vit.seeds import override_seeds

PREFIX = 2


def numbered(images, patches):
    """Tokens that hold their own numbers: (images, prefix + patches, 1)."""
    return np.tile(np.arange(PREFIX + patches, dtype="float32"), (images, 1))[..., np.newaxis]


@by_table("patches, rate, kept", [(9, 0.5, 4), (10, 0.9, 1), (8, 0.25, 6), (3, 0.99, 1)])
def test_all_prefix_tokens_and_a_fixed_number_of_patches_are_kept_in_order(patches, rate, kept):
    output = numpy(PatchDropout(rate, PREFIX, seed=0)(numbered(5, patches), training=True))[..., 0]
    assert output.shape == (5, PREFIX + kept)
    np.testing.assert_array_equal(output[:, :PREFIX], numbered(5, patches)[:, :PREFIX, 0])
    assert np.all(np.diff(output, axis=1) > 0) and output.max() < PREFIX + patches


def test_images_differ_and_each_patch_is_kept_equally_often():
    images, patches, rate = 4000, 8, 0.5
    output = numpy(PatchDropout(rate, PREFIX, seed=0)(numbered(images, patches), training=True))
    counts = np.bincount(output.astype(int).ravel(), minlength=PREFIX + patches)[PREFIX:] / images
    spread = (rate * (1 - rate) / images) ** 0.5
    np.testing.assert_allclose(counts, 1 - rate, atol=5 * spread)


@pytest.mark.parametrize("rate, training", [(0.5, False), (0.0, True)])
def test_all_tokens_are_kept_without_training_or_a_rate(rate, training):
    x = numbered(2, 4)
    np.testing.assert_array_equal(numpy(PatchDropout(rate, PREFIX)(x, training=training)), x)


def test_the_seed_decides_what_is_kept():
    layer, seed = PatchDropout(0.5), np.array([3, 7], "uint32")

    def kept(number):
        with override_seeds(layer, lambda *_: seed + np.uint32(number)):
            return numpy(layer(numbered(6, 12), training=True))

    np.testing.assert_array_equal(kept(0), kept(0))
    assert not np.array_equal(kept(0), kept(1))


@pytest.mark.parametrize("registers", [0, 1])
def test_positions_are_those_of_the_kept_patches_after_the_registers(registers):
    rows, columns = 3, 4
    table = RotaryPositions("axial", 8, num_registers=registers)(np.zeros((1, rows, columns, 8)))[0]
    tokens, (taken, same) = PatchDropout(0.5, PREFIX, seed=0)(
        numbered(3, rows * columns), [table, table], training=True
    )
    assert same is taken and taken.shape == (2, 3, registers + 6, 1, 4)
    kept = numpy(tokens)[:, PREFIX:, 0].astype(int) - PREFIX
    for image, patches in enumerate(kept):
        expected = numpy(table)[:, [*range(registers), *(registers + patches)]]
        np.testing.assert_array_equal(numpy(taken)[:, image], expected)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="JAX knows all shapes")
@pytest.mark.parametrize("patches, kept", [(10, 1), (29, 2), (3, 1)])
def test_a_number_of_patches_that_only_the_graph_knows_is_rounded_alike(patches, kept):
    import tensorflow as tf

    layer = PatchDropout(0.9, PREFIX)
    assert layer._kept(patches) == kept

    @tf.function(input_signature=[tf.TensorSpec((None, None, 1))])
    def dropped(tokens):
        return layer(tokens, training=True)

    assert dropped(numbered(2, patches)).shape == (2, PREFIX + kept, 1)
