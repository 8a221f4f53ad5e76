"""`test_attention.py` compares the values and gradients."""

import subprocess
import sys

import pytest
from reference.comparing import numpy

from keras_vit.exporting import exported_graph
from keras_vit.layers import head_loop

pytestmark = pytest.mark.tensorflow_only("a form for TensorFlow's CPUs")

PEAK = """
import pathlib, re, sys
import tensorflow as tf
from keras_vit.layers import MultiHeadSelfAttention

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])

layer = MultiHeadSelfAttention(6)

@tf.function(autograph=False)
def step(tokens):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tokens, training=True) ** 2)
    return tape.gradient(loss, [weight.value for weight in layer.trainable_weights])

step(tf.zeros((1, 256, 384)))
before = peak()
step(tf.ones((1, int(sys.argv[1]), 384)))
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
def test_the_memory_of_a_training_step_grows_linearly_with_the_tokens():
    def peak(tokens):
        command = [sys.executable, "-c", PEAK, str(tokens)]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert peak(8192) < 4.5 * peak(2048)


def test_exports_gpus_and_xla_have_no_loops_over_heads(monkeypatch):
    import tensorflow as tf

    forms = []

    @tf.function(jit_compile=True)
    def compiled():
        forms.append(head_loop.loops_over_heads())
        return tf.constant(0)

    compiled()
    assert forms == [False]
    assert head_loop.loops_over_heads()
    with exported_graph():
        assert not head_loop.loops_over_heads()
    monkeypatch.setattr("tensorflow.config.list_logical_devices", lambda name: [name])
    assert not head_loop.loops_over_heads()  # a GPU would wait for each head


def test_scores_of_narrow_types_are_computed_in_float32():
    import tensorflow as tf

    query = tf.constant([16.0, 0.0], "bfloat16", shape=(1, 1, 1, 2)) * 2**0.5
    key = tf.constant([[16.0, 0.0], [16.0, 0.0], [0.0, 0.0]], "bfloat16")[None, :, None]
    value = tf.constant([1.0, 3.0, 1e4], "bfloat16")[None, :, None, None]
    output = head_loop.attention_by_heads(query, key, tf.tile(value, (1, 1, 1, 2)))
    assert output.dtype == "bfloat16"
    assert numpy(tf.cast(output, "float32")).ravel().tolist() == [2.0, 2.0]
