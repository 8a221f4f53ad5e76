"""Arrays, the tensors of Keras's backend, and TensorFlow's tensors in `tf.data`: which one a value is.

Exported models are opened, and their images prepared, without Keras and TensorFlow: where a package is not
imported, there are no tensors of it.
"""

import sys
from numbers import Integral

import numpy as np

from keras_vit.lazy import LazyModule

keras, tf = LazyModule("keras"), LazyModule("tensorflow")


def is_imported(package):
    return package in sys.modules


def is_tensorflow(value):
    return is_imported("tensorflow") and tf.is_tensor(value)


def is_tensor(value):
    """Whether this is a tensor of Keras's backend, a symbolic one, or one of TensorFlow in `tf.data`."""
    is_of_backend = is_imported("keras") and keras.ops.is_tensor(value)
    return is_of_backend or is_symbolic(value) or is_tensorflow(value)


def is_symbolic(value):
    return is_imported("keras") and isinstance(value, keras.KerasTensor)


def backend_of(*values):
    """The backend of tensors: TensorFlow for its own, else the one that Keras runs on."""
    from keras.src.utils.backend_utils import DynamicBackend  # of Keras's own layers in tf.data: not public

    return DynamicBackend("tensorflow" if any(map(is_tensorflow, values)) else None)


def arithmetic(*numbers):
    """The NumPy-like module and the `cast` for numbers: NumPy's for ints, else those of a backend."""
    if all(isinstance(number, Integral) for number in numbers):
        return np, np.asarray
    backend = backend_of(*numbers)
    return backend.numpy, backend.cast


def to_float32(pixels):
    """A tensor, or an array, as float32."""
    if isinstance(pixels, np.ndarray):
        return pixels.astype("float32", copy=False)
    return backend_of(pixels).cast(pixels, "float32")
