import numpy as np
import pytest
from reference.comparing import assert_close, numpy, randomize

from keras_vit.layers import MultiHeadSelfAttention, PackedPositionEmbs, PaddingBias, attention
from keras_vit.weights.array_resizing import resized_positions

GRIDS = np.array([[4, 5], [3, 3], [1, 20], [20, 1], [2, 7], [10, 2], [1, 1]], "int32")


def test_positions_are_resized_to_each_grid_as_from_a_file():
    layer = PackedPositionEmbs((4, 5))
    zeros = np.zeros((len(GRIDS), 20, 8), "float32")
    layer(zeros, GRIDS)
    added = numpy(randomize(layer)(zeros, GRIDS))
    assert np.isfinite(added).all()
    for found, grid in zip(added, GRIDS):
        expected = resized_positions(numpy(layer.table), (4, 5), tuple(grid), "bilinear_antialias")[0]
        assert_close(found[: grid.prod()], expected, 1e-6)


def test_an_image_without_patches_has_finite_positions():
    """Batches are filled up with zeros."""
    layer = PackedPositionEmbs(2)
    assert np.isfinite(numpy(layer(np.zeros((1, 3, 8)), np.zeros((1, 2), "int32")))).all()


@pytest.mark.parametrize("max_scores", [1, 12, 10**6])
def test_no_chunk_of_queries_attends_to_padding(max_scores, monkeypatch, rng):
    monkeypatch.setattr(attention, "MAX_CHUNK_SCORES", max_scores)
    layer = MultiHeadSelfAttention(2)
    tokens = rng.standard_normal((1, 6, 8)).astype("float32")
    bias = PaddingBias()(tokens, np.array([[2, 2]]))
    found = numpy(layer(tokens, bias=bias))[:, :4]
    assert_close(found, numpy(layer(tokens[:, :4])), 1e-6)
