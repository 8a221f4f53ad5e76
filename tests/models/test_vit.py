import json
import os
from itertools import product

import keras
import numpy as np
import pytest
from made.sampling import some_on_jax
from reference.comparing import arrays, assert_close, numpy
from reference.small import NO_TRANSFORMER, SMALL, assert_same_as_numpy, compute, images_for, small

import keras_vit
from keras_vit import Preprocessing, VisionTransformer
from keras_vit.layers import resize_position_grid

OPTIONS = [
    {},
    {"representation_size": 9},
    {"pooling": "gap"},
    {"pooling": "gap", "representation_size": 9, "position_embedding": "sincos2d"},
    {"pooling": "gap", "class_token": True},
    {"pooling": "map"},
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
FULL = "FULL" in os.environ


@pytest.mark.parametrize("options", some_on_jax(OPTIONS, 3), ids=str)
def test_every_stage_equals_numpy(options):
    assert_same_as_numpy(small(**options))


def test_a_new_head_is_zero_and_so_are_its_logits():
    model = VisionTransformer(**SMALL, distillation=True)
    for name in ("head", "head_distillation"):
        assert not any(numpy(w).any() for w in model.get_layer(name).weights)
    assert not numpy(model(images_for(model))).any()


def test_the_layers_have_the_documented_names():
    model = small(representation_size=9)
    names = [layer.name for layer in model.layers]
    stages = "patch_embedding class_token position_embedding encoder_block_0 encoder_block_1 encoder_norm"
    assert [n for n in names if n in stages.split()] == stages.split()
    assert names[-4:] == ["pre_logits", "representation", "head", "logits"]
    assert "pooled_norm" in [x.name for x in small(norm_after_pooling=True, pooling="gap").layers]


# Any size -----------------------------------------------------------------------------------------


FREE = [{}, {"pooling": "gap"}, {"position_embedding": "sincos2d"}]
SIZES = [(24, 24), (16, 40), (8, 16)]


@pytest.mark.parametrize("options, size", some_on_jax(product(FREE, SIZES), 4), ids=str)
def test_a_model_of_any_size_equals_one_of_that_size_with_the_table_resized(options, size):
    free = small(**{**options, "image_size": (None, None), "position_grid": (3, 2)})
    fixed = small(**{**options, "image_size": size})
    for name, array in arrays(free).items():
        if name == "position_embedding/table":
            prefix, cells = array[:, :-6], array[0, -6:].reshape(3, 2, -1)
            grid = resize_position_grid(cells, tuple(side // 8 for side in size)).reshape(1, -1, 12)
            array = np.concatenate([prefix, grid], 1)
        next(w for w in fixed.weights if w.path == name).assign(array)
    images = images_for(fixed)
    assert_close(free(images), numpy(fixed(images)), 1e-5)


@pytest.mark.tensorflow_only("a grid is the same on every backend")
def test_a_model_of_any_size_has_the_grid_of_a_224_pixel_image():
    assert small(image_size=(None, None)).position_grid == (28, 28)
    assert small(image_size=(None, None), resnet=(1, 1), patch_size=1).position_grid == (28, 28)


def test_a_model_of_any_size_still_holds_to_its_patches():
    with pytest.raises(ValueError, match="24×20 .* not divisible by the patch of 8×8"):
        small(image_size=(None, None))(np.zeros((1, 24, 20, 3)))


# Looking inside -----------------------------------------------------------------------------------


@pytest.mark.parametrize("registers", [0, 2])
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
    cells = numpy(features["tokens"])[:, prefix:].reshape(2, 2, 3, 12)
    assert_close(grids["tokens"], cells, 1e-6)
    assert_close(grids["patch_embedding"], numpy(features["patch_embedding"]), 1e-6)


def test_one_stage_may_be_given_as_a_string():
    model = small()
    assert [*model.feature_extractor("tokens")(images_for(model))] == ["tokens"]


@pytest.mark.parametrize(
    "stages, grid, message",
    [
        (["tokens", "blocks"], False, r"stages \['blocks'\] are unknown; the stages are .*encoder_block_1"),
        ([], False, "are unknown"),
        (["logits"], True, "'logits' of shape .* holds no grid"),
    ],
)
def test_a_stage_that_is_none_is_refused(stages, grid, message):
    with pytest.raises(ValueError, match=message):
        small().feature_extractor(stages, grid=grid)


# Images to names ----------------------------------------------------------------------------------


def test_classify_names_the_best_classes_first():
    model = small(class_names=["ant", "bee", "cat", "dog", "eel"])
    pictures = np.random.default_rng(1).integers(0, 256, (3, 20, 30, 3)).astype("uint8")
    logits = numpy(model(model.preprocessing(pictures))).astype("float64")
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    with pytest.raises(ValueError, match="top must be a positive int; got 0"):
        model.classify(pictures, top=0)
    for result, row in zip(model.classify(pictures, top=3, batch_size=2), probabilities):
        best = np.argsort(-row)[:3]
        assert [name for name, _ in result] == [model.class_names[i] for i in best]
        np.testing.assert_allclose([score for _, score in result], row[best], rtol=1e-4)
    alone = small().classify(pictures[0])
    assert len(alone) == 1
    assert sorted(name for name, _ in alone[0]) == ["0", "1", "2", "3", "4"]
    assert sum(score for _, score in alone[0]) == pytest.approx(1)


@pytest.mark.parametrize("options", [{"num_classes": None}, {"pooling": None}])
def test_a_model_without_a_head_classifies_nothing(options):
    with pytest.raises(ValueError, match="no classification head"):
        small(**options).classify(np.zeros((16, 16, 3), "uint8"))


# Building -----------------------------------------------------------------------------------------


@pytest.mark.tensorflow_only("sizes are the same on every backend")
def test_a_variant_is_the_sizes_of_its_name_and_options_win():
    model = VisionTransformer.from_variant("mu/8", image_size=16, num_classes=3, num_layers=2, pooling="gap")
    assert (model.hidden_size, model.num_heads, model.patch_size, model.num_layers) == (32, 2, (8, 8), 2)
    assert model.pooling == "gap"
    assert model.num_classes == 3
    with pytest.raises(ValueError, match="variant 'XL/16' is unknown"):
        VisionTransformer.from_variant("XL/16")


def test_preprocessing_fits_the_model_and_travels_in_its_configuration():
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
    assert small(num_layers=1, stochastic_depth_rate=0.2).get_layer("encoder_block_0").skip.rate == 0


def test_dropout_changes_the_output_in_training_only():
    model = small(dropout_rate=0.5)
    images = images_for(model)
    np.testing.assert_array_equal(numpy(model(images)), numpy(model(images, training=False)))
    assert np.abs(numpy(model(images, training=True)) - numpy(model(images))).max() > 1e-3


def test_keras_can_clone_it():
    model = small(num_registers=1, representation_size=9)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    images = images_for(model)
    assert_close(clone(images), numpy(model(images)), 1e-6)
    assert clone.weights[0] is not model.weights[0]


def test_mixed_precision_computes_in_it_and_ends_in_float32():
    model = small(dtype="mixed_bfloat16")
    exact = small()
    images = images_for(model)
    dtypes = {n: keras.backend.standardize_dtype(x.dtype) for n, x in compute(model, images).items()}
    assert dtypes["tokens"] == "bfloat16"
    assert dtypes["logits"] == "float32"
    assert_close(numpy(model(images)), numpy(exact(images)), 0.1)


# Training -----------------------------------------------------------------------------------------


def two_kinds(model, count=32):
    """Dark and bright images, which any model can tell apart."""
    labels = np.arange(count) % 2
    images = images_for(model, count) * 0.1 + (labels * 1.6 - 0.8).reshape(-1, 1, 1, 1)
    return images.astype("float32"), labels


def compiled(**options):
    model = VisionTransformer(**{**SMALL, "num_layers": 1, "num_classes": 2, **options})
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
    return model


@pytest.mark.parametrize("options", [*[{}] * FULL, {"pooling": "map", "dropout_rate": 0.1}], ids=str)
def test_fit_learns_from_numpy_arrays(options):
    model = compiled(**options)
    images, labels = two_kinds(model)
    history = model.fit(images, labels, batch_size=8, epochs=8, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert model.evaluate(images, labels, verbose=0, return_dict=True)["accuracy"] == 1


@pytest.mark.tensorflow_only("tf.data and tf.distribute")
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")  # Keras's own default
@pytest.mark.parametrize("replicas", [2, *[None, 1] * FULL])
def test_fit_learns_from_a_dataset_with_a_strategy_and_without(replicas):
    import contextlib

    import tensorflow as tf

    scope = contextlib.nullcontext()
    if replicas:
        devices = [f"/cpu:{i}" for i in range(replicas)]
        if len(tf.config.list_logical_devices("CPU")) < replicas:
            pytest.fail("the tests need two logical CPU devices; see conftest.py")
        scope = tf.distribute.MirroredStrategy(devices).scope()
    with scope:
        model = compiled()
    dataset = tf.data.Dataset.from_tensor_slices(two_kinds(model)).batch(8).repeat(8)
    history = model.fit(dataset, epochs=2, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert model.evaluate(dataset.take(4), verbose=0, return_dict=True)["accuracy"] == 1


def test_the_version_is_one():
    assert keras_vit.__version__.count(".") == 2


@pytest.mark.parametrize("make", [VisionTransformer, keras_vit.VisionTransformer.from_variant])
def test_an_argument_that_does_not_exist_is_refused(make):
    sizes = SMALL if make is VisionTransformer else {"variant": "mu/16", "image_size": 32}
    with pytest.raises(ValueError, match="has no option drop_rate, num_class; its options are image"):
        make(**sizes, num_class=3, drop_rate=0.1)


@pytest.mark.tensorflow_only("a file holds the same on every backend")
def test_frozen_layers_stay_frozen_in_a_file_with_their_optimizer(tmp_path):
    model = small(num_layers=1)
    for name in ("patch_embedding", "encoder_block_0", "encoder_norm"):
        model.get_layer(name).trainable = False
    model.compile("adam", loss="mse")
    model.fit(images_for(model), np.zeros((2, model.num_classes)), verbose=0)
    model.save(tmp_path / "frozen.keras")
    again = keras.saving.load_model(tmp_path / "frozen.keras")
    assert [w.path for w in again.trainable_weights] == [w.path for w in model.trainable_weights]
    assert len(again.trainable_weights) < len(model.weights)
    assert int(again.optimizer.iterations) == 1
    for ours, theirs in zip(model.optimizer.variables, again.optimizer.variables, strict=True):
        np.testing.assert_array_equal(numpy(ours), numpy(theirs))


def test_a_table_of_another_grid_is_resized_at_each_call():
    model = small(position_grid=(3, 5))
    grid = model.get_layer("patch_embedding").output.shape[1:3]
    table = numpy(model.get_layer("position_embedding").table)
    fixed = small()
    for ours, theirs in zip(model.weights, fixed.weights, strict=True):
        value = numpy(ours)
        if ours.path == "position_embedding/table":
            cells = resize_position_grid(table[0, 1:].reshape(3, 5, -1), grid)
            value = np.concatenate([table[:, :1], cells.reshape(1, grid[0] * grid[1], -1)], axis=1)
        theirs.assign(value)
    images = images_for(fixed)
    stages = ("tokens",)
    assert_close(compute(model, images, stages)["tokens"], compute(fixed, images, stages)["tokens"], 1e-5)


def test_a_model_of_any_size_says_in_one_line_which_images_it_cannot_cut():
    model = small(image_size=(None, None))
    with pytest.raises(ValueError, match="a grid of 15×17 .* is not divisible by the patch") as caught:
        model.classify(np.zeros((1, 15, 17, 3), "uint8"))
    assert "\n" not in str(caught.value)
