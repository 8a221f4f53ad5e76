import inspect
import json

import numpy as np
import pytest
from made.tables import by_table
from reference.small import NO_TRANSFORMER, SMALL, small

from keras_vit import PackedVisionTransformer, PixelTransformer, Preprocessing, VisionTransformer
from keras_vit.models.vit.geometry import min_parameters
from keras_vit.models.vit.schema import DEFAULTS, FRONT_ENDS, ViTConfig, check_options, options_of

CLASSES = {  # with options of their own
    VisionTransformer: {},
    PackedVisionTransformer: {"image_size": (None, None), "pooling": "map", "max_num_patches": 5},
    PixelTransformer: {"image_size": 4, "patch_size": 1, "pooling": "gap", "palette": 7, "causal": True},
}
WRONG = [
    ({"image_size": 7}, "7×7 .* is smaller than the patch of 8×8"),
    ({"image_size": (16, 7)}, "16×7 .* is smaller than the patch of 8×8"),
    ({"image_size": (16, None)}, r"image_size must be .*; got \(16, None\)"),
    ({"image_size": 0}, "image_size must be .*; got 0"),
    ({"patch_size": -8}, "patch_size must be .*; got -8"),
    ({"resnet_form": "torch"}, "resnet_form must be one of 'vit_jax', 'timm'; got 'torch'"),
    ({"resnet_form": None}, "resnet_form must be one of .*; got None"),
    ({"num_heads": 5}, "num_heads must be an int that divides hidden_size 12; got 5"),
    ({"num_heads": 0}, "num_heads must be a positive int or None; got 0"),
    ({"hidden_size": 0}, "hidden_size must be a positive int; got 0"),
    ({"num_layers": 0}, "num_layers must be a positive int or None; got 0"),
    ({"mlp_dim": None}, "mlp_dim and num_heads must be positive ints .*; got None and 3"),
    ({"representation_size": 0}, "representation_size must be a positive int or None; got 0"),
    ({"in_channels": 0}, "in_channels must be a positive int; got 0"),
    ({"split_seed": -1}, "split_seed must be an int of at least 0 or None; got -1"),
    ({"task": 1}, "task must be a str or None; got 1"),
    ({"num_registers": -1}, "num_registers must be an int of at least 0; got -1"),
    ({"dropout_rate": 1.0}, r"dropout_rate must be a number in \[0, 1\); got 1.0"),
    ({"attention_dropout_rate": -0.1}, r"attention_dropout_rate must be a number in \[0, 1\); got -0.1"),
    ({"patch_dropout_rate": 1.0}, r"patch_dropout_rate must be a number in \[0, 1\); got 1.0"),
    ({"stochastic_depth_rate": 2}, r"stochastic_depth_rate must be a number in \[0, 1\); got 2"),
    ({"class_token": False}, "pooling='token' reads the class token; got class_token=False"),
    ({"position_embedding": "sincos2d", "hidden_size": 18}, "hidden_size that is a multiple of 4.*got 18"),
    ({"distillation": True, "pooling": "gap"}, "distillation needs pooling='token'.*got 'gap'"),
    ({"distillation": True, "representation_size": 9}, "distillation needs .*got 'token', 9"),
    ({"num_layers": None}, "mlp_dim and num_heads must be None; got 20 and 3"),
    ({**NO_TRANSFORMER, "pooling": "token"}, "without a Transformer pooling must be 'gap' or None"),
    ({**NO_TRANSFORMER, "num_registers": 2}, "without a Transformer .* there can be no class"),
    ({"class_names": ["a", "b"]}, "class_names must hold num_classes=5 names; got 2"),
    ({"preprocessing": Preprocessing(32)}, r"size \(32, 32\).*the model takes size \(16, 16\)"),
    ({"in_channels": 1, "preprocessing": Preprocessing(16)}, "3 channels, but the model takes .* with 1"),
    ({"norm_after_pooling": True, "pooling": "gap", "num_layers": 2.0}, "num_layers must be .*; got 2.0"),
    ({"image_size": None}, "image_size must be a positive int or a pair .* got None"),
    ({"image_size": 32.0}, "image_size must be a positive int or a pair .* got 32.0"),
    ({"qkv_bias": float("nan")}, "qkv_bias must be True or False; got nan"),
    ({"prefix_positions": "no"}, "prefix_positions must be True or False; got 'no'"),
    ({"resnet": 3}, "resnet must be a list of positive ints, .*; got 3"),
    ({"class_names": "ab"}, "class_names must be a list of names or None; got 'ab'"),
    ({"dropout_rate": "0.1"}, "dropout_rate must be a number in .* got '0.1'"),
    ({"norm_epsilon": -1}, "norm_epsilon must be a number above 0 .*; got -1"),
    ({**NO_TRANSFORMER, "rotary": "dinov3"}, "without a Transformer there can be no rotary"),
    ({"rotary": "dinov3", "relative_positions": True}, "rotary and relative positions exclude each other"),
    ({"rotary": "mixed", "num_kv_heads": 1}, "mixed rotary positions differ between heads.*; got 1"),
    ({"relative_positions": True, "image_size": (None, None)}, "of one grid; got image_size=.None, None."),
    ({"relative_positions": True, "num_registers": 2}, "no rows for .* register tokens; got num_registers=2"),
    ({"final_norm": False, "norm_after_pooling": True, "pooling": "gap"}, "moves the last norm; got final"),
    ({"patch_padding": 8}, "patch_padding must be less than the sides of a patch, 8×8; got 8"),
    ({"num_kv_heads": (3,)}, r"num_kv_heads must have num_layers=2 items; got \(3,\)"),
]


@by_table("options, message", WRONG, ids=[str(options) for options, _ in WRONG])
def test_an_invalid_option_is_refused_in_one_line_with_its_value(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        VisionTransformer(**{**SMALL, **options})
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@by_table("shape", [(2, 16, 16, 4), (2, 16, 24, 3), (16, 16, 3), (2, 1, 16, 16, 3), (2, 16)])
def test_images_of_another_shape_are_refused_with_both_shapes(shape):
    with pytest.raises(ValueError) as caught:
        small()(np.zeros(shape, "float32"))
    message = str(caught.value)
    assert f"expected shape=(None, 16, 16, 3), found shape={shape}" in message or (
        f"expected ndim=4, found ndim={len(shape)}. Full shape received: {shape}" in message
    )
    assert "\n" not in message


@by_table("size", [16, (16, 16), [16, 16], np.int64(16)])
def test_sizes_have_one_normal_form(size):
    config = ViTConfig(**{**SMALL, "image_size": size, "patch_size": size})
    assert config.image_size == config.patch_size == (16, 16)


def test_the_class_token_follows_the_pooling():
    assert ViTConfig(**SMALL).class_token
    assert not ViTConfig(**SMALL, pooling="gap").class_token
    assert not ViTConfig(**SMALL, pooling=None).class_token
    assert small(pooling="map", class_token=True).num_prefix_tokens == 1
    assert small(distillation=True, num_registers=3).num_prefix_tokens == 5


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_constructor_has_the_options_of_the_schema(cls):
    parameters, options = inspect.signature(cls).parameters, options_of(cls.schema)
    assert [*parameters] == [*options, "dtype", "kwargs"]
    for name, field in options.items():
        assert parameters[name].default == DEFAULTS.get(name, inspect.Parameter.empty)
        if cls is VisionTransformer or FRONT_ENDS.get(name) is cls:
            assert f"\n    {name}: {field.metadata['doc'][:40]}" in cls.__doc__
        assert field.metadata["group"] in ("size", "architecture", "training", "metadata")
        assert name not in DEFAULTS or field.metadata["rule"].accepts(DEFAULTS[name])


def test_options_are_positional_arguments():
    positional = VisionTransformer(16, 8, 12, 2, 20, 3, 5, "gap")
    assert (positional.num_classes, positional.pooling) == (5, "gap")


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_configuration_of_the_options_of_all_classes_makes_a_model_of_one(cls):
    config = {**SMALL, **{name: DEFAULTS[name] for name in FRONT_ENDS}, **CLASSES[cls]}
    model = VisionTransformer.from_config(config)
    assert type(model) is cls
    own = {name for name, owner in FRONT_ENDS.items() if owner is cls}
    assert model.get_config().keys() & FRONT_ENDS.keys() == own
    if cls is not VisionTransformer:
        with pytest.raises(ValueError, match=f"^VisionTransformer has no option .*{cls.__name__}"):
            VisionTransformer(**{**SMALL, **CLASSES[cls]})


def test_options_of_two_classes_are_refused():
    with pytest.raises(ValueError, match=r"of one model; got {'palette': 7, 'max_num_patches': 5}, of Pixel"):
        VisionTransformer.from_config({**SMALL, "palette": 7, "max_num_patches": 5, "causal": False})


@pytest.mark.parametrize("make", [VisionTransformer, VisionTransformer.from_variant])
def test_an_unknown_option_is_refused(make):
    sizes = SMALL if make is VisionTransformer else {"variant": "mu/16", "image_size": 32}
    with pytest.raises(ValueError, match="has no option drop_rate .*, num_class .*; its options are image"):
        make(**sizes, num_class=3, drop_rate=0.1)
    with pytest.raises(ValueError, match="has no option num_class .did you mean 'num_classes'"):
        make(**sizes, num_class=5)


def test_options_of_a_file_are_checked_one_by_one():
    check_options({"image_size": (None, None), "preprocessing": {"resize": "crop"}}, "model.json")
    for options, message in (
        ({"patch": 8}, "model.json: VisionTransformer has no option 'patch'"),
        ({"num_heads": "3"}, "model.json: num_heads must be a positive int or None; got '3'"),
        ({"preprocessing": {"crop": 1}}, "model.json: preprocessing must be a keras_vit.Preprocessing or"),
    ):
        with pytest.raises(ValueError, match=message):
            check_options(options, "model.json")


@by_table(
    "options, whole",
    [
        ({}, True),
        ({"image_size": 1600}, True),
        ({"position_grid": (30, 40)}, True),
        ({"image_size": (None, None), "pooling": "map", "pooling_mlp_dim": 3000}, True),
        ({"relative_positions": True, "image_size": 640, "position_embedding": "none"}, True),
        ({"gated_mlp": True, "mlp_dim": 3000, "position_embedding": "none", "image_size": 1600}, True),
        ({"num_kv_heads": 1, "position_embedding": "sincos2d", "image_size": 1600}, False),
        ({**NO_TRANSFORMER, "image_size": 1600}, False),
    ],
    ids=str,
)
def test_the_lower_bound_of_the_parameters_is_close(options, whole):
    """Before a file's model is built, so that none can declare more than memory holds."""
    model = VisionTransformer(**{**SMALL, **options})
    in_a_file = json.loads(json.dumps(model.get_config()))
    count, bound = model.count_params(), min_parameters(in_a_file)
    assert bound <= count
    assert not whole or bound > count / 3
