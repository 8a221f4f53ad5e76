import numpy as np
import pytest
from made.tables import by_table
from reference.comparing import arrays, assert_close
from reference.goldens import GOLDENS
from reference.small import HYBRID, NO_TRANSFORMER, images_for, small
from reference.vit_numpy import forward

from keras_vit import from_pretrained
from keras_vit.inspection import patch_similarity


def similarity_by_numpy(features):
    """The cosines of every two grid positions of (batch, rows, columns, channels)."""
    batch, rows, columns, _ = features.shape
    found = np.zeros((batch, rows, columns, rows, columns))
    for image, *cells in np.ndindex(found.shape):
        one, other = features[image, cells[0], cells[1]], features[image, cells[2], cells[3]]
        found[image, *cells] = np.vdot(one, other) / np.sqrt(np.vdot(one, one) * np.vdot(other, other))
    return found


@pytest.mark.slow
@by_table("name", ["token", "gap", "bigvision_map", "hybrid_root", "timm_avg"])
def test_similarities_are_the_cosines_of_the_patches_tokens(name, golden):
    file, _, given = GOLDENS[name]
    model = from_pretrained(golden / file, **{**given, "image_size": (32, 48)})
    images = images_for(model)
    tokens = forward(arrays(model), images, model.get_config())["tokens"][:, model.num_prefix_tokens :]
    rows, columns = model.get_layer("patch_embedding").output.shape[1:3]
    found = patch_similarity(model, images)
    assert_close(found, similarity_by_numpy(tokens.reshape(2, rows, columns, -1)), 1e-5)
    assert found.dtype == "float32"


BLOCKS = ("patch_embedding", "position_embedding", "tokens", "encoder_block_0", "encoder_block_1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options, stages",
    [
        ({"num_registers": 2}, (*BLOCKS, "encoder_norm")),
        ({"num_registers": 2, "norm_after_pooling": True}, BLOCKS),
        (NO_TRANSFORMER, ("patch_embedding", "tokens")),
    ],
)
def test_a_stage_is_the_feature_extractors(options, stages):
    model = small(image_size=(16, 24), **options)
    images = images_for(model)
    for stage, features in model.feature_extractor(stages, grid=True)(images).items():
        expected = similarity_by_numpy(np.asarray(features))
        assert_close(patch_similarity(model, images, stage), expected, 1e-5)


def test_equal_patches_have_similarity_1_and_zero_ones_0():
    """Negative pixels make opposite vectors, zero ones zero vectors."""
    model = small(image_size=(16, 24), pre_norm=True)  # whose embedding has no bias
    images = np.zeros((1, 16, 24, 3), "float32")
    images[:, :8, :8], images[:, :8, 8:16], images[:, 8:, :8] = 1, 0.25, -1
    found = patch_similarity(model, images, "patch_embedding")[0].reshape(6, 6)
    color = np.array([1, 1, 0, -1, 0, 0])
    np.testing.assert_allclose(found, np.outer(color, color), atol=1e-6)


def test_a_stage_needs_one_vector_per_patch():
    model = small(**{**HYBRID, "image_size": (32, 64)}, resnet=(1, 1))
    images = images_for(model)
    assert patch_similarity(model, images, "block2_unit1").shape == (2, 4, 8, 4, 8)
    refused = {"block1_unit1": "expected a stage with one vector per patch; 'block1_unit1' has 8×16"}
    for stage, message in {**refused, "pooled": "holds no grid", "tockens": "unknown"}.items():
        with pytest.raises(ValueError, match=message):
            patch_similarity(model, images, stage)
    model = small(pooling="gap", norm_after_pooling=True)  # Its norm gets one vector for each image.
    with pytest.raises(ValueError, match="unknown: .*encoder_norm"):
        patch_similarity(model, images_for(model), "encoder_norm")
