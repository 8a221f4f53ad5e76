"""What the tests against other projects' software get: that software without network, graphics or noise.

They are skipped where it is not installed; requirements-peers.txt says how it is.
"""

import keras
import pytest

try:
    import torch
except ImportError:
    torch = None
else:
    # torchvision, which timm imports, registers on import what to do with two operators that its
    # compiled half declares; that half is made for one build of torch and need not load beside this
    # one. Declared here, they are never called.
    _OPERATORS = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    torch.set_num_threads(2)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent.name == "peers" and keras.backend.backend() != "tensorflow":
            item.add_marker(pytest.mark.skip(reason="held against peers on TensorFlow alone"))
