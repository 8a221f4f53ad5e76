import math
import os

import numpy as np
import pytest
from reference.attention_numpy import MODELS, attention_set, blind, inspected
from reference.comparing import assert_close
from reference.small import HYBRID, NO_TRANSFORMER, images_for, small

from keras_vit import VisionTransformer
from keras_vit.inspection import attention_distance, blocks


def distance_by_numpy(images, look):
    """Appendix D.7 of the paper, patch by patch; the patches share the image's sides equally."""
    (rows, columns), (height, width) = look.grid, images.shape[1:3]
    places = [(r * height / rows, c * width / columns) for r in range(rows) for c in range(columns)]
    found = np.zeros((len(images), len(look.blocks), look.blocks[0].shape[1]))
    for at in np.ndindex(found.shape):
        image, block, head = at
        scores = look.blocks[block][image, head, look.prefix :, look.prefix :]
        reach = [
            np.average([math.dist(here, there) for there in places], weights=row)
            for here, row in zip(places, scores, strict=True)
        ]
        found[at] = np.mean(reach)
    return found


def every_two(rows, columns, height, width):
    """The mean distance between two places of a grid with cells of this size."""
    places = [(r * height, c * width) for r in range(rows) for c in range(columns)]
    return np.mean([math.dist(here, there) for here in places for there in places])


LOOKED_AT = ("token", "map and its norm after it", "hybrid", "any size", "registers and gap", "every token")


@pytest.mark.parametrize("name", MODELS if "FULL" in os.environ else LOOKED_AT)
def test_distances_are_those_of_the_patches_weighted_by_attention(name, golden):
    model, images, look = inspected(name, golden)
    found = attention_distance(model, images)
    assert_close(found, distance_by_numpy(images, look), 1e-5)
    assert found.dtype == "float32"


def test_two_patches_that_look_alike_at_both_reach_half_of_their_distance():
    model = blind(small(image_size=(8, 16), num_registers=1))
    np.testing.assert_allclose(attention_distance(model, images_for(model)), 8 / 2, rtol=1e-6)


@pytest.mark.parametrize("size", [(16, 32), (40, 24)])
@pytest.mark.parametrize("pooling", ["token", "gap"])
def test_looking_at_everything_alike_reaches_the_grids_mean_distance(size, pooling):
    model = blind(small(image_size=(None, None), pooling=pooling, num_registers=1))
    found = attention_distance(model, images_for(model, 2, size))
    np.testing.assert_allclose(found, every_two(size[0] // 8, size[1] // 8, 8, 8), rtol=1e-5)


def test_patches_that_are_no_squares_and_a_stems_cells_count_in_the_images_pixels():
    model = blind(small(image_size=(16, 32), patch_size=(4, 16)))
    np.testing.assert_allclose(
        attention_distance(model, images_for(model)), every_two(4, 2, 4, 16), rtol=1e-5
    )
    model = blind(small(**{**HYBRID, "resnet": (1, 1), "image_size": (32, 60), "patch_size": (1, 2)}))
    # 60 pixels are rounded up to 8 of the stem's cells of 8 pixels.
    np.testing.assert_allclose(
        attention_distance(model, images_for(model)), every_two(4, 4, 8, 16), rtol=1e-5
    )


def one_hot(pooling="gap", query_bias=0.0, size=20.0):
    """A model of 2×3 patches that sees nothing but places, each with a channel of its own."""
    model = VisionTransformer((16, 24), 8, 8, 2, 8, 1, pooling=pooling)
    model.get_layer("patch_embedding").kernel.assign(np.zeros((8, 8, 3, 8)))
    for i in range(2):  # the tokens pass through as they are
        block = model.get_layer(f"encoder_block_{i}")
        block.attention.out.kernel.assign(np.zeros((1, 8, 8)))
        block.mlp.dense_1.kernel.assign(np.zeros((8, 8)))
    prefix = model.num_prefix_tokens
    model.get_layer("position_embedding").table.assign(np.eye(6 + prefix, 8)[np.newaxis])
    return attention_set(model, query=size * np.eye(8), key=size * np.eye(8), query_bias=query_bias)


def test_looking_at_itself_alone_reaches_nowhere():
    assert attention_distance(one_hot(), np.zeros((1, 16, 24, 3), "float32")).tolist() == [[[0], [0]]]


def test_everybody_looking_at_the_first_patch_reaches_to_it():
    model = one_hot(query_bias=1e3 * np.eye(8)[0])
    expected = np.mean([math.hypot(8 * row, 8 * column) for row in range(2) for column in range(3)])
    np.testing.assert_allclose(attention_distance(model, np.zeros((1, 16, 24, 3), "float32")), expected)


def test_looking_at_the_class_token_alone_counts_as_zero():
    model = one_hot("token", query_bias=1e3 * np.eye(8)[0])
    assert attention_distance(model, np.zeros((1, 16, 24, 3), "float32")).tolist() == [[[0], [0]]]


def test_it_is_the_same_whatever_part_of_the_scores_is_held(monkeypatch):
    model = small(image_size=(16, 32), num_registers=2)
    images = images_for(model)
    whole = attention_distance(model, images)
    for held in (1, 1000):
        monkeypatch.setattr(blocks, "STRETCH", held)
        np.testing.assert_allclose(attention_distance(model, images), whole, rtol=1e-5)


def test_half_precision_gives_float32_close_to_it():
    model = small(image_size=(16, 32), dtype="mixed_bfloat16")
    images = images_for(model)
    found = attention_distance(model, images)
    assert found.dtype == "float32"
    np.testing.assert_allclose(found, attention_distance(small(image_size=(16, 32)), images), rtol=0.05)


def test_a_model_without_blocks_is_refused():
    model = small(**NO_TRANSFORMER)
    with pytest.raises(ValueError, match="has 0 blocks"):
        attention_distance(model, images_for(model))
