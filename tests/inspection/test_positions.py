import numpy as np
import pytest
from made.tables import by_table
from reference.comparing import arrays, assert_close
from reference.small import small
from reference.vit_numpy import sincos

from keras_vit import from_pretrained
from keras_vit.inspection import position_similarity

MODELS = {
    "token": (lambda golden: from_pretrained(golden / "token.npz"), (4, 4), 1),
    "gap": (lambda golden: from_pretrained(golden / "gap.npz"), (4, 4), 0),
    "hybrid": (lambda golden: from_pretrained(golden / "hybrid.npz", image_size=(64, 32)), (8, 4), 1),
    "any size": (lambda golden: from_pretrained(golden / "gap.npz", image_size=(None, None)), (4, 4), 0),
    "registers": (lambda golden: small(image_size=(16, 32), num_registers=2), (2, 4), 3),
    "prefix without": (lambda golden: small(image_size=(24, 16), prefix_positions=False), (3, 2), 0),
    "another grid": (lambda golden: small(position_grid=(3, 5)), (3, 5), 1),
}


def cosine(one, other):
    return one @ other / np.sqrt(one @ one) / np.sqrt(other @ other)


@pytest.mark.slow
@by_table("name", MODELS)
def test_similarities_are_the_cosines_of_every_two_positions(name, golden):
    make, grid, prefix = MODELS[name]
    model = make(golden)
    table = arrays(model)["position_embedding/table"][0, prefix:].astype("float64").reshape(*grid, -1)
    found = position_similarity(model)
    assert found.shape == (*grid, *grid) and found.dtype == "float32"
    assert_close(found, [[[[cosine(a, b) for b in r] for r in table] for a in s] for s in table], 1e-5)


def test_fixed_positions_are_compared_like_learned_ones(golden):
    model = from_pretrained(golden / "bigvision_gap_sincos.npz", image_size=(16, 32))
    table = sincos(2, 4, 24)
    expected = np.array([[cosine(a, b) for b in table] for a in table]).reshape(2, 4, 2, 4)
    assert_close(position_similarity(model), expected, 1e-5)
    with_prefix = small(image_size=(16, 32), hidden_size=24, position_embedding="sincos2d", num_registers=2)
    assert_close(position_similarity(with_prefix), expected, 1e-5)


def test_a_zero_vector_has_similarity_0_and_small_ones_do_not_underflow():
    model = small()
    table = np.zeros((1, 5, 12))
    table[0, 1:3] = 1e-30  # whose square underflows in float32
    model.get_layer("position_embedding").table.assign(table)
    expected = np.zeros((4, 4))
    expected[:2, :2] = 1
    np.testing.assert_allclose(position_similarity(model).reshape(4, 4), expected, rtol=1e-6)


def test_a_model_without_positions_is_refused():
    with pytest.raises(ValueError, match="no position embeddings"):
        position_similarity(small(position_embedding="none"))
