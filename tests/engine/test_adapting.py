"""Quantization and LoRA of models: outputs, files, training and exports."""

import json

import keras
import numpy as np
import pytest
from made.devices import devices
from made.tables import by_table
from reference.comparing import assert_close, numpy, randomize
from reference.small import NEWER, images_for, one_block, small

import keras_vit
from keras_vit.engine.adapting import plain_arrays
from keras_vit.layers import EncoderBlock
from keras_vit.training import SGD
from keras_vit.weights import from_pretrained, save_weights

LABELS = np.array([0, 1])
PLAIN = {"kernel", "bias", "gamma", "beta", "token", "table", "probe"}  # names of weights


def lora(model):
    model.enable_lora(rank=2, targets=("query", "value", "dense_0"), alpha=3)
    return as_trained(model)


def as_trained(model):
    """The model with other factors than at the start, where B is zero."""
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
    return randomize(from_pretrained("tests/golden/token.npz", num_classes=5, dropout_rate=0.1))


WEIGHTS_ONLY = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
SMALL_GROUPS = keras.quantizers.Int4QuantizationConfig(block_size=5)
BFLOAT16 = {"dtype": "mixed_bfloat16"}
FEATURES = {  # the options of a small model, and changes to it
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
# The largest difference from the outputs with float kernels, relative to the largest output.
ROUNDED = {"int8": 0.03, "int4": 1e-5, "float8": 0.2, "lora": 1e-5, "bfloat16": 0.05}


def every_feature(*quick):
    """A test for each feature, of which all but some are slow."""
    slow = {name: [pytest.mark.slow] * (name not in quick) for name in FEATURES}
    return pytest.mark.parametrize("feature", [pytest.param(name, marks=slow[name]) for name in FEATURES])


def changed_model(feature):
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
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(SGD(0.1), loss, **options)
    return model


@pytest.mark.slow
@every_feature("lora", "int4_then_lora")
def test_a_step_of_training_changes_the_trainable_weights_only(feature, tmp_path):
    # On TensorFlow, Keras's float8 and its int8 in bfloat16 train only in a graph, which takes long to trace.
    model = changed_model(feature)
    compiled(model, run_eagerly="float" not in feature, jit_compile=False)
    before = {weight.path: numpy(weight) for weight in model.weights}
    model.fit(images_for(model), LABELS, verbose=0)
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


@pytest.mark.slow
@every_feature("float8", "int4_then_lora")
def test_files_and_exports_keep_a_changed_model(feature, tmp_path):
    model = changed_model(feature)
    expected = outputs(model)

    # Keras's files keep quantization and factors.
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert json.dumps(loaded.get_config()) == json.dumps(model.get_config())
    assert states(loaded) == states(model)
    np.testing.assert_array_equal(outputs(loaded), expected)
    randomize(loaded)
    loaded.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(outputs(loaded), expected)

    # Other layouts and exports have merged float32 kernels.
    layout = "big_vision" if model.pooling == "map" else "vit_jax"
    plain = from_pretrained(save_weights(model, tmp_path / "model.npz", layout))
    assert {weight.name for weight in plain.weights} <= PLAIN
    assert all(weight.dtype == "float32" and weight.trainable for weight in plain.weights)
    bound = max(bound for part, bound in ROUNDED.items() if part in feature)
    assert_close(expected, outputs(plain), bound)
    if keras.backend.backend() == "tensorflow":
        from keras_vit.export.saved_model import float32_copy

        np.testing.assert_array_equal(outputs(float32_copy(model)), outputs(plain))


# Files --------------------------------------------------------------------------------------------


def test_weights_with_and_without_factors_load_into_each_other(tmp_path):
    adapted, plain = changed_model("lora"), one_block()
    adapted.save_weights(tmp_path / "adapted.weights.h5")
    plain.save_weights(tmp_path / "plain.weights.h5")
    expected = outputs(plain), outputs(adapted)
    plain.load_weights(tmp_path / "adapted.weights.h5")
    assert_close(outputs(plain), expected[1], 1e-6)
    assert states(plain) == states(one_block())
    adapted.load_weights(tmp_path / "plain.weights.h5")
    assert_close(outputs(adapted), expected[0], 1e-6)
    query = adapted.get_layer("encoder_block_0").attention.query
    assert numpy(query.lora_kernel_a).any() and not numpy(query.lora_kernel_b).any(), (
        "so that it can be trained"
    )


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


def test_a_predictor_of_masked_patches_is_adapted_with_its_encoder(tmp_path):
    encoder = one_block(num_classes=None)
    predictor = randomize(keras_vit.MaskedPatchPredictor(encoder))
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


PARTS = ("query", "key", "value", "out", "dense_0", "gate", "up", "dense_1")


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("DINOv3-S", marks=pytest.mark.slow), "EVA-02-B"])
def test_newer_families_are_adapted_merged_and_quantized(name):
    model, plain = one_block(**NEWER[name]), one_block(**NEWER[name])
    dense = {layer.name for layer in model._flatten_layers()} & {*PARTS}
    assert ({"gate", "up"} <= dense) == (name == "EVA-02-B")
    model.enable_lora(2, targets=sorted(dense))
    np.testing.assert_array_equal(outputs(model), outputs(plain))
    adapted, factors = outputs(as_trained(model)), {path for path, _, trains in states(model) if trains}
    assert {path.split("/")[-2] for path in factors} == {*dense, "head"}
    merged = plain_arrays(model)
    for weight in plain.weights:
        weight.assign(merged[weight.path])
    assert_close(outputs(plain), adapted, 1e-5)
    model.merge_lora()
    assert_close(outputs(model), adapted, 1e-5)
    plain.quantize("int8")
    assert_close(outputs(plain), adapted, 0.05)


# The methods --------------------------------------------------------------------------------------


def test_outputs_stay_the_same_with_new_factors_and_after_merging():
    model = one_block()
    images, expected = images_for(model), outputs(model)
    model.predict_on_batch(images)
    model.enable_lora(3)
    np.testing.assert_array_equal(outputs(model), expected)
    trained = {path.removeprefix("encoder_block_0/") for path, _, trains in states(model) if trains}
    factors = {f"attention/{part}/lora_kernel_{x}" for part in ("query", "value") for x in "ab"}
    assert trained == {*factors, "head/kernel", "head/bias"}
    expected = outputs(as_trained(model))
    model.merge_lora()
    assert_close(outputs(model), expected, 1e-6)
    assert_close(model.predict_on_batch(images), expected, 1e-6)
    assert states(model) == states(one_block())
    model.enable_lora(1, train="final_head")  # not the head, whose name is within it
    assert not any(trains for path, _, trains in states(model) if "lora" not in path)


@pytest.mark.slow
@by_table(
    "change, message",
    [
        (lambda m: m.enable_lora(0), "rank must be a positive int; got 0"),
        (lambda m: m.enable_lora(2, targets=("querry",)), r"has dense_0, .*value, got \('querry',\)"),
        (lambda m: m.enable_lora(2, targets=()), r"got \(\)"),
        (lambda m: (m.enable_lora(2), m.enable_lora(2)), "has LoRA factors already"),
        (lambda m: (m.quantize("float8"), m.enable_lora(2)), "computes in float8, in which Keras does not"),
        (lambda m: (m.enable_lora(2), m.quantize("float8")), "does not support LoRA in float8; call"),
        (lambda m: m.merge_lora(), "has no LoRA factors to merge"),
        (lambda m: m.quantize(config=GPTQ), "mode must be one of 'int8', 'int4', 'float8'; got 'gptq'"),
        (lambda m: (m.quantize("int8"), m.quantize("int4")), "is already quantized"),
        (lambda m: small(dtype="int8_from_float32"), "float policy; got 'int8_from_float32': quantize()"),
    ],
)
def test_invalid_arguments_and_combinations_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        change(one_block())


def test_a_model_without_trainable_weights_is_refused():
    model = compiled(one_block(name="still"))
    model.trainable = False
    with pytest.raises(ValueError, match="expected trainable weights in the model 'still'; got none"):
        model.fit(images_for(model), LABELS, verbose=0)


@pytest.mark.slow
@pytest.mark.tensorflow_only("strategies are of TensorFlow")
def test_float8_on_several_replicas_is_refused():
    with devices(2).scope():
        model = compiled(changed_model("float8"), jit_compile=False)
    with pytest.raises(ValueError, match="expected one replica.*got 2 replicas"):
        model.fit(images_for(model), LABELS, verbose=0)
