import numpy as np
import pytest
from made.tables import by_table
from reference import vit_numpy
from reference.comparing import numpy

from keras_vit.layers import MlpBlock
from keras_vit.layers.mlp import ACTIVATIONS

X = np.linspace(-6, 6, 241).astype("float32")


@by_table("name", [*ACTIVATIONS])
def test_an_activation_is_the_published_one(name):
    expected = vit_numpy.ACTIVATIONS[name](X.astype("float64"))
    np.testing.assert_allclose(numpy(ACTIVATIONS[name](X)), expected, rtol=1e-5, atol=2e-6)


def test_dropout_is_active_in_training_only(rng):
    tokens = rng.standard_normal((2, 5, 8)).astype("float32")
    layer = MlpBlock(64, dropout_rate=0.5)
    np.testing.assert_array_equal(numpy(layer(tokens)), numpy(layer(tokens, training=False)))
    # Dropout also follows the second layer, so about half of the outputs are exactly zero.
    assert 0.2 < np.mean(numpy(layer(tokens, training=True)) == 0) < 0.8


@pytest.mark.tensorflow_only("TensorFlow's graph")
@pytest.mark.parametrize("name", ["gelu_tanh", "gelu_erf"])
def test_tensorflow_can_fuse_bias_and_activation_into_the_matmuls(name):
    """It needs 2-D matmuls followed by their bias, and an activation whose name sorts after them."""
    import tensorflow as tf

    layer = MlpBlock(20, name)
    layer.build((None, 5, 8))
    graph = tf.function(layer).get_concrete_function(tf.TensorSpec((None, 5, 8))).graph
    ops = [op for op in graph.get_operations() if op.type not in ("Const", "Placeholder")]
    matmuls = [op for op in ops if "MatMul" in op.type]
    assert [op.type for op in matmuls] == ["MatMul", "MatMul"]
    first, second = (op.outputs[0].consumers() for op in matmuls)
    assert [op.type for op in first] == [op.type for op in second] == ["BiasAdd"]
    activation = ops[ops.index(first[0]) + 1 : ops.index(matmuls[1])]
    assert [op for op in activation if op.type in ("Tanh", "Erf")]
    assert all(op.name > first[0].name for op in activation if op.type in ("Tanh", "Erf", "Mul", "Pow"))
