import keras
import numpy as np
import pytest
from made.sampling import some
from made.tables import by_table
from reference.attention_numpy import MODELS, inspected, query_tokens, set_attention
from reference.comparing import assert_close
from reference.small import images_for, small

from keras_vit import VisionTransformer, inspection
from keras_vit.inspection import attention_distance, attention_maps, attention_rollout, attention_weights
from keras_vit.inspection.attention import rollout_outputs, rollout_tensor

FAST = {
    *("hybrid", "any size", "distillation", "class token and mean", "map, norm after pooling"),
    *("a probe without prefix", "mixed", "relative"),
}
FUNCTIONS = (attention_weights, attention_maps, attention_rollout, attention_distance)


@pytest.fixture(
    params=[pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in MODELS],
    scope="module",
)
def case(request, golden):
    return inspected(request.param, golden)


def patch_maps(attention, expected):
    patches = attention[..., expected.prefix :]
    return (patches / patches.sum(-1, keepdims=True)).reshape(*attention.shape[:-1], *expected.grid)


def maps_by_numpy(model, scores, expected):
    return patch_maps(scores[:, :, query_tokens(model, expected)].mean(2), expected)


def rollout_by_numpy(model, expected):
    """Appendix D.8 of the paper, as a product of the blocks' averaged attention."""
    rows = []
    for image in range(len(expected.blocks[0])):
        product = identity = np.eye(expected.blocks[0].shape[-1])
        for scores in expected.blocks:
            step = identity + np.mean([*scores[image]], axis=0)
            product = (step / step.sum(axis=1, keepdims=True)) @ product
        if model.pooling == "map":
            rows.append(expected.probe[image].mean(0) @ product)
        else:
            rows.append(product[query_tokens(model, expected)].mean(0))
    return patch_maps(np.stack(rows), expected)


def test_scores_are_the_softmax_of_queries_and_keys(case):
    model, images, expected = case
    for block, scores in enumerate(expected.blocks):
        assert_close(attention_weights(model, images, block), scores, 1e-5)


def test_maps_are_the_rows_of_the_query_tokens(case):
    model, images, expected = case
    for block, scores in enumerate(expected.blocks):
        assert_close(attention_maps(model, images, block), maps_by_numpy(model, scores, expected), 1e-5)
    if expected.probe is None:
        last = maps_by_numpy(model, expected.blocks[-1], expected)
    else:
        last = patch_maps(expected.probe, expected)
    found = attention_maps(model, images)
    assert_close(found, last, 1e-5)
    assert found.dtype == "float32"
    np.testing.assert_allclose(found.sum((2, 3)), 1, rtol=1e-5)


@pytest.mark.slow
def test_rollout_is_the_product_of_the_blocks_attention(case):
    model, images, expected = case
    found = attention_rollout(model, images)
    assert_close(found, rollout_by_numpy(model, expected), 1e-5)
    assert found.dtype == "float32" and found.std() > 1e-4  # a uniform map cannot pass
    stages = keras.Model(model.input, rollout_outputs(model))(images[:1])
    row = keras.ops.convert_to_numpy(rollout_tensor(model, stages))
    assert_close(row / row.sum(), found[:1].reshape(1, -1), 1e-5)


def test_a_patch_that_all_tokens_attend_to_is_bright():
    """Keys that match one bright patch only, on a grid that is not square."""
    model = VisionTransformer(
        (16, 32), 8, 8, 1, 8, 1, num_classes=2, pooling="gap", position_embedding="none"
    )
    set_attention(model, query=np.zeros((8, 8)), key=4 * np.eye(8), query_bias=np.linspace(-3, 3, 8))
    kernel = np.zeros((8, 8, 3, 8))
    kernel[..., 7] = 1
    model.get_layer("patch_embedding").kernel.assign(kernel)
    images = np.zeros((1, 16, 32, 3), "float32")
    images[:, 8:, 16:24] = 1  # the patch in row 1, column 2
    for found in (attention_rollout(model, images)[0], attention_maps(model, images)[0, 0]):
        assert found.shape == (2, 4) and found.argmax() == 6
        assert found[1, 2] > 2 * np.delete(found.ravel(), 6).max()


def test_no_attention_to_any_patch_gives_a_uniform_map_and_a_distance_of_0():
    """The scores of all patches underflow to zero, and dividing by their sum would give NaN."""
    model = VisionTransformer(16, 8, 8, 1, 8, 1, position_embedding="none")
    set_attention(model, query=np.zeros((8, 8)), key=np.eye(8), query_bias=1e4 * np.eye(8)[0])
    model.get_layer("class_token").token.assign(np.eye(8)[:1, np.newaxis])
    images = np.zeros((1, 16, 16, 3), "float32")
    assert attention_weights(model, images)[0, 0, 0].tolist() == [1, 0, 0, 0, 0]
    for function in (attention_rollout, attention_maps):
        np.testing.assert_allclose(function(model, images), 1 / 4)
    assert attention_distance(model, images).tolist() == [[[0]]]


def test_half_precision_gives_float32_close_to_it():
    options = {"pooling": "map", "image_size": (16, 24)}
    model, exact = small(dtype="mixed_bfloat16", **options), small(**options)
    images = images_for(model)
    for function in (*FUNCTIONS, inspection.patch_similarity):
        found, expected = function(model, images), function(exact, images)
        assert found.dtype == "float32"
        np.testing.assert_allclose(found, expected, atol=0.03 * np.abs(expected).max())


@by_table("block", [2, -3, 1.0, True])
def test_a_block_out_of_range_is_refused(block):
    model = small()
    for function in (attention_weights, attention_maps, inspection.patch_norms):
        with pytest.raises(ValueError, match=f"block {block} is out of range: the model has 2 blocks"):
            function(model, images_for(model), block)


@pytest.mark.parametrize("function", some([attention_maps, attention_rollout, attention_distance], 3))
@pytest.mark.parametrize("pooling", some(["token", "map"], 2))
def test_the_result_does_not_depend_on_the_chunks(function, pooling, monkeypatch):
    model = small(pooling=pooling, image_size=(16, 32))
    expected = function(model, images_for(model))
    for size in (1, 1000):  # one query per chunk, and chunks that do not divide the queries
        monkeypatch.setattr(inspection.blocks, "CHUNK_BYTES", size)
        np.testing.assert_allclose(function(model, images_for(model)), expected, rtol=1e-5)
