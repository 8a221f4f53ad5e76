"""What must be exact has no matmuls, of which GPUs and TPUs round the inputs (TF32, bfloat16)."""

import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers.aligned_resize import aligned_resize
from keras_vit.layers.palette_embedding import nearest_colors
from keras_vit.layers.rotary import rotate

POSITIONS = np.zeros((2, 4, 1, 3), "float32")
EXACT = {
    "interleaved rotation": (lambda x: rotate(x, POSITIONS, interleaved=True), (2, 5, 3, 6)),
    "rotation of halves": (lambda x: rotate(x, POSITIONS, interleaved=False), (2, 5, 3, 6)),
    "nearest colors": (lambda x: nearest_colors(x, np.ones((7, 3), "float32")), (2, 4, 4, 3)),
    "aligned resize": (lambda x: aligned_resize(x, (8, 6)), (2, 4, 3, 5)),
}


def operations(function, shape):
    """The names of the operations that a function of a tensor consists of."""
    if keras.backend.backend() == "jax":
        import jax

        return re.findall(r"\w+", str(jax.make_jaxpr(function)(np.zeros(shape))))  # with inner functions
    import tensorflow as tf

    graph = tf.function(function, input_signature=[tf.TensorSpec(shape)]).get_concrete_function().graph
    return [operation.type for operation in graph.get_operations()]


@pytest.mark.parametrize("name", EXACT)
def test_it_consists_of_no_matmul(name):
    found = operations(*EXACT[name])
    assert found and not {"dot_general", "MatMul", "BatchMatMulV2", "Einsum"} & {*found}


def test_matmuls_are_found():
    found = operations(lambda x: ops.matmul(x, ops.ones((3, 2))), (2, 5, 3))
    assert {"dot_general", "MatMul", "BatchMatMulV2", "Einsum"} & {*found}
