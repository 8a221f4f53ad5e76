import numpy as np
import pytest
from reference.comparing import numpy, randomize

from keras_vit.layers import ClassToken


@pytest.mark.parametrize("num_tokens", [1, 4])
def test_the_tokens_come_first_and_are_the_same_for_every_image(num_tokens, rng):
    tokens = rng.standard_normal((3, 5, 8)).astype("float32")
    layer = ClassToken(num_tokens)
    layer.build(tokens.shape)
    randomize(layer)
    output = numpy(layer(tokens))
    assert output.shape == layer.compute_output_shape(tokens.shape) == (3, num_tokens + 5, 8)
    np.testing.assert_array_equal(output[:, num_tokens:], tokens)
    for image in output:
        np.testing.assert_array_equal(image[:num_tokens], numpy(layer.token)[0])
    assert layer.compute_output_shape((None, None, 8)) == (None, None, 8)
