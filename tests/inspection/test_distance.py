import math

import numpy as np
import pytest
from reference.attention_numpy import MODELS, inspected, set_uniform_attention
from reference.comparing import assert_close
from reference.small import HYBRID, images_for, small

from keras_vit.inspection import attention_distance


def distances(rows, columns, height, width):
    """The distances between every two patches, of this size, of a grid."""
    positions = [(r * height, c * width) for r in range(rows) for c in range(columns)]
    return np.array([[math.dist(here, there) for there in positions] for here in positions])


def distance_by_numpy(images, expected):
    """Appendix D.7 of the paper, head by head; the patches share the image's sides equally."""
    between = distances(*expected.grid, *np.divide(images.shape[1:3], expected.grid))
    found = np.zeros((len(images), len(expected.blocks), expected.blocks[0].shape[1]))
    for image, block, head in np.ndindex(found.shape):
        scores = expected.blocks[block][image, head, expected.prefix :, expected.prefix :]
        found[image, block, head] = np.average(between, axis=1, weights=scores).mean()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["token", *(name for name in MODELS if name != "token")])
def test_distances_are_weighted_by_attention(name, golden):
    model, images, expected = inspected(name, golden)
    found = attention_distance(model, images)
    assert_close(found, distance_by_numpy(images, expected), 1e-5)
    assert found.dtype == "float32"


@pytest.mark.parametrize("size", [(16, 32), (40, 24)])
@pytest.mark.parametrize("pooling", ["token", "gap"])
def test_uniform_attention_has_the_grids_mean_distance(size, pooling):
    model = set_uniform_attention(small(image_size=(None, None), pooling=pooling, num_registers=1))
    found = attention_distance(model, images_for(model, 2, size))
    np.testing.assert_allclose(found, distances(size[0] // 8, size[1] // 8, 8, 8).mean(), rtol=1e-5)


def test_distances_of_rectangular_patches_and_after_a_stem_are_in_pixels_of_the_image():
    # 60 pixels are rounded up to 8 grid positions of the stem, of 8 pixels each.
    stem = {**HYBRID, "resnet": (1, 1), "image_size": (32, 60), "patch_size": (1, 2)}
    for options, patches in (
        ({"image_size": (16, 32), "patch_size": (4, 16)}, (4, 2, 4, 16)),
        (stem, (4, 4, 8, 16)),
    ):
        model = set_uniform_attention(small(**options))
        found = attention_distance(model, images_for(model))
        np.testing.assert_allclose(found, distances(*patches).mean(), rtol=1e-5)
