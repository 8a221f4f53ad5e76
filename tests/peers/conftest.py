"""Set-up for the comparisons with other packages, which are skipped if these are not installed.

requirements-peers.txt lists them.
"""

import pathlib
import sys

import keras
import pytest

try:
    import torch
except ImportError:
    torch = None
else:
    sys.path.append(str(pathlib.Path(__file__).parents[2] / "benchmarks"))
    import systems

    systems.declare_torchvision()
    torch.set_num_threads(2)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent.name == "peers" and keras.backend.backend() != "tensorflow":
            item.add_marker(pytest.mark.skip(reason="compared with peers on TensorFlow only"))
