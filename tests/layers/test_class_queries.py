import keras
import numpy as np
from reference.comparing import assert_close, gradient

from keras_vit.layers.class_queries import ClassQueries


def test_logits_are_cosines_with_a_shift_and_a_scale(rng):
    layer = ClassQueries(3, 8)
    vectors, shift, scale = (rng.normal(size=(2, 5, size)).astype("float32") for size in (8, 1, 1))
    found = layer(vectors, shift, scale * 9)
    queries = keras.ops.convert_to_numpy(layer.queries).astype("float64")
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True), np.linalg.norm(queries, axis=-1)
    similarity = vectors @ queries.T / (lengths[0] + 1e-6) / (lengths[1] + 1e-6)
    positive = np.where(scale > 0, scale * 9 + 1, np.exp(np.minimum(scale, 0) * 9))
    assert_close(found, (similarity + shift) * positive, 1e-6)


def test_vectors_of_zeros_have_finite_gradients():
    layer = ClassQueries(3, 8)
    zeros = np.zeros((1, 2, 1), "float32")
    layer.build((1, 2, 8), (1, 2, 1), (1, 2, 1))
    vectors = np.zeros((1, 2, 8), "float32")
    assert_close(layer(vectors, zeros, zeros), np.zeros((1, 2, 3)), 1e-6)
    gradients = gradient(lambda x: layer(x, zeros, zeros), vectors)
    assert np.isfinite(gradients).all()
