"""TensorFlow's graphs: control dependencies, and who compiles them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import keras

from keras_vit.types import Tensor


def after(tensors: Sequence[Tensor]) -> contextlib.AbstractContextManager[Any]:
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


def is_compiled_by_xla() -> bool:
    """Whether TensorFlow traces a function that XLA compiles, as on TPUs, in which Python cannot be called.

    >>> is_compiled_by_xla()
    False
    """
    import tensorflow as tf
    from tensorflow.python.ops import control_flow_util

    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
