import numpy as np
import pytest
from reference import vit_numpy
from reference.comparing import arrays, assert_close, numpy, randomise

from keras_vit.layers import MlpBlock
from keras_vit.layers.mlp import ACTIVATIONS

X = np.linspace(-6, 6, 241).astype("float32")


@pytest.mark.parametrize("name", [*ACTIVATIONS])
def test_an_activation_is_its_formula(name):
    expected = vit_numpy.ACTIVATIONS[name](X.astype("float64"))
    np.testing.assert_allclose(numpy(ACTIVATIONS[name](X)), expected, rtol=1e-5, atol=2e-6)


def test_every_activation_has_a_formula_to_hold_it_to():
    assert {*ACTIVATIONS} == {*vit_numpy.ACTIVATIONS}


@pytest.mark.parametrize("name", [*ACTIVATIONS])
def test_the_block_is_two_dense_layers_around_it(name, rng):
    tokens = 2 * rng.standard_normal((2, 5, 8)).astype("float32")
    layer = MlpBlock(20, name, name="mlp")
    layer.build(tokens.shape)
    w = arrays(randomise(layer))
    assert {path: array.shape for path, array in w.items()} == {
        "mlp/dense_0/kernel": (8, 20),
        "mlp/dense_0/bias": (20,),
        "mlp/dense_1/kernel": (20, 8),
        "mlp/dense_1/bias": (8,),
    }
    assert_close(layer(tokens), vit_numpy.mlp(w, "mlp", tokens.astype("float64"), name))


def test_kernels_start_glorot_and_biases_almost_zero():
    layer = MlpBlock(512)
    layer.build((None, None, 128))
    for dense in (layer.dense_0, layer.dense_1):
        assert np.abs(numpy(dense.kernel)).max() == pytest.approx((6 / (128 + 512)) ** 0.5, rel=0.01)
        assert numpy(dense.bias).std() == pytest.approx(1e-6, rel=0.3)


def test_dropout_is_active_in_training_only(rng):
    tokens = rng.standard_normal((2, 5, 8)).astype("float32")
    layer = MlpBlock(64, dropout_rate=0.5)
    np.testing.assert_array_equal(numpy(layer(tokens)), numpy(layer(tokens, training=False)))
    # Dropped after the second layer too, so about half of the outputs are exactly zero.
    assert 0.2 < np.mean(numpy(layer(tokens, training=True)) == 0) < 0.8


def test_a_batch_of_no_images_stays_one():
    assert MlpBlock(20)(np.zeros((0, 5, 8))).shape == (0, 5, 8)


def test_an_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="activation 'gelu' is unknown; choose one of .*gelu_tanh"):
        MlpBlock(20, "gelu")


@pytest.mark.tensorflow_only("TensorFlow's graph")
@pytest.mark.parametrize("name", ["gelu_tanh", "gelu_erf"])
def test_the_graph_is_one_that_tensorflow_fuses(name):
    """Products of matrices with their bias at once, and an activation that sorts behind them by name.

    tests/benchmarks looks at what TensorFlow makes of it.
    """
    import tensorflow as tf

    layer = MlpBlock(20, name)
    layer.build((None, 5, 8))
    graph = tf.function(layer).get_concrete_function(tf.TensorSpec((None, 5, 8))).graph
    ops = [op for op in graph.get_operations() if op.type not in ("Const", "Placeholder")]
    products = [op for op in ops if "MatMul" in op.type]
    assert [op.type for op in products] == ["MatMul", "MatMul"]
    assert [[user.type for user in op.outputs[0].consumers()] for op in products] == [
        ["BiasAdd"],
        ["BiasAdd"],
    ]
    first, second = (op.outputs[0].consumers()[0] for op in products)
    between = ops[ops.index(first) + 1 : ops.index(products[1])]
    assert [op for op in between if op.type in ("Tanh", "Erf", "Sigmoid")]
    assert all(op.name > first.name for op in between if op.type in ("Tanh", "Erf", "Sigmoid", "Mul", "Pow"))
