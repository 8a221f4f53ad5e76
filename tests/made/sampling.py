"""Some of many cases, so that `make test` stays short."""

import os

import keras


def some(cases, every):
    """Every so-many-th of the cases; all of them with FULL.

    Of a product of several lists, choose a number that divides none of their lengths: each of their
    values comes up then.
    """
    return [*cases][:: 1 if "FULL" in os.environ else every]


def some_on_jax(cases, every):
    """The same on JAX alone, which compiles anew for every case; TensorFlow takes them all."""
    return some(cases, 1 if keras.backend.backend() == "tensorflow" else every)
