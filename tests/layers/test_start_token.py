import numpy as np
from reference.comparing import numpy, randomize

from keras_vit.layers import StartToken


def test_the_token_comes_first_and_the_last_one_is_left_out(rng):
    tokens = rng.standard_normal((2, 4, 3)).astype("float32")
    layer = StartToken()
    layer.build(tokens.shape)
    randomize(layer)
    start = np.broadcast_to(numpy(layer.token), (2, 1, 3))
    np.testing.assert_array_equal(numpy(layer(tokens)), np.concatenate([start, tokens[:, :-1]], axis=1))
