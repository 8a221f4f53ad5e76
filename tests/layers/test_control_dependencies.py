import pytest

from keras_vit.layers.control_dependencies import after


@pytest.mark.tensorflow_only("TensorFlow's graph")
def test_operations_run_after_the_given_tensors():
    import tensorflow as tf

    with tf.Graph().as_default():
        first = tf.constant(1)
        with after([first]):
            second = tf.constant(2)
        with after([]):
            third = tf.constant(3)
    assert [[*x.op.control_inputs] for x in (second, third)] == [[first.op], []]
