import json

import keras
import numpy as np
import pytest
from reference.comparing import numpy, randomize

from keras_vit.layers import RelativePositionBias, RelativePositionIndex

GRID = np.zeros((2, 3, 4, 1), "float32")


@pytest.mark.parametrize("class_token", [False, True])
def test_two_pairs_of_patches_share_a_row_if_they_have_the_same_offset(class_token):
    layer = RelativePositionIndex(class_token)
    index = numpy(layer(GRID))
    assert layer(keras.Input(GRID.shape[1:])).shape == index.shape
    patches = index[class_token:, class_token:]
    places = [divmod(i, 4) for i in range(12)]
    rows = {}
    for i, (y, x) in enumerate(places):
        for j, (v, u) in enumerate(places):
            rows.setdefault((y - v, x - u), set()).add(int(patches[i, j]))
    assert all(len(found) == 1 for found in rows.values())
    assert {row for found in rows.values() for row in found} == {*range(5 * 7)}
    if class_token:
        assert {*index[0, 1:]} == {35} and {*index[1:, 0]} == {36} and index[0, 0] == 37


def test_the_bias_has_a_number_for_each_head_and_offset():
    layer = RelativePositionBias(num_heads=2, grid_size=(3, 4), class_token=False)
    index = numpy(RelativePositionIndex(class_token=False)(GRID))
    layer(index)
    randomize(layer)
    bias = numpy(layer(index))
    assert layer.table.shape == (35, 2)
    np.testing.assert_array_equal(bias, numpy(layer.table)[index].transpose(2, 0, 1))
    again = RelativePositionBias.from_config(json.loads(json.dumps(layer.get_config())))
    assert again.get_config() == layer.get_config()
