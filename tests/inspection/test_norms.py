import keras
import numpy as np
import pytest
from reference.small import images_for, small

from keras_vit.inspection import patch_norms
from keras_vit.inspection.norms import ARTIFACT_NORM


def with_artifact(patch, **options):
    """A small model of which one patch's token is long from the position embedding on."""
    model = small(**options)
    table = model.get_layer("position_embedding").table
    values = keras.ops.convert_to_numpy(table).copy()
    values[..., values.shape[-2] - model_patches(model) + patch, :] += 100
    table.assign(values)
    return model


def model_patches(model):
    rows, columns = (side // 8 for side in model.image_size)
    return rows * columns


@pytest.mark.parametrize("options", [{}, {"pooling": "map"}, {"num_registers": 2, "image_size": (24, 32)}])
def test_a_long_token_is_at_its_patch(options):
    model = with_artifact(3, **options)
    norms = patch_norms(model, images_for(model))
    rows, columns = (side // 8 for side in model.image_size)
    assert norms.shape == (len(images_for(model)), rows, columns)
    found = np.argwhere(norms > ARTIFACT_NORM)
    assert found[:, 1:].tolist() == [[3 // columns, 3 % columns]] * len(norms)
    np.testing.assert_allclose(np.median(norms, axis=(1, 2)), 1, rtol=1e-6)


def test_norms_are_of_the_tokens_that_enter_the_block():
    model = small()
    images = images_for(model)
    outputs = model.feature_extractor(["encoder_block_0"], grid=True)(images)["encoder_block_0"]
    expected = np.linalg.norm(keras.ops.convert_to_numpy(outputs), axis=-1)
    expected /= np.median(expected, axis=(1, 2), keepdims=True)
    for block in (None, 1, -1):
        np.testing.assert_allclose(patch_norms(model, images, block), expected, rtol=1e-5)
    assert np.abs(patch_norms(model, images, 0) - expected).max() > 0.01
