import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference.comparing import arrays
from reference.small import HYBRID, NO_TRANSFORMER, SMALL, small

from keras_vit import VisionTransformer, from_pretrained
from keras_vit.variants import parse_variant
from keras_vit.weights.architecture import infer_arguments
from keras_vit.weights.checkpoint import merged_heads
from keras_vit.weights.layouts import LAYOUTS

HEADS, CELLS = st.integers(1, 3), st.integers(1, 3)
TOLD_BY_ARRAYS = ("patch_size", "hidden_size", "num_layers", "mlp_dim", "num_heads", "num_classes")
ARCHITECTURES = [
    {},
    {"pooling": "gap"},
    {"representation_size": 9, "num_classes": None},
    {"image_size": (24, 24), "patch_size": (4, 4), "in_channels": 1},
    {**HYBRID, "resnet": (), "patch_size": 4},
    {**HYBRID, "image_size": 64, "resnet": (2, 1), "resnet_width": 64},
    {**HYBRID, **NO_TRANSFORMER, "resnet": (1, 1)},
]


@pytest.mark.parametrize("options", ARCHITECTURES, ids=str)
def test_the_arrays_tell_the_architecture(options):
    model = small(**options)
    inferred = infer_arguments(arrays(model))
    grid = inferred.pop("position_grid", None)
    config = json.loads(json.dumps(model.get_config()))
    assert json.loads(json.dumps(inferred)) == {name: config[name] for name in inferred}
    assert {*TOLD_BY_ARRAYS, "pooling", "representation_size", "in_channels"} <= {*inferred}
    if options.get("num_layers", 1):
        assert grid == model.get_layer("position_embedding").grid_size
    rebuilt = VisionTransformer(image_size=model.image_size, **inferred)
    assert {w.path: w.shape for w in rebuilt.weights} == {w.path: w.shape for w in model.weights}


def test_anything_with_a_shape_will_do():
    model = VisionTransformer(**SMALL)
    assert infer_arguments({w.path: w for w in model.weights})["num_heads"] == 3


def test_arrays_of_no_vision_transformer_are_refused():
    with pytest.raises(
        ValueError, match="expected 4 axes of the checkpoint's patch_embedding/kernel; got no such array"
    ):
        infer_arguments({"dense/kernel": np.zeros((3, 3))})


@pytest.mark.parametrize(
    "options",
    [
        *ARCHITECTURES,
        {"pooling": "map", "num_registers": 2},
        {"distillation": True, "num_registers": 3, "prefix_positions": False},
        {"pre_norm": True, "qkv_bias": False, "layer_scale": 1e-5},
        {"pooling": "gap", "norm_after_pooling": True},
        {"pooling": "gap", "norm_after_pooling": True, "class_token": True, "prefix_positions": False},
        {"position_embedding": "none"},
        {"num_classes": None},
    ],
    ids=str,
)
def test_every_part_that_has_arrays_is_told_by_them(options):
    model = small(**options)
    told = {name: getattr(model, name) for name in ("prefix_positions", "position_embedding")}
    inferred = infer_arguments(arrays(model), told)
    inferred.pop("position_grid", None)
    assert inferred == {name: getattr(model, name) for name in inferred}
    parts = {"class_token", "num_registers", "distillation", "pre_norm", "norm_after_pooling", "qkv_bias"}
    assert not model.num_layers or parts <= {*inferred}


# Heads ---------------------------------------------------------------------------------------------


def without_heads(**options):
    """The arrays of a model as torch has them: without an axis of heads."""
    return merged_heads(arrays(small(**options)))


def test_the_number_of_heads_may_be_told():
    assert infer_arguments(without_heads(), {"num_heads": 6}, split_heads=False)["num_heads"] == 6


def test_heads_that_nothing_tells_are_asked_for():
    with pytest.raises(
        ValueError, match=r"number of attention heads.*hidden_size 12, num_layers 2.*num_heads"
    ):
        infer_arguments(without_heads(), split_heads=False)


@pytest.mark.parametrize("variant", ["Ti/16", "S/16", "B/16", "L/16", "So400m/14"])
def test_heads_are_those_of_the_variant_of_the_same_sizes(variant):
    sizes = parse_variant(variant)
    block, width = "encoder_block_{}/attention/query/kernel", sizes["hidden_size"]
    shapes = {block.format(i): np.empty((width, width)) for i in range(sizes["num_layers"])}
    shapes["encoder_block_0/mlp/dense_0/kernel"] = np.empty((width, sizes["mlp_dim"]))
    shapes["patch_embedding/kernel"] = np.empty((16, 16, 3, width))
    told = {"position_embedding": "none"}
    assert infer_arguments(shapes, told, split_heads=False)["num_heads"] == sizes["num_heads"]


def test_a_gated_mlp_is_refused():
    gated = arrays(small())
    gated["encoder_block_0/mlp/dense_1/kernel"] = np.zeros((10, 12))
    with pytest.raises(ValueError, match="encoder_block_0/mlp/dense_1/kernel has half .*SwiGLU"):
        infer_arguments(gated)


# The grid ------------------------------------------------------------------------------------------


def table(count):
    return {**arrays(small()), "position_embedding/table": np.zeros((1, count, 12))}


@pytest.mark.parametrize(
    "count, told, expected",
    [  # with the class token's row, or without
        (1 + 9, {}, ((3, 3), True)),
        (9, {}, ((3, 3), False)),
        (1 + 6, {"position_grid": (2, 3)}, ((2, 3), True)),
        (6, {"position_grid": (2, 3)}, ((2, 3), False)),
        (1 + 6, {"image_size": (24, 16)}, ((3, 2), True)),
        (9, {"image_size": (24, 24), "prefix_positions": False}, ((3, 3), False)),
    ],
)
def test_rows_and_columns_are_found(count, told, expected):
    inferred = infer_arguments(table(count), told)
    assert (inferred["position_grid"], inferred["prefix_positions"]) == expected


@pytest.mark.parametrize(
    "count, told, message",
    [
        (1 + 6, {}, r"6 grid positions are not a square; give position_grid=\(rows, columns\)"),
        (10, {"position_grid": (2, 3)}, "position_grid 2×3 does not fit the checkpoint's 9 positions"),
        (10, {"image_size": (16, 16)}, "an image of 16×16, a grid of 2×2 does not fit the checkpoint's 9"),
        (10, {"prefix_positions": False}, "10 grid positions are not a square"),
    ],
)
def test_a_grid_that_is_not_found_is_asked_for(count, told, message):
    with pytest.raises(ValueError, match=message) as caught:
        infer_arguments(table(count), told)
    assert "\n" not in str(caught.value)


def test_a_table_that_may_be_read_in_two_ways_is_asked_about():
    model = small(num_registers=6)  # 7 rows and 9 cells, or 16 cells
    both = {**arrays(model), "position_embedding/table": np.zeros((1, 16, 12))}
    with pytest.raises(ValueError, match="16 positions may be 4×4, or 7 prefix tokens and 3×3; give"):
        infer_arguments(both)
    for way, grid in ((True, (3, 3)), (False, (4, 4))):
        assert infer_arguments(both, {"prefix_positions": way})["position_grid"] == grid


@pytest.mark.parametrize("kind", ["none", "sincos2d"])
def test_positions_without_a_table_are_told(kind):
    without = arrays(small(position_embedding="none"))
    assert infer_arguments(without, {"position_embedding": kind})["position_embedding"] == kind
    with pytest.raises(ValueError, match="no position table.*; give position_embedding='none' or 'sincos2d'"):
        infer_arguments(without)


@pytest.mark.parametrize("told", ["token", "gap", None])
def test_how_a_class_token_is_pooled_may_be_told(told):
    assert infer_arguments(arrays(small()), {"pooling": told})["pooling"] == told
    assert infer_arguments(arrays(small(pooling="gap")), {"pooling": told})["pooling"] == (told and "gap")
    assert infer_arguments(arrays(small(pooling="map")), {"pooling": told})["pooling"] == "map"


# The official layout -------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    side=CELLS,
    patch=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    heads=HEADS,
    head_size=st.integers(2, 5),
    num_layers=st.integers(1, 3),
    mlp_dim=st.integers(1, 9),
    num_classes=st.none() | st.integers(1, 6),
    representation_size=st.none() | st.integers(1, 6),
    pooling=st.sampled_from(["token", "gap"]),
    in_channels=st.integers(1, 4),
)
def test_a_random_architecture_written_in_the_official_layout_loads_back_as_it_was(
    tmp_path, side, patch, heads, head_size, **options
):
    side += options["pooling"] == "gap"  # one token alone has nothing to attend to
    size = tuple(side * p for p in patch)
    model = small(
        **options, image_size=size, patch_size=patch, num_heads=heads, hidden_size=heads * head_size
    )
    np.savez(tmp_path / "model.npz", **LAYOUTS["vit_jax"].write(arrays(model), {}))
    loaded = from_pretrained(tmp_path / "model.npz")
    assert loaded.get_config() | {"name": model.name} == model.get_config()
    expected = arrays(model)
    assert arrays(loaded).keys() == expected.keys()
    for name, array in arrays(loaded).items():
        np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize("options", ARCHITECTURES, ids=str)
def test_an_architecture_written_in_the_official_layout_loads_back_as_it_was(options, tmp_path):
    """Without a configuration beside it: the arrays alone tell."""
    model = small(**options)
    np.savez(tmp_path / "model.npz", **LAYOUTS["vit_jax"].write(arrays(model), {}))
    loaded = from_pretrained(tmp_path / "model.npz", image_size=model.image_size)
    expected = model.get_config() | {"position_embedding": loaded.position_embedding}
    assert model.num_layers is None or loaded.position_embedding == model.position_embedding
    assert loaded.get_config() | {"name": model.name} == expected
    for name, array in arrays(loaded).items():
        np.testing.assert_array_equal(array, arrays(model)[name])
