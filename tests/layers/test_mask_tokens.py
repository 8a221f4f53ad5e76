import numpy as np
from reference.comparing import numpy, randomise

from keras_vit.layers.mask_tokens import MaskTokens


def built(channels=8, **options):
    layer = MaskTokens(**options)
    layer.build((None, 5, channels), (None, 5))
    return layer


def test_each_place_holds_the_token_that_its_source_names_or_the_mask(rng):
    tokens = rng.standard_normal((2, 5, 8)).astype("float32")
    sources = np.array([[0, -1, 2, 0, 4], [3, 3, -1, -1, 1]])
    layer = randomise(built())
    output = numpy(layer(tokens, sources))
    assert output.shape == layer.compute_output_shape(tokens.shape, sources.shape)
    for image in range(2):
        for place, source in enumerate(sources[image]):
            expected = numpy(layer.token)[0, 0] if source == -1 else tokens[image, source]
            np.testing.assert_array_equal(output[image, place], expected)


def test_it_starts_small_or_as_it_is_told():
    start = numpy(built(channels=1000).token)
    assert 0.03 < start.std() < 0.07
    np.testing.assert_array_equal(numpy(built(initializer="zeros").token), np.zeros((1, 1, 8)))


def test_a_batch_of_no_images_stays_one():
    assert MaskTokens()(np.zeros((0, 5, 8)), np.zeros((0, 5), int)).shape == (0, 5, 8)
