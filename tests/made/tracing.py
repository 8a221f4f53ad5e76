"""TensorFlow's warnings of functions that are traced too often, which tests/conftest.py turns off."""

import contextlib
from unittest import mock

from tensorflow.python.eager.polymorphic_function import polymorphic_function


@contextlib.contextmanager
def tracing_warnings():
    """Count tracings from zero and warn each time; yields the list of the warnings' texts."""
    texts = []
    with (
        mock.patch.object(polymorphic_function, "FREQUENT_TRACING_WARNING_MAX_WARNING_PER_DETECTOR", 100),
        mock.patch.object(
            polymorphic_function,
            "_frequent_tracing_detector_manager",
            polymorphic_function._FrequentTracingDetectorManager(),
        ),
        mock.patch.object(polymorphic_function.logging, "warning", texts.append),
    ):
        yield texts
