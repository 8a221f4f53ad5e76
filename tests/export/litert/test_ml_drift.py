import re

import flatbuffers
import numpy as np
import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema
from made.tables import by_table

from keras_vit.export.litert.ml_drift import refusals

KERNEL = tf.ones((1, 1, 3, 2000))


def converted(compute, shape=(1, 4, 6, 3)):
    function = tf.function(compute, input_signature=[tf.TensorSpec(shape)], autograph=False)
    functions = [function.get_concrete_function()]
    return tf.lite.TFLiteConverter.from_concrete_functions(functions, tf.train.Checkpoint()).convert()


def cut(x):
    return tf.reshape(tf.transpose(tf.reshape(x, (1, 2, 2, 3, 2, 3)), (0, 1, 3, 2, 4, 5)), (1, 6, 12))


@by_table(
    "compute, shape, reason",
    [
        (tf.sin, (1, 4), "it has no operation SIN"),
        (cut, (1, 4, 6, 3), r"at most 4 axes, and one of \w+ has the shape \[1, 2, 2, 3, 2, 3\]"),
        (lambda x: x * 2.0, (None, 4), r"fixed shapes, and one of MUL has the shape \[-1, 4\]"),
        (lambda x: tf.reshape(x, (24, 3)) * 2.0, (1, 4, 6, 3), r"batch of 1, and one of RESHAPE .*\[24, 3\]"),
        (lambda x: tf.matmul(tf.ones((1, 2, 4)), x), (1, 4, 3), "constants from the right only"),
        (lambda x: x[:, 0] * 2.0, (1, 4, 6, 3), "its slices keep all axes"),
        (lambda x: tf.nn.conv2d(x, KERNEL, 2, "VALID"), (1, 4, 6, 3), "1×1 convolutions have no strides"),
    ],
    ids=["operation", "axes", "shape", "batch", "matmul", "slice", "convolution"],
)
def test_what_ml_drift_does_not_compute_is_found(compute, shape, reason):
    with_reason = refusals(converted(compute, shape))
    assert re.search(reason, "; ".join(with_reason))


def test_nothing_is_found_in_what_it_computes():
    assert refusals(converted(lambda x: tf.nn.conv2d(x[:, ::2, ::2], KERNEL, 1, "VALID"))) == []


def test_an_empty_vector_is_as_none():
    """In place of the missing contents of a variable, and of the missing signature of a fixed shape."""
    model = schema.ModelT.InitFromPackedBuf(converted(lambda x: x * 2.0, (None, 4)))
    graph = model.subgraphs[0]
    variable = graph.tensors[graph.inputs[0]]
    model.buffers[variable.buffer].data = np.zeros(0, "uint8")
    builder = flatbuffers.Builder()
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    assert re.search(r"shape \[-1, 4\]", "; ".join(refusals(bytes(builder.Output()))))
    for tensor in graph.tensors:
        tensor.shapeSignature = np.zeros(0, "int32")
    builder = flatbuffers.Builder()
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    assert refusals(bytes(builder.Output())) == []
