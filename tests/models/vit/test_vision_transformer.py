import json
import re
from itertools import product

import keras
import numpy as np
import pytest
import tensorflow as tf
from made.sampling import some, some_on_jax
from reference.comparing import arrays, assert_close, numpy
from reference.small import NEWER, NO_TRANSFORMER, SMALL, assert_same_as_numpy, images_for, small

from keras_vit import Preprocessing, VisionTransformer
from keras_vit.layers import resize_position_grid
from keras_vit.layers.dropout import unchanged
from keras_vit.layers.segmentation_head import resize
from keras_vit.models.vit import vision_transformer

OPTIONS = [
    {},
    {"representation_size": 9},
    {"pooling": "gap"},
    {"pooling": "gap", "representation_size": 9, "position_embedding": "sincos2d"},
    {"pooling": "gap", "class_token": True},
    {"pooling": "token_gap", "num_registers": 2},
    {"pooling": "map", "activation": "gelu_erf", "norm_epsilon": 1e-2},
    {"pooling": "map", "class_token": True, "num_registers": 2, "qkv_bias": False},
    {"pooling": None},
    {"pooling": None, "class_token": True, "representation_size": 9},
    {"num_classes": None},
    {"num_classes": None, "representation_size": 9},
    {"position_embedding": "sincos2d", "num_registers": 1},
    {"position_embedding": "sincos2d", "prefix_positions": False},
    {"position_embedding": "none"},
    {"num_registers": 3},
    {"num_registers": 3, "prefix_positions": False, "layer_scale": 0.1},
    {"distillation": True},
    {"distillation": True, "prefix_positions": False, "num_registers": 1},
    {"pre_norm": True, "qkv_bias": False, "activation": "quick_gelu", "norm_epsilon": 1e-5},
    {"norm_after_pooling": True, "pooling": "gap", "activation": "gelu_erf"},
    {"norm_after_pooling": True, "pooling": "map", "representation_size": 9},
    {"image_size": (16, 24), "patch_size": (8, 4), "in_channels": 1},
    {"in_channels": 4, "position_embedding": "sincos2d", "image_size": (8, 24)},
    {**NO_TRANSFORMER},
    {**NO_TRANSFORMER, "pooling": None, "representation_size": 9},
    {"dropout_rate": 0.5, "attention_dropout_rate": 0.5, "stochastic_depth_rate": 0.5},
]

RECTANGLE = {"image_size": (16, 24), "hidden_size": 24}
# An epsilon of 1e-2 differs in the outputs from the usual ones.
SWIGLU = {"gated_mlp": True, "activation": "silu"}
FAMILIES = {
    "DINOv3": {"rotary": "dinov3", "num_registers": 4, "position_embedding": "none", "key_bias": False},
    "EVA-02": {"rotary": {"kind": "axial", "reference_grid": (4, 5)}, **SWIGLU, "mlp_sub_norm": True},
    "EVA-02-CLIP": {
        **{"rotary": "axial", **SWIGLU, "mlp_sub_norm": True, "attention_sub_norm": True},
        "norm_epsilon": 1e-2,
    },
    "Perception Encoder": {
        "rotary": {"kind": "axial", "reference_grid": (3, 5), "order": "xy", "offset": 1},
        **{"pooling": "map", "pooling_heads": 2, "class_token": True, "pre_norm": True},
        "norm_epsilon": 1e-2,
    },
    "RoPE-ViT": {"rotary": {"kind": "axial", "order": "xy", "base": 100}, "prefix_positions": False},
    "RoPE-ViT, mixed": {"rotary": {"kind": "mixed", "order": "xy"}, "position_embedding": "none"},
    "ViT-5": {
        "rotary": {"kind": "axial", "rotate_registers": True},
        **{"num_registers": 4, "norm": "rms", "qk_norm": True, "qkv_bias": False, "layer_scale": 1e-4},
        **{"attention_sub_norm": True, "norm_epsilon": 1e-2},
    },
    "AIMv2": {
        **{"norm": "rms", "norm_epsilon": 1e-3, "patch_norm": True, "linear_bias": False, "pooling": "gap"},
        **{**SWIGLU, "mlp_sub_norm": True},
    },
    "BEiT": {"relative_positions": True, "position_embedding": "none", "norm_epsilon": 1e-2},
    "relative positions without a class token": {"relative_positions": True, "pooling": "gap"},
    "EVA-02-E": {"post_norm": True, "qk_norm": True, "norm_epsilon": 1e-2, "layer_scale": 0.1},
    "RADIO": {"final_norm": False, "image_size": (19, 30)},
    "ViTPose": {"patch_padding": 1, "pooling": "gap"},
    "Sapiens2": {
        **{"num_heads": 6, "num_kv_heads": (2, 6), "layer_scale": 0.1, "scale_mlp": False},
        **{"rotary": "dinov3", "norm": "rms", "qk_norm": True},
    },
    "a probe without prefix": {
        **{"pooling": "map", "class_token": True, "pool_prefix": False, "num_registers": 2}
    },
}


@pytest.mark.parametrize("name", some(some_on_jax(FAMILIES, 4), 2))
def test_every_stage_of_newer_families_equals_numpy(name):
    options = {**RECTANGLE, **FAMILIES[name]}
    if name == "Sapiens2":  # heads of a size that 4 divides
        options["hidden_size"] = 48
    assert_same_as_numpy(small(**options))


@pytest.mark.tensorflow_only("arrays are the same on every backend")
def test_the_attention_of_the_pooling_has_its_own_heads():
    """NumPy computes with the arrays that the model has."""
    model = small(pooling="map", pooling_heads=2)
    assert arrays(model)["attention_pooling/attention/query/kernel"].shape == (12, 2, 6)


@pytest.mark.parametrize("options", some(some_on_jax(OPTIONS, 3), 2), ids=str)
def test_every_stage_equals_numpy(options):
    assert_same_as_numpy(small(**options))


@pytest.mark.parametrize("pooling, computed", [("token", 1), ("gap", None)])
def test_for_the_class_token_the_last_block_computes_no_other(pooling, computed):
    model = VisionTransformer(**{**SMALL, "pooling": pooling})
    block = model.get_layer(f"encoder_block_{model.num_layers - 1}")
    everything, *others = (node.output_tensors[0].shape[1] for node in block._inbound_nodes)
    assert everything == model.get_layer("position_embedding").output.shape[1]  # for extractors
    assert others == ([computed] if computed else [])


def test_a_new_head_is_zero_and_so_are_its_logits():
    model = VisionTransformer(**SMALL, distillation=True)
    for name in ("head", "head_distillation"):
        assert not any(numpy(w).any() for w in model.get_layer(name).weights)
    assert not numpy(model(images_for(model))).any()


# Any size -----------------------------------------------------------------------------------------


def test_pixels_that_fill_no_patch_are_ignored_and_the_model_says_so(monkeypatch):
    said = []
    vision_transformer._warn.cache_clear()
    monkeypatch.setattr(vision_transformer.logging, "warning", said.append)
    model = small(image_size=(19, 30))
    images = images_for(model)
    changed = images.copy()
    changed[:, 16:], changed[:, :, 24:] = 9, 9
    np.testing.assert_array_equal(numpy(model(changed)), numpy(model(images)))
    lines = []
    model.summary(print_fn=lambda line, **kwargs: lines.append(line))
    assert model.ignored_border == (3, 6)
    assert "ignores 3 rows of pixels at the bottom and 6 columns at the right" in lines[-1]
    assert said == lines[-1:]
    assert small(image_size=(16, 24)).ignored_border == (0, 0) and len(said) == 1
    small(image_size=(19, 30)), small(image_size=(19, 31))
    assert len(said) == 2  # once for each border
    stem = {"resnet": (), "resnet_width": 32, "patch_size": 2}
    assert small(**stem, image_size=(20, 16)).ignored_border == (4, 0)


@pytest.mark.tensorflow_only("shapes are checked alike on every backend")
def test_an_image_smaller_than_a_patch_is_refused():
    with pytest.raises(ValueError, match="a grid of 7×16 .* is smaller than the patch of 8×8"):
        small(image_size=(7, 16))


@pytest.mark.slow
@pytest.mark.parametrize("size, whole", [((15, 17), (16, 24)), ((42, 61), (48, 64)), ((3, 8), (8, 8))])
@pytest.mark.parametrize("compute", ["__call__", "predict_on_batch"])
def test_a_model_of_any_size_resizes_images_to_whole_patches(size, whole, compute, rng):
    model = small(image_size=(None, None))
    images = rng.standard_normal((2, *size, 3)).astype("float32")
    expected = numpy(getattr(model, compute)(numpy(resize(images, whole))))
    assert_close(numpy(getattr(model, compute)(images)), expected, 1e-6)
    grid = model.feature_extractor("tokens", grid=True)(images)["tokens"]
    assert grid.shape[1:3] == (whole[0] // 8, whole[1] // 8)


@pytest.mark.tensorflow_only("JAX always compiles")
def test_keras_does_not_choose_xla_for_a_model_of_any_size(monkeypatch):
    gpu = [tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: gpu)
    models = small(image_size=(None, None)), small()
    assert [model.jit_compile for model in models] == [False, True]
    for model in models:
        model.compile("sgd", "mse")
    assert [model.jit_compile for model in models] == [False, True]


def test_pixels_are_refused_also_where_the_model_is_not_called():
    model, pixels = small(), np.zeros((1, 16, 16, 3), "uint8")
    batches = tf.data.Dataset.from_tensors((pixels, np.zeros(1, "uint8")))
    for call, x in ((model.predict, pixels), (model.predict, batches), (model.predict_on_batch, pixels)):
        with pytest.raises(ValueError) as error:
            call(x)
        # `match` would also search the notes that JAX adds.
        assert re.fullmatch("expected float input, as from model.prep.*; got uint8", str(error.value))
    assert model.predict(batches.map(lambda x, y: (x / 255, y)), verbose=0).shape == (1, 5)


def test_images_of_whole_patches_stay_as_they_are(rng):
    dynamic, fixed = small(image_size=(None, None), position_grid=(2, 3)), small(image_size=(16, 24))
    fixed.set_weights(dynamic.get_weights())
    images = images_for(fixed)
    assert_close(numpy(dynamic.predict_on_batch(images)), numpy(fixed.predict_on_batch(images)), 1e-6)
    np.testing.assert_array_equal(numpy(dynamic.get_layer("whole_patches")(images)), images)


@pytest.mark.parametrize("kind", some(["axial", "mixed", "dinov3"], 3))
def test_rotary_positions_are_those_of_the_grid_of_the_images(kind):
    options = {"rotary": kind, "hidden_size": 24, "position_embedding": "none"}
    model = small(image_size=(None, None), **options)
    fixed = small(image_size=(24, 16), **options)
    images = images_for(fixed)
    assert_close(model(images), numpy(fixed(images)), 1e-6)


def test_rotary_positions_are_rescaled_in_training_alone():
    model = small(rotary="dinov3", hidden_size=24, max_rotary_rescale=4.0)
    images = images_for(model)
    one, other, again = (numpy(model(images, training=training)) for training in (False, True, False))
    np.testing.assert_array_equal(again, one)
    assert np.abs(other - one).max() > 1e-3


OTHER_GRIDS = [{"pooling": "gap"}, {"position_embedding": "sincos2d"}, {"num_registers": 2}]
SIZES = [(24, 24), (16, 40)]


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("options, size", [*product(OTHER_GRIDS, SIZES)], ids=str)
def test_the_position_table_is_resized_to_the_grid_of_the_images(options, size, dynamic):
    model = small(**{**options, "image_size": (None, None) if dynamic else size, "position_grid": (3, 2)})
    expected = small(**{**options, "image_size": size})
    for name, array in arrays(model).items():
        if name == "position_embedding/table":
            prefix, table = array[:, :-6], array[0, -6:].reshape(3, 2, -1)
            grid = resize_position_grid(table, tuple(side // 8 for side in size)).reshape(1, -1, 12)
            array = np.concatenate([prefix, grid], 1)
        next(w for w in expected.weights if w.path == name).assign(array)
    images = images_for(expected)
    assert_close(model(images), numpy(expected(images)), 1e-5)


@pytest.mark.tensorflow_only("a grid is the same on every backend")
def test_a_model_of_any_size_has_by_default_the_grid_of_a_224_pixel_image():
    assert small(image_size=(None, None)).position_grid == (28, 28)
    assert small(image_size=(None, None), resnet=(1, 1), patch_size=1).position_grid == (28, 28)


# Features -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("registers", some([0, 2], 2))
def test_features_of_any_stage_share_the_models_weights(registers):
    model = small(image_size=(16, 24), num_registers=registers)
    prefix, images = 1 + registers, images_for(model)
    assert model.num_prefix_tokens == prefix
    stages = ["patch_embedding", "position_embedding", "encoder_block_0", "encoder_norm", "tokens", "logits"]
    features = model.feature_extractor(stages)(images)
    assert {name: tuple(x.shape) for name, x in features.items()} == {
        "patch_embedding": (2, 2, 3, 12),
        "logits": (2, 5),
        **{name: (2, prefix + 6, 12) for name in stages[1:-1]},
    }
    assert_close(features["logits"], numpy(model(images)), 1e-6)
    assert_close(features["tokens"], numpy(features["encoder_norm"]), 0)
    grids = model.feature_extractor(["tokens", "patch_embedding"], grid=True)(images)
    patches = numpy(features["tokens"])[:, prefix:].reshape(2, 2, 3, 12)
    assert_close(grids["tokens"], patches, 1e-6)
    assert [*model.feature_extractor("tokens")(images)] == ["tokens"]
    assert_close(grids["patch_embedding"], numpy(features["patch_embedding"]), 1e-6)


@pytest.mark.parametrize("name", some(some_on_jax(NEWER, 1), 2))
def test_dense_features_of_newer_families_at_any_rectangle(name):
    options = {**NEWER[name], "position_grid": (2, 3), "num_classes": None}
    model, size = small(**options, image_size=(None, None)), (24, 40)
    fixed = small(**options, image_size=size)
    images = images_for(fixed)
    grids = model.feature_extractor(["encoder_block_0", "tokens"], grid=True)(images)
    tokens = numpy(fixed.feature_extractor("tokens")(images)["tokens"])[:, fixed.num_prefix_tokens :]
    assert_close(grids["tokens"], tokens.reshape(2, 3, 5, 24), 1e-5)
    assert grids["encoder_block_0"].shape == (2, 3, 5, 24)


# Building -----------------------------------------------------------------------------------------


def test_preprocessing_fits_the_model_and_is_in_its_configuration():
    assert small().preprocessing == Preprocessing((16, 16))
    assert small(image_size=(None, None), in_channels=1).preprocessing == Preprocessing(
        None, mean=(0.5,), std=(0.5,)
    )
    own = Preprocessing(16, resize="crop", mean=(0, 0, 0), std=(1, 1, 1))
    model = small(preprocessing=own)
    again = VisionTransformer.from_config(json.loads(json.dumps(model.get_config())))
    assert again.preprocessing == own


def test_stochastic_depth_grows_linearly_to_the_last_block():
    model = small(num_layers=3, stochastic_depth_rate=0.2)
    rates = [model.get_layer(f"encoder_block_{i}").stochastic_depth_rate for i in range(3)]
    np.testing.assert_allclose(rates, [0, 0.1, 0.2])
    only = small(num_layers=1, stochastic_depth_rate=0.2).get_layer("encoder_block_0")
    assert only.stochastic_depth_rate == 0 and only.skip is unchanged


def test_keras_can_clone_it():
    model = small(num_registers=1, representation_size=9)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    images = images_for(model)
    assert_close(clone(images), numpy(model(images)), 1e-6)
    assert clone.weights[0] is not model.weights[0]


def test_no_classes_are_no_head():
    assert small(num_classes=0).num_classes is None
