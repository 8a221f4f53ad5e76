import numpy as np
import pytest
from reference.attention_numpy import MODELS, attention_set, blind, inspected, readers
from reference.comparing import assert_close
from reference.small import NO_TRANSFORMER, images_for, small

from keras_vit import VisionTransformer
from keras_vit.inspection import attention_maps, attention_rollout, attention_scores, blocks


@pytest.fixture(params=MODELS, scope="module")
def case(request, golden):
    return inspected(request.param, golden)


def on_the_grid(seen, look):
    cells = seen[..., look.prefix :]
    return (cells / cells.sum(-1, keepdims=True)).reshape(*seen.shape[:-1], *look.grid)


def map_by_numpy(model, scores, look):
    """The row that is read: the mean of its readers'."""
    row = scores[:, :, readers(model, look)].mean(2)
    return on_the_grid(row, look)


def rollout_by_numpy(model, look):
    """Appendix D.8 of the paper, as a product of the blocks' averaged attention."""
    rows = []
    for image in range(len(look.blocks[0])):
        tokens = look.blocks[0].shape[-1]
        product = np.eye(tokens)
        for scores in look.blocks:
            step = np.eye(tokens) + np.mean([*scores[image]], axis=0)
            product = (step / step.sum(axis=1, keepdims=True)) @ product
        if model.pooling == "map":
            rows.append(look.probe[image].mean(0) @ product)
        else:
            rows.append(product[readers(model, look)].mean(0))
    return on_the_grid(np.stack(rows), look)


def test_scores_are_the_softmax_of_queries_and_keys(case):
    model, images, look = case
    for block, scores in enumerate(look.blocks):
        assert_close(attention_scores(model, images, block), scores, 1e-5)


def test_maps_are_the_row_that_is_read(case):
    model, images, look = case
    for block, scores in enumerate(look.blocks):
        assert_close(attention_maps(model, images, block), map_by_numpy(model, scores, look), 1e-5)
    last = map_by_numpy(model, look.blocks[-1], look)
    found = attention_maps(model, images)
    assert_close(found, last if look.probe is None else on_the_grid(look.probe, look), 1e-5)
    assert found.dtype == "float32"
    np.testing.assert_allclose(found.sum((2, 3)), 1, rtol=1e-5)


def test_rollout_is_the_product_of_the_blocks_attention(case):
    model, images, look = case
    found = attention_rollout(model, images)
    assert_close(found, rollout_by_numpy(model, look), 1e-5)
    assert found.dtype == "float32"
    np.testing.assert_allclose(found.sum((1, 2)), 1, rtol=1e-5)
    assert found.std() > 1e-4  # so that a map of equal numbers could not pass


def test_the_last_block_is_looked_at_by_default():
    model = small()
    images = images_for(model)
    for look in (attention_scores, attention_maps):
        last, first = (look(model, images, block) for block in (-1, 0))
        np.testing.assert_array_equal(look(model, images), last)
        np.testing.assert_array_equal(look(model, images, 1), last)
        np.testing.assert_array_equal(look(model, images, -2), first)
        assert np.abs(last - first).max() > 1e-3


def test_a_patch_that_everything_looks_at_is_where_the_map_is_bright():
    """Keys that answer to one bright patch alone, on a grid that is no square."""
    model = VisionTransformer(
        (16, 32), 8, 8, 1, 8, 1, num_classes=2, pooling="gap", position_embedding="none"
    )
    attention_set(model, query=np.zeros((8, 8)), key=4 * np.eye(8), query_bias=np.linspace(-3, 3, 8))
    kernel = np.zeros((8, 8, 3, 8))
    kernel[..., 7] = 1
    model.get_layer("patch_embedding").kernel.assign(kernel)
    images = np.zeros((1, 16, 32, 3), "float32")
    images[:, 8:, 16:24] = 1  # the patch in row 1, column 2
    for seen in (attention_rollout(model, images)[0], attention_maps(model, images)[0, 0]):
        assert seen.shape == (2, 4)
        assert np.unravel_index(seen.argmax(), seen.shape) == (1, 2)
        assert seen[1, 2] > 2 * np.delete(seen.ravel(), 6).max()


@pytest.mark.parametrize("pooling", ["token", "gap"])
def test_a_model_that_looks_at_everything_alike_has_maps_of_equal_numbers(pooling):
    model = blind(small(pooling=pooling, image_size=(16, 24), num_registers=2))
    images = images_for(model)
    for seen in (attention_rollout(model, images), attention_maps(model, images)):
        np.testing.assert_allclose(seen, 1 / 6, rtol=1e-5)


def test_a_class_token_that_sees_no_patch_has_a_map_of_equal_numbers():
    """Scores so far apart that those of the patches are zero; a share of nothing would be NaN."""
    model = VisionTransformer(16, 8, 8, 1, 8, 1, position_embedding="none")
    attention_set(model, query=np.zeros((8, 8)), key=np.eye(8), query_bias=1e4 * np.eye(8)[0])
    model.get_layer("class_token").token.assign(np.eye(8)[:1, np.newaxis])
    images = np.zeros((1, 16, 16, 3), "float32")
    assert attention_scores(model, images)[0, 0, 0].tolist() == [1, 0, 0, 0, 0]
    for seen in (attention_rollout(model, images), attention_maps(model, images)):
        np.testing.assert_allclose(seen, 1 / 4)


NOT_IN_JAX = pytest.mark.tensorflow_only("JAX computes in float64 only if its settings allow it")


@pytest.mark.parametrize("policy", ["mixed_bfloat16", pytest.param("float64", marks=NOT_IN_JAX)])
def test_another_precision_gives_float32_close_to_it(policy):
    options = {"pooling": "map", "image_size": (16, 24)}
    model, exact = small(dtype=policy, **options), small(**options)
    images = images_for(model)
    for look in (attention_scores, attention_maps, attention_rollout):
        found = look(model, images)
        assert found.dtype == "float32"
        np.testing.assert_allclose(found, look(exact, images), atol=0.02)


@pytest.mark.parametrize("look", [attention_scores, attention_maps])
@pytest.mark.parametrize("block", [2, -3, 0.5, 1.0, True, "1"])
def test_a_block_that_is_not_there_is_refused(look, block):
    model = small()
    with pytest.raises(ValueError, match=f"block {block} is not there; the model has 2 blocks"):
        look(model, images_for(model), block)


@pytest.mark.parametrize("look", [attention_scores, attention_maps, attention_rollout])
def test_a_model_without_blocks_is_refused(look):
    model = small(**NO_TRANSFORMER)
    with pytest.raises(ValueError, match="has 0 blocks"):
        look(model, images_for(model))


@pytest.mark.parametrize("look", [attention_maps, attention_rollout])
def test_it_is_the_same_whatever_part_of_the_scores_is_held(look, monkeypatch):
    for pooling in ("token", "gap", "map"):
        model = small(pooling=pooling, image_size=(16, 32))
        images = images_for(model)
        whole = look(model, images)
        for held in (1, 1000):  # one query at a time, and stretches that do not divide the queries
            monkeypatch.setattr(blocks, "STRETCH", held)
            np.testing.assert_allclose(look(model, images), whole, rtol=1e-5)
        monkeypatch.undo()
