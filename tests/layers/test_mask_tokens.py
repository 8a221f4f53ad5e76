import numpy as np
from reference.comparing import numpy, randomize

from keras_vit.layers.mask_tokens import MaskTokens


def test_each_position_gets_the_token_of_its_source_or_the_mask_token(rng):
    tokens = rng.standard_normal((2, 5, 8)).astype("float32")
    sources = np.array([[0, -1, 2, 0, 4], [3, 3, -1, -1, 1]])
    layer = MaskTokens()
    layer.build(tokens.shape, sources.shape)
    output = numpy(randomize(layer)(tokens, sources))
    assert output.shape == layer.compute_output_shape(tokens.shape, sources.shape)
    for image in range(2):
        for position, source in enumerate(sources[image]):
            expected = numpy(layer.token)[0, 0] if source == -1 else tokens[image, source]
            np.testing.assert_array_equal(output[image, position], expected)
