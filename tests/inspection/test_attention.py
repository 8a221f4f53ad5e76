import keras
import numpy as np
import pytest
from reference import vit_numpy as reference
from reference.comparing import arrays, assert_close
from reference.small import NO_TRANSFORMER, images_for, small

from keras_vit import VisionTransformer, from_pretrained
from keras_vit.inspection import attention_rollout, attention_scores

REGISTERS = {"num_registers": 3, "image_size": (16, 32)}
MODELS = {
    "token": lambda golden: from_pretrained(golden / "token.npz"),
    "gap": lambda golden: from_pretrained(golden / "gap.npz"),
    "a rectangle": lambda golden: from_pretrained(golden / "token.npz", image_size=(24, 48)),
    "any size": lambda golden: from_pretrained(golden / "gap.npz", image_size=(None, None)),
    "registers": lambda golden: small(**REGISTERS),
    "registers and gap": lambda golden: small(**REGISTERS, pooling="gap"),
    "map": lambda golden: small(pooling="map", image_size=(16, 32)),
    "distillation": lambda golden: small(distillation=True),
}


@pytest.fixture(params=MODELS)
def model(request, golden):
    return MODELS[request.param](golden)


@pytest.fixture
def images(model):
    return images_for(model, 3, (40, 24) if model.image_size == (None, None) else None)


def scores_by_numpy(model, images):
    """The scores of each block, (batch, heads, tokens, tokens), and the shape of the grid."""
    c, w = model.get_config(), {name: a.astype("float64") for name, a in arrays(model).items()}
    stages = ["patch_embedding", *(f"encoder_block_{i}" for i in range(c["num_layers"]))]
    inside = model.feature_extractor(stages)(images)
    grid = inside["patch_embedding"].shape[1:3]
    first = model.get_layer("encoder_block_0").input
    x = keras.Model(model.input, first)(images).numpy().astype("float64")
    found = []
    for i in range(c["num_layers"]):
        name = f"encoder_block_{i}"
        y = reference.layer_norm(w, f"{name}/attention_norm", x, c)
        q, k = (
            np.einsum("btc,chd->bhtd", y, w[f"{name}/attention/{part}/kernel"])
            + w[f"{name}/attention/{part}/bias"][:, np.newaxis]
            for part in ("query", "key")
        )
        found.append(reference.softmax(np.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(q.shape[-1])))
        x = reference.block(w, name, x, c)
    return found, grid


def rollout_by_numpy(model, images):
    """Appendix D.8 of the paper, as a product of the blocks' averaged attention."""
    scores, grid = scores_by_numpy(model, images)
    rows = []
    for image in range(len(images)):
        tokens = scores[0].shape[-1]
        product = np.eye(tokens)
        for block in scores:
            step = np.eye(tokens) + np.mean([block[image, head] for head in range(block.shape[1])], axis=0)
            product = (step / step.sum(axis=1, keepdims=True)) @ product
        row = product[0] if model.class_token else np.mean(product, axis=0)
        cells = row[tokens - grid[0] * grid[1] :]
        rows.append((cells / cells.sum()).reshape(grid))
    return np.stack(rows)


def test_scores_are_the_softmax_of_queries_and_keys(model, images):
    expected, _ = scores_by_numpy(model, images)
    for block, scores in enumerate(expected):
        assert_close(attention_scores(model, images, block), scores, 1e-5)


def test_rollout_is_the_product_of_the_blocks_attention(model, images):
    found = attention_rollout(model, images)
    assert_close(found, rollout_by_numpy(model, images), 1e-5)
    np.testing.assert_allclose(found.sum((1, 2)), 1, rtol=1e-5)
    assert found.std() > 1e-4  # so that a map of equal numbers could not pass


def test_the_last_block_is_looked_at_by_default():
    model = small()
    images = images_for(model)
    last, first = (attention_scores(model, images, block) for block in (-1, 0))
    np.testing.assert_array_equal(attention_scores(model, images), last)
    np.testing.assert_array_equal(attention_scores(model, images, 1), last)
    assert np.abs(last - first).max() > 1e-3


def test_a_patch_that_everything_looks_at_is_where_the_map_is_bright():
    """Keys that answer to one bright patch alone, on a grid that is no square."""
    model = VisionTransformer(
        (16, 32), 8, 8, 1, 8, 1, num_classes=2, pooling="gap", position_embedding="none"
    )
    for name in ("query", "key"):
        layer = getattr(model.get_layer("encoder_block_0").attention, name)
        layer.kernel.assign(np.eye(8).reshape(8, 1, 8) * (4 if name == "key" else 0))
        layer.bias.assign(np.full((1, 8), name == "query") * np.linspace(-3, 3, 8))
    kernel = np.zeros((8, 8, 3, 8))
    kernel[..., 7] = 1
    model.get_layer("patch_embedding").kernel.assign(kernel)
    images = np.zeros((1, 16, 32, 3), "float32")
    images[:, 8:, 16:24] = 1  # the patch in row 1, column 2
    seen = attention_rollout(model, images)[0]
    assert seen.shape == (2, 4)
    assert np.unravel_index(seen.argmax(), seen.shape) == (1, 2)
    assert seen[1, 2] > 2 * np.delete(seen.ravel(), 6).max()


@pytest.mark.parametrize("block", [2, -3])
def test_a_block_that_is_not_there_is_refused(block):
    model = small()
    with pytest.raises(ValueError, match=f"block {block} is not there; the model has 2 blocks"):
        attention_scores(model, images_for(model), block)


@pytest.mark.parametrize("look", [attention_scores, attention_rollout])
def test_a_model_without_blocks_is_refused(look):
    model = small(**NO_TRANSFORMER)
    with pytest.raises(ValueError, match="has 0 blocks|no encoder blocks"):
        look(model, images_for(model))
