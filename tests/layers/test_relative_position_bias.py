import json

import keras
import numpy as np
import pytest

from keras_vit.layers import RelativePositionBias, RelativePositionIndex

GRID = np.zeros((2, 3, 4, 1), "float32")


@pytest.mark.parametrize("class_token", [False, True])
def test_symbolic_shapes_are_those_of_the_index_and_configurations_restore_the_layers(class_token):
    index = RelativePositionIndex(class_token)
    assert index(keras.Input(GRID.shape[1:])).shape == index(GRID).shape
    for layer in (index, RelativePositionBias(2, (3, 4), class_token)):
        config = json.loads(json.dumps(layer.get_config()))
        assert type(layer).from_config(config).get_config() == layer.get_config()
