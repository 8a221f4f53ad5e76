import numpy as np
import pytest
from made.sampling import some
from made.tables import by_table
from reference.comparing import arrays, assert_same_arrays
from reference.small import HYBRID, NO_TRANSFORMER, small

from keras_vit import from_pretrained
from keras_vit.variants import parse_variant
from keras_vit.weights.architecture import infer_arguments
from keras_vit.weights.layouts import LAYOUTS

ARCHITECTURES = [
    {"representation_size": 9, "num_classes": None},
    {"image_size": (24, 24), "patch_size": (4, 4), "in_channels": 1, "pooling": "gap"},
    {**HYBRID, "image_size": 64, "resnet": (2, 1), "resnet_width": 64},
    {**HYBRID, **NO_TRANSFORMER, "resnet": (1, 1)},
]


def test_arrays_of_another_model_are_refused():
    message = "expected 4 axes of the checkpoint's patch_embedding/kernel; got no such array"
    with pytest.raises(ValueError, match=message):
        infer_arguments({"dense/kernel": np.zeros((3, 3))})


# Heads ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["Ti/16", "So400m/14"])
def test_heads_are_those_of_the_variant_of_the_same_sizes(variant):
    sizes = parse_variant(variant)
    block, width = "encoder_block_{}/attention/query/kernel", sizes["hidden_size"]
    shapes = {block.format(i): np.empty((width, width)) for i in range(sizes["num_layers"])}
    shapes["encoder_block_0/mlp/dense_0/kernel"] = np.empty((width, sizes["mlp_dim"]))
    shapes["patch_embedding/kernel"] = np.empty((16, 16, 3, width))
    metadata = {"position_embedding": "none"}
    assert infer_arguments(shapes, metadata, split_heads=False)["num_heads"] == sizes["num_heads"]


@pytest.mark.parametrize("num_kv_heads", [None, 1, (1, 3)])
def test_heads_of_keys_and_values_are_inferred_from_their_kernels(num_kv_heads):
    shapes = arrays(small(num_kv_heads=num_kv_heads))
    assert infer_arguments(shapes)["num_kv_heads"] == num_kv_heads


# Positions and pooling -----------------------------------------------------------------------------


def table(rows, **options):
    return {**arrays(small(**options)), "position_embedding/table": np.zeros((1, rows, 12))}


@by_table(
    "rows, metadata, expected",
    [  # with a row for the class token, or without
        (1 + 9, {}, ((3, 3), True)),
        (9, {}, ((3, 3), False)),
        (1 + 6, {"position_grid": (2, 3)}, ((2, 3), True)),
        (6, {"position_grid": (2, 3)}, ((2, 3), False)),
        (1 + 6, {"image_size": (24, 16)}, ((3, 2), True)),
        (9, {"image_size": (24, 24), "prefix_positions": False}, ((3, 3), False)),
    ],
)
def test_the_grid_is_inferred(rows, metadata, expected):
    inferred = infer_arguments(table(rows), metadata)
    assert (inferred["position_grid"], inferred["prefix_positions"]) == expected


@by_table(
    "rows, metadata, message",
    [
        (1 + 6, {}, r"6 grid positions are not a square; give position_grid=\(rows, columns\)"),
        (10, {"position_grid": (2, 3)}, "position_grid 2×3 does not fit the checkpoint's 9 positions"),
        (10, {"image_size": (16, 16)}, "an image of 16×16, a grid of 2×2 does not fit the checkpoint's 9"),
        (10, {"prefix_positions": False}, "10 grid positions are not a square"),
    ],
)
def test_an_unknown_grid_must_be_given(rows, metadata, message):
    with pytest.raises(ValueError, match=message):
        infer_arguments(table(rows), metadata)


def test_an_ambiguous_table_needs_prefix_positions():
    both = table(16, num_registers=6)  # 7 rows and a 3×3 grid, or a 4×4 grid
    with pytest.raises(ValueError, match="16 positions may be 4×4, or 7 prefix tokens and 3×3; give"):
        infer_arguments(both)
    for has_rows, grid in ((True, (3, 3)), (False, (4, 4))):
        assert infer_arguments(both, {"prefix_positions": has_rows})["position_grid"] == grid


def test_positions_without_a_table_are_those_of_the_metadata():
    without = arrays(small(position_embedding="none"))
    for kind in ("none", "sincos2d"):
        assert infer_arguments(without, {"position_embedding": kind})["position_embedding"] == kind
    with pytest.raises(
        ValueError,
        match="expected a position table in the file; got none: give position_embedding='none' or 'sincos2d'",
    ):
        infer_arguments(without)


@pytest.mark.parametrize("pooling", some(["token", "gap", None], 3))
def test_pooling_is_that_of_the_metadata_if_the_arrays_allow_it(pooling):
    expected = {"token": pooling, "gap": pooling and "gap", "map": "map"}
    for stored, inferred in expected.items():
        assert infer_arguments(arrays(small(pooling=stored)), {"pooling": pooling})["pooling"] == inferred


# The official layout -------------------------------------------------------------------------------


@pytest.mark.slow
@by_table("options", ARCHITECTURES, ids=str)
def test_an_architecture_is_loaded_from_its_arrays_alone(options, tmp_path):
    model = small(**options)
    np.savez(tmp_path / "model.npz", **LAYOUTS["vit_jax"].write(arrays(model), model.get_config()))
    loaded = from_pretrained(tmp_path / "model.npz", image_size=model.image_size)
    learned_from = "supervised" if model.num_classes else "unknown"
    expected = model.get_config() | {"name": loaded.name, "pretraining": learned_from}
    if model.num_layers is None:  # which uses no positions
        expected["position_embedding"] = "none"
    assert loaded.get_config() == expected
    assert_same_arrays(arrays(loaded), arrays(model))
