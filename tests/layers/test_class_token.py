import numpy as np
import pytest
from reference.comparing import numpy, randomise

from keras_vit.layers import ClassToken


@pytest.mark.parametrize("num_tokens", [1, 4])
def test_the_tokens_stand_first_and_are_the_same_for_every_image(num_tokens, rng):
    tokens = rng.standard_normal((3, 5, 8)).astype("float32")
    layer = ClassToken(num_tokens)
    layer.build(tokens.shape)
    randomise(layer)
    output = numpy(layer(tokens))
    assert output.shape == layer.compute_output_shape(tokens.shape) == (3, num_tokens + 5, 8)
    np.testing.assert_array_equal(output[:, num_tokens:], tokens)
    for image in output:
        np.testing.assert_array_equal(image[:num_tokens], numpy(layer.token)[0])


def test_it_starts_at_zero_or_as_it_is_told():
    for initializer, start in (("zeros", 0), ("ones", 1)):
        layer = ClassToken(initializer=initializer)
        layer.build((None, 5, 8))
        np.testing.assert_array_equal(numpy(layer.token), np.full((1, 1, 8), start))


def test_a_batch_of_no_images_stays_one():
    assert ClassToken(2)(np.zeros((0, 5, 8))).shape == (0, 7, 8)


def test_the_output_shape_may_be_unknown():
    assert ClassToken(2).compute_output_shape((None, None, 8)) == (None, None, 8)


@pytest.mark.parametrize("num_tokens", [0, -1, 1.5, None])
def test_a_number_of_tokens_that_is_none_is_refused(num_tokens):
    with pytest.raises(ValueError, match=f"num_tokens must be a positive int; got {num_tokens}"):
        ClassToken(num_tokens)
