"""Control dependencies in TensorFlow's graphs."""

import contextlib

import keras


def after(tensors):
    """A context whose operations run after these tensors have been computed.

    TensorFlow runs independent operations of a graph concurrently, and all of their results stay in memory.
    On other backends, and with an empty list, the context has no effect.

    Example:
        >>> with after([]):
        ...     x = keras.ops.ones(2)
    """
    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    import tensorflow as tf

    return tf.control_dependencies(tensors)
