import time

import pytest

from keras_vit.layers.control_dependencies import after


@pytest.mark.tensorflow_only("TensorFlow's graph")
def test_operations_run_after_the_given_tensors():
    import tensorflow as tf

    order = []

    def step(name, seconds):
        def run():
            time.sleep(seconds)
            order.append(name)
            return 0.0

        return tf.py_function(run, [], tf.float32)

    @tf.function
    def run():
        first = step("first", 0.2)
        with after([first]):
            return first, step("second", 0)

    run()
    assert order == ["first", "second"]
    with after([]):
        assert tf.constant(1) == 1
