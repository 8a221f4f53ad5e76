"""Quantization and LoRA of whole models: what they compute, keep in files, train and export."""

import json

import keras
import numpy as np
import pytest
from made.devices import devices
from reference.comparing import assert_close, numpy, randomise
from reference.small import images_for, one_block, small

import keras_vit
from keras_vit.layers import EncoderBlock
from keras_vit.models.adapting import plain_arrays
from keras_vit.training import SGD
from keras_vit.weights import from_pretrained, save_weights

LABELS = np.array([0, 1])
CLOSE = {"int8": 0.05, "int4": 0.5, "float8": 0.3, None: 0}  # of the largest output, by the precision


def lora(model):
    """With factors as after training: B starts at zero."""
    model.enable_lora(rank=2, targets=("query", "value", "dense_0"), alpha=3)
    rng = np.random.default_rng(0)
    for weight in model.weights:
        if "lora_kernel" in weight.name:
            weight.assign(rng.normal(0, 0.2, weight.shape))
    return model


def called(model):
    model(images_for(model))
    return model


def quantized(mode=None, config=None):
    def change(model):
        model.quantize(mode, config=config)
        return model

    return change


def remat(model):
    for layer in model.layers:
        if isinstance(layer, EncoderBlock):
            layer.remat = True
    return model


def from_golden(_):
    return randomise(from_pretrained("tests/golden/token.npz", num_classes=5, dropout_rate=0.1))


WEIGHTS_ONLY = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
SMALL_GROUPS = keras.quantizers.Int4QuantizationConfig(block_size=5)
BFLOAT16 = {"dtype": "mixed_bfloat16"}
# What is done to a small model of which options.
FEATURES = {
    "int8": ({}, quantized("int8")),
    "int4": ({}, quantized("int4")),
    "float8": ({}, quantized("float8")),
    "lora": ({}, lora),
    "int8_in_mixed_bfloat16": (BFLOAT16, quantized("int8")),
    "int8_of_weights_alone": ({}, quantized(config=WEIGHTS_ONLY)),
    "lora_then_int8": ({}, lora, quantized("int8")),
    "int4_then_lora": ({}, quantized("int4"), lora),
    "int8_after_a_call": ({}, called, quantized("int8")),
    "int4_in_small_groups": ({}, quantized(config=SMALL_GROUPS)),
    "int8_with_stochastic_depth": ({"stochastic_depth_rate": 0.1}, quantized("int8")),
    "int8_with_map_pooling": ({"pooling": "map", "representation_size": 6}, quantized("int8")),
    "int8_from_pretrained": ({}, from_golden, quantized("int8")),
    "lora_in_mixed_bfloat16": (BFLOAT16, lora),
    "lora_with_remat": ({}, remat, lora),
    "lora_then_int4": ({}, lora, quantized("int4")),
    "int8_then_lora": ({}, quantized("int8"), lora),
}
GPTQ = keras.quantizers.GPTQConfig(dataset=["text"], tokenizer=str)
# How far outputs may be from those of the float kernels, of the largest: what activations are rounded to.
ROUNDED = {"int8": 0.03, "int4": 1e-5, "float8": 0.2, "lora": 1e-5, "bfloat16": 0.05}


def every_feature(*quick):
    """A test for each feature; all but some are slow."""
    slow = {name: [pytest.mark.slow] * (name not in quick) for name in FEATURES}
    return pytest.mark.parametrize("feature", [pytest.param(name, marks=slow[name]) for name in FEATURES])


def made(feature):
    options, *changes = FEATURES[feature]
    model = one_block(**options)
    for change in changes:
        model = change(model)
    return model


def outputs(model):
    return numpy(model(images_for(model)))


def states(model):
    return sorted((weight.path, weight.dtype, weight.trainable) for weight in model.weights)


def compiled(model, **options):
    model.compile(
        SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **options,
    )
    return model


@every_feature("lora", "int4_then_lora")
def test_a_step_of_training_changes_what_is_to_be_trained(feature, tmp_path):
    # Keras's float8 and its int8 in bfloat16 train on TensorFlow in a graph alone, which takes long to make.
    model = made(feature)
    compiled(model, run_eagerly="float" not in feature, jit_compile=False)
    before = {weight.path: numpy(weight) for weight in model.weights}
    model.fit(images_for(model), np.array([0, 1]), verbose=0)
    changed = {w.path for w in model.weights if (numpy(w) != before[w.path]).any()}
    assert changed <= {weight.path for weight in model.trainable_weights}
    if "lora" in feature:
        assert {path.split("/")[-2] for path in changed} == {"query", "value", "dense_0", "head"}
        assert all("lora_kernel" in path or path.startswith("head/") for path in changed)
    else:
        assert {"encoder_block_0/mlp/dense_0/bias", "position_embedding/table"} <= changed
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for variable, expected in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(numpy(variable), numpy(expected))


@every_feature("int8", "float8", "int4_then_lora")
def test_files_and_exports_keep_a_changed_model(feature, tmp_path):
    model = made(feature)
    expected = outputs(model)

    # Keras's files hold the model as it is.
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert json.dumps(loaded.get_config()) == json.dumps(model.get_config())
    assert states(loaded) == states(model)
    np.testing.assert_array_equal(outputs(loaded), expected)
    randomise(loaded)
    loaded.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(outputs(loaded), expected)

    # Other layouts and exports hold plain float32 kernels.
    layout = "big_vision" if model.pooling == "map" else "vit_jax"
    plain = from_pretrained(save_weights(model, tmp_path / "model.npz", layout))
    assert {weight.name for weight in plain.weights} <= {
        "kernel",
        "bias",
        "gamma",
        "beta",
        "token",
        "table",
        "probe",
    }
    assert all(weight.dtype == "float32" and weight.trainable for weight in plain.weights)
    bound = max(bound for part, bound in ROUNDED.items() if part in feature)
    assert_close(expected, outputs(plain), bound)
    if keras.backend.backend() == "tensorflow":
        from keras_vit.export.saved_model import float32_copy

        np.testing.assert_array_equal(outputs(float32_copy(model)), outputs(plain))


# Files --------------------------------------------------------------------------------------------


def test_a_keras_file_of_a_changed_model_is_a_checkpoint(tmp_path):
    model = made("lora")
    model.save(tmp_path / "model.keras")
    plain = from_pretrained(tmp_path / "model.keras")
    weights = {weight.path: numpy(weight) for weight in plain.weights}
    for path, array in plain_arrays(model).items():
        np.testing.assert_array_equal(weights[path], array)


def test_weights_with_factors_and_without_load_into_each_other(tmp_path):
    adapted, plain = made("lora"), one_block()
    adapted.save_weights(tmp_path / "adapted.weights.h5")
    plain.save_weights(tmp_path / "plain.weights.h5")
    expected = outputs(plain), outputs(adapted)
    plain.load_weights(tmp_path / "adapted.weights.h5")
    assert_close(outputs(plain), expected[1], 1e-6)
    assert states(plain) == states(one_block())
    adapted.load_weights(tmp_path / "plain.weights.h5")
    assert_close(outputs(adapted), expected[0], 1e-6)
    query = adapted.get_layer("encoder_block_0").attention.query
    assert numpy(query.lora_kernel_a).any() and not numpy(query.lora_kernel_b).any(), "it can be trained"


def test_parts_of_blocks_stay_frozen_in_a_file(tmp_path):
    model = one_block()
    block = model.get_layer("encoder_block_0")
    block.attention.trainable = False
    block.mlp.dense_0.bias.trainable = False
    model.get_layer("head").trainable = False
    model.save(tmp_path / "model.keras")
    config = model.get_config()
    parts = {"encoder_block_0/attention", "encoder_block_0/mlp/dense_0/bias", "head"}
    assert {*config["frozen"]} == parts
    assert states(keras.saving.load_model(tmp_path / "model.keras")) == states(model)
    with pytest.raises(ValueError, match="there are no layers encoder_block_1$"):
        keras_vit.VisionTransformer.from_config({**config, "frozen": ["encoder_block_1"]})


def test_layers_in_other_models_keep_what_was_changed(tmp_path):
    model = made("int4_then_lora")
    model.get_layer("head").enable_lora(2, lora_alpha=5)
    features = model.feature_extractor(["encoder_block_0", "logits"])
    features.save(tmp_path / "features.keras")
    loaded = keras.saving.load_model(tmp_path / "features.keras", safe_mode=True)
    assert states(loaded) == states(features)
    images = images_for(model)
    expected = features(images)
    for stage, values in loaded(images).items():
        np.testing.assert_array_equal(numpy(values), numpy(expected[stage]))


def test_a_predictor_of_masked_patches_is_adapted_with_its_encoder(tmp_path):
    encoder = one_block(num_classes=None)
    predictor = randomise(keras_vit.MaskedPatchPredictor(encoder))
    inputs = {"images": images_for(encoder), "sources": np.array([[0, -1, 2, 1]] * 2, "int32")}
    predictor.quantize("int8")
    predictor.enable_lora(2)
    trained = {path.split("/")[0] for path, _, trains in states(predictor) if trains}
    assert trained == {"encoder_block_0", "mask_token", "prediction"}
    predictor.save(tmp_path / "predictor.keras")
    loaded = keras.saving.load_model(tmp_path / "predictor.keras")
    assert states(loaded) == states(predictor)
    np.testing.assert_array_equal(numpy(loaded(inputs)), numpy(predictor(inputs)))
    model = predictor.to_vision_transformer(num_classes=3)
    assert all(weight.trainable and weight.dtype == "float32" for weight in model.weights)
    tokens = [numpy(m.feature_extractor("tokens")(inputs["images"])["tokens"]) for m in (model, encoder)]
    assert_close(tokens[1], tokens[0], 0.03)


# What can be asked for ----------------------------------------------------------------------------


def test_factors_change_nothing_at_first_and_merging_nothing_at_last():
    model = one_block()
    images, expected = images_for(model), outputs(model)
    model.predict_on_batch(images)
    model.enable_lora(3)
    np.testing.assert_array_equal(outputs(model), expected)
    trained = {path.removeprefix("encoder_block_0/") for path, _, trains in states(model) if trains}
    factors = {f"attention/{part}/lora_kernel_{x}" for part in ("query", "value") for x in "ab"}
    assert trained == {*factors, "head/kernel", "head/bias"}
    for weight in model.weights:
        if "lora_kernel_b" in weight.name:
            weight.assign(weight + 0.1)
    expected = outputs(model)
    model.merge_lora()
    assert_close(outputs(model), expected, 1e-6)
    assert_close(model.predict_on_batch(images), expected, 1e-6)
    assert states(model) == states(one_block())
    model.enable_lora(1)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda m: m.enable_lora(0), "rank must be a positive int; got 0"),
        (lambda m: m.enable_lora(2, targets=("querry",)), r"has dense_0, .*value, got \('querry',\)"),
        (lambda m: m.enable_lora(2, targets=()), r"got \(\)"),
        (lambda m: (m.enable_lora(2), m.enable_lora(2)), "has LoRA factors already"),
        (lambda m: (m.quantize("float8"), m.enable_lora(2)), "computes in float8, in which Keras does not"),
        (lambda m: (m.enable_lora(2), m.quantize("float8")), "does not support LoRA in float8; merge_lora"),
        (lambda m: m.merge_lora(), "has no LoRA factors to merge"),
        (lambda m: m.quantize(config=GPTQ), r"mode must be one of \('int8', 'int4', 'float8'\); got 'gptq'"),
        (lambda m: (m.quantize("int8"), m.quantize("int4")), "is already quantized"),
        (lambda m: small(dtype="int8_from_float32"), "float policy; got 'int8_from_float32': quantize()"),
    ],
)
def test_what_cannot_be_combined_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        change(one_block())


def test_a_model_without_trainable_weights_is_refused_by_name():
    model = compiled(one_block(name="still"))
    model.trainable = False
    with pytest.raises(ValueError, match="nothing to train: every weight of the model 'still' is frozen"):
        model.fit(images_for(model), np.array([0, 1]), verbose=0)


# Training in float8 -------------------------------------------------------------------------------

IMAGES = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")


def float8_step(**options):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3,))
    model = keras_vit.models.DistributedModel(inputs, keras.layers.Dense(2)(inputs))
    model.quantize("float8")
    model.compile("sgd", "mse", jit_compile=False, **options)
    model.fit(IMAGES, np.ones((4, 2)), verbose=0)
    return {weight.name: numpy(weight) for weight in model.weights}


@pytest.mark.slow
@pytest.mark.tensorflow_only("where a batch is trained in parts")
def test_float8_in_parts_remembers_the_largest_value_of_the_whole_batch():
    whole, parts = float8_step(), float8_step(accumulation_steps=2)
    assert whole["inputs_amax_history"].max() == np.abs(IMAGES).max()
    for name in ("inputs_amax_history", "kernel_amax_history", "inputs_scale", "kernel_scale"):
        np.testing.assert_array_equal(whole[name], parts[name])


@pytest.mark.tensorflow_only("strategies are of TensorFlow")
def test_float8_on_several_replicas_is_refused():
    with devices(2).scope(), pytest.raises(ValueError, match="float8 trains on one device.*got 2 replicas"):
        float8_step()
