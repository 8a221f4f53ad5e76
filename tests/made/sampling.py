"""A sample of many cases for the fast tests; the others are slow."""

import keras
import pytest

PARAMETERS = type(pytest.param())


def some(cases, every):
    """The cases of a `parametrize`; all but one in `every` are marked slow.

    For a product of several lists, choose a number that divides none of their lengths, so that the
    sample holds each of their values.
    """
    return [_slow(case) if index % every else case for index, case in enumerate(cases)]


def some_on_jax(cases, every):
    """The same on JAX alone, which compiles anew for every case; on TensorFlow no case is slow."""
    return some(cases, 1 if keras.backend.backend() == "tensorflow" else every)


def _slow(case):
    if isinstance(case, PARAMETERS):
        return pytest.param(*case.values, marks=[*case.marks, pytest.mark.slow], id=case.id)
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
