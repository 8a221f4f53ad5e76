"""Which part of a variable each device has, for every strategy and mesh."""

import keras
import pytest
from reference.small import small

from keras_vit.engine.sharding import check_heads, make_distribution, parse_strategy, variable_axes

B8, B2M4 = {"batch": 8}, {"batch": 2, "model": 4}
BLOCK = "encoder_block_0/"


@pytest.mark.parametrize(
    "path, shape, fsdp, model_parallel",
    [
        (
            "patch_embedding/kernel",
            (16, 16, 3, 768),
            (None, None, None, "batch"),
            (None, None, None, "model"),
        ),
        ("patch_embedding/bias", (768,), ("batch",), ("model",)),
        ("class_token/token", (1, 1, 768), (None, None, "batch"), (None, None, "model")),
        ("position_embedding/table", (1, 197, 768), (None, None, "batch"), (None, None, "model")),
        (f"{BLOCK}attention/key/kernel", (768, 12, 64), ("batch", None, None), (None, "model", None)),
        (f"{BLOCK}attention/key/bias", (12, 64), (None, "batch"), ("model", None)),
        (f"{BLOCK}attention/out/kernel", (12, 64, 768), (None, None, "batch"), ("model", None, None)),
        (f"{BLOCK}attention/out/bias", (768,), ("batch",), (None,)),
        (f"{BLOCK}attention/position_bias/table", (732, 12), (None, None), (None, "model")),
        (f"{BLOCK}attention/query_norm/gamma", (64,), ("batch",), (None,)),
        (f"{BLOCK}attention_norm/gamma", (768,), ("batch",), (None,)),
        (f"{BLOCK}mlp/dense_0/kernel", (768, 3072), (None, "batch"), (None, "model")),
        (f"{BLOCK}mlp/gate/bias", (3072,), ("batch",), ("model",)),
        (f"{BLOCK}mlp/dense_1/kernel", (3072, 768), ("batch", None), ("model", None)),
        (f"{BLOCK}mlp/dense_1/bias", (768,), ("batch",), (None,)),
        (
            "attention_pooling/attention/out/kernel",
            (12, 64, 768),
            (None, None, "batch"),
            ("model", None, None),
        ),
        ("head/kernel", (768, 1000), (None, "batch"), (None, "model")),
        ("head/bias", (10,), (None,), (None,)),  # Neither mesh divides the classes.
        ("scale", (), (), ()),
    ],
    ids=str,
)
def test_variables_are_sharded_by_their_largest_axis_or_by_their_part_of_the_layer(
    path, shape, fsdp, model_parallel
):
    assert variable_axes(path, shape, "data_parallel", B8) == (None,) * len(shape)
    assert variable_axes(path, shape, "fsdp", B8) == fsdp
    assert variable_axes(path, shape, "model_parallel", B2M4) == model_parallel


def test_model_parallel_shards_every_matrix_of_a_model():
    model = small(num_heads=4, hidden_size=16, mlp_dim=32, num_classes=8, representation_size=8)
    whole = [
        variable.path
        for variable in model.trainable_variables
        if not any(variable_axes(variable.path, variable.shape, "model_parallel", B2M4))
    ]
    assert whole and not [path for path in whole if not path.endswith(("bias", "gamma", "beta"))]


@pytest.mark.parametrize(
    "text, devices, expected",
    [
        ("auto", 1, ("single", {"batch": 1})),
        ("auto", 4, ("data_parallel", {"batch": 4})),
        ("single", 4, ("single", {"batch": 1})),
        ("data_parallel", 4, ("data_parallel", {"batch": 4})),
        ("fsdp", 8, ("fsdp", {"batch": 8})),
        ("model_parallel", 8, ("model_parallel", {"batch": 1, "model": 8})),
        ("model_parallel=2x4", 8, ("model_parallel", {"batch": 2, "model": 4})),
    ],
)
def test_a_strategy_gives_a_mesh_of_all_devices(text, devices, expected):
    assert parse_strategy(text, devices) == expected


@pytest.mark.parametrize(
    "text, devices, words",
    [
        ("gpu", 8, "strategy must be one of 'auto', .*; got 'gpu'"),
        ("mirrored", 8, "strategy must be one of .*; got 'mirrored'"),
        ("fsdp=2", 8, "strategy must be one of .*; got 'fsdp=2'"),
        ("fsdp", 1, "--strategy fsdp needs at least 2 devices; got 1"),
        ("model_parallel=2x4", 1, "--strategy model_parallel=2x4 needs at least 2 devices; got 1"),
        ("model_parallel=2x3", 8, "expected a mesh of all 8 devices; got 2x3, which is 6"),
        ("model_parallel=0x8", 8, "expected --strategy model_parallel=AxB, such as 2x4; got"),
        ("model_parallel=8", 8, "expected --strategy model_parallel=AxB, such as 2x4; got"),
    ],
)
def test_an_invalid_strategy_or_mesh_is_refused(text, devices, words):
    with pytest.raises(ValueError, match=words):
        parse_strategy(text, devices)


def test_heads_that_the_model_axis_does_not_divide_are_refused():
    shapes = [("head/kernel", (768, 10)), (f"{BLOCK}attention/query/kernel", (768, 6, 64))]
    check_heads(shapes, {"batch": 4, "model": 2})
    check_heads(shapes, B8)
    with pytest.raises(ValueError, match="divides the attention heads; got 4 for the 6 heads of encoder_bl"):
        check_heads(shapes, B2M4)


def test_sharding_needs_jax():
    if keras.backend.backend() == "jax":
        pytest.skip("the backend is JAX")
    with pytest.raises(ValueError, match="--strategy fsdp needs KERAS_BACKEND=jax; got '"):
        make_distribution("fsdp")
