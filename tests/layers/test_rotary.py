import json

import keras
import numpy as np
import pytest
from reference.comparing import numpy

from keras_vit.layers import MultiHeadSelfAttention, RotaryPositions, rotate, standard_block

GRID = np.zeros((2, 3, 5, 1), "float32")
KINDS = [
    {"kind": "axial", "reference_grid": (4, 6), "order": "xy", "offset": 1},
    {"kind": "mixed", "num_heads": 3, "num_layers": 2},
    {"kind": "dinov3", "num_registers": 4, "seed": 1, "max_rescale": 2.0},
]


@pytest.mark.parametrize("options", KINDS, ids=lambda options: options["kind"])
def test_the_configuration_restores_the_layer_and_symbolic_shapes_are_those_of_the_tables(options):
    layer = RotaryPositions(head_size=8, dtype="mixed_bfloat16", **options)
    layer(GRID)
    again = RotaryPositions.from_config(json.loads(json.dumps(layer.get_config())))
    again(GRID)
    again.set_weights(layer.get_weights())
    assert again.get_config() == layer.get_config()
    exact = RotaryPositions(head_size=8, **options)
    symbolic = exact(keras.Input(GRID.shape[1:]))
    assert [table.shape for table in symbolic] == [table.shape for table in exact(GRID)]
    exact.set_weights(layer.get_weights())
    for table, expected in zip(again(GRID), exact(GRID), strict=True):
        assert keras.backend.standardize_dtype(table.dtype) == "float32"
        np.testing.assert_array_equal(numpy(table), numpy(expected))


def test_the_kinds_have_their_coordinates_and_frequencies():
    """The angles of the patch in row 1 and column 3 of 2 × 4, written out."""

    def angles(**options):
        tables = RotaryPositions(head_size=8, **options)(np.zeros((1, 2, 4, 1)))
        cos, sin = numpy(tables[0])[:, 7, 0]
        return np.angle(cos + 1j * sin)

    np.testing.assert_allclose(angles(kind="axial"), [1, 0.01, 3, 0.03], rtol=1e-5)
    np.testing.assert_allclose(angles(kind="axial", base=100, order="xy"), [3, 0.3, 1, 0.1], rtol=1e-5)
    np.testing.assert_allclose(angles(kind="axial", offset=-1), [0, 0, 2, 0.02], rtol=1e-5)
    scaled = angles(kind="axial", offset=1, reference_grid=(1, 2))  # (1 + 1) / 2 · 1, (3 + 1) / 4 · 2
    np.testing.assert_allclose(scaled, [1, 0.01, 2, 0.02], rtol=1e-5)
    expected = np.array([0.5, 0.05, 0.75, 0.075]) * 2 * np.pi  # 2 · 1.5 / 2 - 1, 2 · 3.5 / 4 - 1
    np.testing.assert_allclose(np.exp(1j * angles(kind="dinov3")), np.exp(1j * expected), atol=1e-5)


def test_new_mixed_frequencies_have_the_magnitudes_of_the_base_and_a_direction_for_each_head():
    layer = RotaryPositions("mixed", head_size=16, num_heads=3, num_layers=2)
    layer(GRID)
    first, second = numpy(layer.frequencies)
    magnitudes = 10.0 ** (-np.arange(4) / 4)
    np.testing.assert_allclose(np.hypot(first, second), np.broadcast_to([*magnitudes] * 2, (2, 3, 8)), 1e-5)
    directions = first + 1j * second
    assert len({*np.angle(directions[..., 0]).ravel().round(5)}) == 6
    quarter = directions[..., 4:] / directions[..., :4]  # from the first half to the second
    np.testing.assert_allclose(quarter, np.full((2, 3, 4), 1j), atol=1e-5)


def test_coordinates_are_rescaled_only_in_training():
    layer = RotaryPositions("axial", head_size=8, max_rescale=2.0, seed=0)
    plain = numpy(RotaryPositions("axial", head_size=8)(GRID)[0])
    np.testing.assert_array_equal(numpy(layer(GRID)[0]), plain)
    factors = [np.arcsin(numpy(layer(GRID, training=True)[0])[1, 6, 0, 1]) / 0.01 for _ in range(8)]
    assert min(factors) >= 0.5 and max(factors) <= 2 and len({*factors}) == 8


def test_one_log_uniform_factor_rescales_both_coordinates(monkeypatch):
    drawn = iter([0.25, 0.9])
    monkeypatch.setattr(keras.random, "uniform", lambda _, low, high, seed: low + next(drawn) * (high - low))
    cos, sin = numpy(RotaryPositions("axial", head_size=4, max_rescale=4.0)(GRID, training=True)[0])
    y, x = np.divmod(np.arange(15), 5)  # times 4^-1/2, a quarter of the way from 1/4 to 4
    expected = np.exp(0.5j * np.stack([y, x], axis=1))
    np.testing.assert_allclose(cos[:, 0] + 1j * sin[:, 0], expected, atol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
def test_16_bits_are_rotated_in_float32_and_rounded_once(interleaved):
    x = keras.random.normal((1, 17, 2, 8), dtype="bfloat16")
    positions = RotaryPositions("axial", 8)(GRID)[0]
    exact = rotate(keras.ops.cast(x, "float32"), positions, interleaved)
    found = rotate(x, positions, interleaved)
    expected = keras.ops.cast(exact, "bfloat16")
    np.testing.assert_array_equal(*(numpy(keras.ops.cast(each, "float32")) for each in (found, expected)))


@pytest.mark.tensorflow_only("layers cast their inputs alike on every backend")
def test_a_block_in_16_bits_rotates_by_positions_in_float32(monkeypatch):
    types = []
    monkeypatch.setattr(
        "keras_vit.layers.attention.rotate",
        lambda x, positions, _: types.append(keras.backend.standardize_dtype(positions.dtype)) or x,
    )
    attention = MultiHeadSelfAttention(2, rotation="half", dtype="mixed_bfloat16", name="attention")
    block = standard_block(2, 8, dtype="mixed_bfloat16")
    block.attention = attention
    block(np.ones((1, 15, 16)), RotaryPositions("axial", 8, dtype="mixed_bfloat16")(GRID)[0])
    assert types == ["float32", "float32"]
