"""Arrays, the tensors of Keras's backend, and TensorFlow's tensors in `tf.data`: which one a value is."""

import sys

import keras
import numpy as np
from keras import ops
from keras.src.utils.backend_utils import DynamicBackend  # what Keras's own layers use in tf.data: not public


def tensorflow():
    """TensorFlow if it has been imported; otherwise there are no tensors of it."""
    return sys.modules.get("tensorflow")


def is_tensorflow(value):
    return tensorflow() is not None and tensorflow().is_tensor(value)


def is_tensor(value):
    """Whether this is a tensor of Keras's backend, a symbolic one, or one of TensorFlow in `tf.data`."""
    return ops.is_tensor(value) or isinstance(value, keras.KerasTensor) or is_tensorflow(value)


def backend_of(*values):
    """The backend of arrays or tensors: TensorFlow for its own tensors, else the one that Keras runs on."""
    return DynamicBackend("tensorflow" if any(map(is_tensorflow, values)) else None)


def to_float32(pixels):
    return pixels if isinstance(pixels, np.ndarray) else backend_of(pixels).cast(pixels, "float32")
