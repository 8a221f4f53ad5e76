"""Which part of a variable each device has, for every strategy and mesh."""

import keras
import pytest
from made.tables import by_table
from reference.small import small

import keras_vit
from keras_vit.engine.sharding import Sharded, check_heads, make_distribution, parse_strategy, variable_axes

B8, B2M4 = {"batch": 8}, {"batch": 2, "model": 4}
DIVIDED = {"hidden_size": 16, "num_layers": 1, "mlp_dim": 32, "num_heads": 4}


@by_table(
    "shape, axis, fsdp, model_parallel",
    [
        ((16, 16, 3, 768), -1, (None, None, None, "batch"), (None, None, None, "model")),
        ((1, 1, 768), -1, (None, None, "batch"), (None, None, "model")),
        ((768, 12, 64), -2, ("batch", None, None), (None, "model", None)),
        ((12, 64), -2, (None, "batch"), ("model", None)),
        ((12, 64, 768), -3, (None, None, "batch"), ("model", None, None)),
        ((768,), None, ("batch",), (None,)),
        ((768, 3072), -1, (None, "batch"), (None, "model")),
        ((10,), -1, (None,), (None,)),  # Neither mesh divides the classes.
        ((), None, (), ()),
    ],
    ids=str,
)
def test_variables_are_sharded_by_their_largest_axis_or_by_that_of_their_layer(
    shape, axis, fsdp, model_parallel
):
    assert variable_axes(shape, "data_parallel", B8, axis) == (None,) * len(shape)
    assert variable_axes(shape, "fsdp", B8, axis) == fsdp
    assert variable_axes(shape, "model_parallel", B2M4, axis) == model_parallel


def distribution(strategy):
    mesh = B2M4 if strategy == "model_parallel" else B8
    return Sharded(strategy, mesh, [f"cpu:{device}" for device in range(8)])


def divided_axes(model):
    """The axis, counted from the end, that model_parallel divides, of each trainable variable by path."""
    sharded, divided = distribution("model_parallel"), {}
    for layer in model._flatten_layers():
        for variable in layer._trainable_variables:
            axes = sharded.axes(variable, layer)
            divided[variable.path] = axes.index("model") - len(axes) if "model" in axes else None
    assert {*divided} >= {variable.path for variable in model.trainable_variables}
    return divided


ATTENTION = {
    **{f"attention/{part}/{name}": -2 for part in ("query", "key", "value") for name in ("kernel", "bias")},
    **{"attention/out/kernel": -3, "attention/position_bias/table": -1},
    **{"attention/output_norm/gamma": -1, "attention/output_norm/beta": -1},
}
MLP = {
    **{f"mlp/{part}/{name}": -1 for part in ("gate", "up") for name in ("kernel", "bias")},
    **{"mlp/hidden_norm/gamma": -1, "mlp/hidden_norm/beta": -1, "mlp/dense_1/kernel": -2},
}
PLAIN_MLP = {"mlp/dense_0/kernel": -1, "mlp/dense_0/bias": -1, "mlp/dense_1/kernel": -2}
HEADS_ALONE = {name: axis for name, axis in ATTENTION.items() if "norm" not in name and "table" not in name}
PIXELS = {"patch_embedding/kernel": -1, "patch_embedding/bias": -1}


def test_model_parallel_divides_heads_hidden_units_channels_and_classes():
    options = {"qk_norm": True, "attention_sub_norm": True, "mlp_sub_norm": True, "gated_mlp": True}
    options |= {"relative_positions": True, "layer_scale": 0.1, "num_classes": 8, "representation_size": 8}
    axes = divided_axes(small(**DIVIDED, **options))
    assert {path: axis for path, axis in axes.items() if axis} == {
        **{f"encoder_block_0/{path}": axis for path, axis in {**ATTENTION, **MLP}.items()},
        **PIXELS,
        **{"class_token/token": -1, "position_embedding/table": -1},
        **{f"{head}/{name}": -1 for head in ("pre_logits", "head") for name in ("kernel", "bias")},
    }


def test_model_parallel_divides_both_towers_and_the_head_with_a_probe():
    text = {**DIVIDED, "vocabulary_size": 8, "length": 4}
    image = small(**DIVIDED, num_classes=None, pooling="map", num_registers=4)
    axes = divided_axes(keras_vit.ImageTextModel(image, text, image_projection=16, text_projection=16))
    block = {**HEADS_ALONE, **PLAIN_MLP}
    parts = ("encoder_block_0", "attention_pooling", "text/encoder_block_0")
    assert {path: axis for path, axis in axes.items() if axis} == {
        **{f"{part}/{path}": axis for part in parts for path, axis in block.items()},
        **{**PIXELS, "register_tokens/token": -1},
        **{"position_embedding/table": -1, "text/position_embedding/table": -1},
    }


def test_model_parallel_divides_the_heads_of_models_without_labels():
    encoder = {"image_size": 16, "patch_size": 8, **DIVIDED}
    head = {"num_local": 0, "out_dim": 16, "hidden_dim": 8, "bottleneck_dim": 8}
    axes = divided_axes(keras_vit.DINO(encoder, **head))
    student = {path: axis for path, axis in axes.items() if path.startswith("student/") and axis}
    assert {path.partition("/")[2]: axis for path, axis in student.items() if "block" not in path} == {
        **{**PIXELS, "class_token/token": -1, "position_embedding/table": -1},
        **{"projection_0/kernel": -1, "projection_0/bias": -1, "projection_1/kernel": -2},
        "last_layer/kernel": -1,
    }
    decoder = {"decoder_hidden_size": 16, "decoder_num_layers": 1, "decoder_num_heads": 4}
    axes = divided_axes(keras_vit.MaskedAutoencoder(encoder, **decoder))
    block = {path: axes[f"decoder_block_0/{path}"] for path in {**HEADS_ALONE, **PLAIN_MLP}}
    assert block == {**HEADS_ALONE, **PLAIN_MLP}
    outer = ("mask_token/token", "prediction/kernel", "prediction/bias", "decoder_embedding/kernel")
    assert [axes[path] for path in outer] == [-1, -1, -1, None]


WHOLE = "position_embedding encoder_block_0 attention out mlp dense_1 mlp_norm attention_scale tokens head"
PARTS = "patch_embedding patch_tokens class_token query query_norm dense_0"
KEPT = {  # the strategies under which the output of a layer is kept divided by the batch alone
    **dict.fromkeys(WHOLE.split(), {"fsdp", "model_parallel"}),
    **dict.fromkeys(PARTS.split(), {"fsdp"}),
    "pooled": set(),
}


def test_tokens_stay_divided_by_the_batch_alone():
    kept = {}
    for layer in small(qk_norm=True, num_layers=1, layer_scale=0.1)._flatten_layers():
        with keras.name_scope(layer.name, caller=layer):  # as Keras asks for the layout
            layouts = {
                strategy: distribution(strategy).get_tensor_layout(f"{layer.path}/output")
                for strategy in ("data_parallel", "fsdp", "model_parallel")
            }
        assert {layout.axes for layout in layouts.values() if layout} <= {("batch",)}
        kept[layer.name] = {strategy for strategy, layout in layouts.items() if layout}
    assert {name: kept[name] for name in KEPT} == KEPT


@by_table(
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


@by_table(
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
    model = small(hidden_size=24, num_heads=6)
    check_heads(model, {"batch": 4, "model": 2})
    check_heads(model, B8)
    with pytest.raises(ValueError, match="divides the attention heads; got 4 for the 6 heads of encoder_bl"):
        check_heads(model, B2M4)


def test_sharding_needs_jax():
    if keras.backend.backend() == "jax":
        pytest.skip("the backend is JAX")
    with pytest.raises(ValueError, match="--strategy fsdp needs KERAS_BACKEND=jax; got '"):
        make_distribution("fsdp")
