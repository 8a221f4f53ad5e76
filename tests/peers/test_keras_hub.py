"""KerasHub's Vision Transformer and ours compute the same with the same weights.

KerasHub always has the exact GELU, and learned positions with a row for the class token.
"""

import pytest
from peers.keras_hub_models import copied
from peers.packages import keras_hub as keras_hub
from reference.comparing import assert_close, numpy
from reference.small import images_for, small

MODELS = {
    "token": {},
    "epsilon": {"norm_epsilon": 0.01},
    "mean": {"pooling": "gap"},
    "representation": {"representation_size": 9},
    "rectangle": {"image_size": (16, 24)},
    "rectangular patches": {"image_size": (16, 24), "patch_size": (8, 4)},
    "gray": {"in_channels": 1},
}


@pytest.mark.parametrize("name", MODELS)
def test_the_same_weights_give_the_same_logits(name):
    model = small(activation="gelu_erf", **MODELS[name])
    images = images_for(model)
    assert_close(model(images), numpy(copied(model)(images)))
