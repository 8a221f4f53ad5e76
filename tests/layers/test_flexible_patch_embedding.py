"""PI-resize in the graph: the formula, also of sizes that only the graph knows, and the kernel's gradient."""

import keras
import numpy as np
import pytest
from reference.comparing import assert_close, numpy, randomize

from keras_vit.layers import PatchEmbedding
from keras_vit.layers.flexible_patch_embedding import FlexiblePatchEmbedding

STORED, SIZES, CHANNELS = 6, (3, 4, 6, 9), 2


def resize_matrix(old, new):
    """The bilinear resize of a square patch with half-pixel centers, (new · new, old · old)."""
    centers = (np.arange(new) + 0.5) * old / new - 0.5
    line = np.stack([np.interp(centers, np.arange(old), unit) for unit in np.eye(old)], axis=1)
    return np.kron(line, line)


def resized(kernel, new):
    """The formula of FlexiViT in float64, with the patch as one vector."""
    old = kernel.shape[0]
    inverse = np.linalg.pinv(resize_matrix(old, new).T)
    return (inverse @ kernel.reshape(old * old, -1)).reshape(new * new * CHANNELS, -1)


@pytest.fixture
def flexible():
    embedding = PatchEmbedding(hidden_size=5, patch_size=STORED)
    embedding.build((None, 36, 36, CHANNELS))
    return randomize(FlexiblePatchEmbedding(embedding, SIZES))


def patches(side, rng):
    return rng.standard_normal((2, 1, 3, side * side * CHANNELS)).astype("float32")


@pytest.mark.parametrize("side", SIZES)
def test_the_kernel_is_resized_as_flexivit_does(side, flexible, rng):
    x = patches(side, rng)
    kernel, bias = (numpy(weight).astype("float64") for weight in flexible.weights)
    expected = x.astype("float64") @ resized(kernel, side) + bias
    assert_close(flexible(x), expected)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        unknown = tf.function(flexible, input_signature=[tf.TensorSpec((None,) * 4)])
        assert_close(unknown(x), expected)


@pytest.mark.tensorflow_only("tests/training compares the steps of both backends")
@pytest.mark.parametrize("side", [4, 9])
def test_the_gradient_reaches_the_stored_kernel(side, flexible, rng):
    import tensorflow as tf

    x = patches(side, rng)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.sin(flexible(x)))
    found = tape.gradient(loss, flexible.embedding.kernel.value).numpy()
    kernel, bias = (numpy(weight).astype("float64") for weight in flexible.weights)
    rows = x.reshape(-1, x.shape[-1]).astype("float64")
    of_resized = rows.T @ np.cos(rows @ resized(kernel, side) + bias)  # (side · side · channels, d)
    inverse = np.linalg.pinv(resize_matrix(STORED, side).T)
    expected = (inverse.T @ of_resized.reshape(side * side, -1)).reshape(kernel.shape)
    assert_close(found, expected, 1e-5)


def test_patches_of_another_size_are_refused(flexible):
    for pixels in (5 * 5 * CHANNELS, 6 * 6 * CHANNELS + 1):
        words = f"expected patches with a side of 3, 4, 6, 9 pixels and 2 channels; got {pixels} values"
        with pytest.raises(ValueError, match=words):
            flexible(np.zeros((1, 1, 1, pixels), "float32"))
