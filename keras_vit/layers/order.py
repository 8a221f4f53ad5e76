"""What is computed after what, where a backend would compute all at a time."""

import contextlib

import keras


def behind(tensors):
    """A context whose operations begin once these tensors are there.

    In its graphs TensorFlow computes on as many threads as there are what does not depend on each other,
    and holds the memory of it all. Elsewhere, and where nothing is in the list, nothing is changed.

    Example:
        >>> with behind([]):
        ...     x = keras.ops.ones(2)
    """
    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    import tensorflow as tf

    return tf.control_dependencies(tensors)
