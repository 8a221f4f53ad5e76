"""What the tests against other projects' software get: that software without network, graphics or noise.

They are skipped where it is not installed; requirements-peers.txt says how it is.
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
            item.add_marker(pytest.mark.skip(reason="held against peers on TensorFlow alone"))
