import numpy as np
import pytest
from reference.comparing import numpy, randomize

from keras_vit.layers.box_head import BoxHead, patch_boxes


def test_the_bias_is_the_logit_of_the_box_of_each_patch():
    rows, columns = 3, 4
    fractions = 1 / (1 + np.exp(-numpy(patch_boxes(rows, columns))[0].astype("float64")))
    for number, box in enumerate(fractions):
        row, column = divmod(number, columns)
        # A fraction of 1 is one of 0.9999 and a ten-thousandth.
        expected = [(column + 1) / columns, (row + 1) / rows, 1 / columns, 1 / rows]
        np.testing.assert_allclose(box, expected, atol=1.5e-4)


@pytest.mark.tensorflow_only("JAX knows every size when it compiles")
def test_a_size_that_only_the_graph_knows_has_the_same_boxes():
    import tensorflow as tf

    of_any = tf.function(patch_boxes, input_signature=[tf.TensorSpec((), tf.int32)] * 2)
    found = of_any(tf.constant(3), tf.constant(4))
    np.testing.assert_allclose(found, numpy(patch_boxes(3, 4)), rtol=1e-5, atol=1e-5)


def test_the_output_is_the_sigmoid_of_an_mlp_and_the_bias(rng):
    grid = rng.standard_normal((2, 2, 3, 8)).astype("float32")
    tokens = grid.reshape(2, 6, 8)
    head = BoxHead("quick_gelu")
    head(tokens, grid)
    randomize(head)
    x = tokens.astype("float64")
    for layer in (*head.hidden, head.out):
        x = x @ numpy(layer.kernel) + numpy(layer.bias)
        if layer is not head.out:
            x = x / (1 + np.exp(-1.702 * x))
    expected = 1 / (1 + np.exp(-(x + numpy(patch_boxes(2, 3)))))
    np.testing.assert_allclose(numpy(head(tokens, grid)), expected, rtol=1e-4, atol=1e-5)
