"""Packages that may be missing: `from peers.packages import timm` skips the tests of a file without it."""

import pytest


def __getattr__(name):
    if name.startswith("__"):  # which Python itself looks up
        raise AttributeError(name)
    return pytest.importorskip(name, reason=f"{name} is not installed; see requirements-peers.txt")
