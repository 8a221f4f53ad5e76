import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from made.disks import largest_file
from made.exports import pixels
from reference.comparing import assert_close
from reference.small import one_block, run_live

from keras_vit import VisionTransformer
from keras_vit.export import saved_model as exporting
from keras_vit.export.description import read_description
from keras_vit.export.saved_model import export_saved_model


@pytest.mark.parametrize("batch", [0, 1, 7])
def test_it_computes_what_the_model_does(batch, model, loaded):
    images = pixels(batch)
    live = run_live(model, images) if batch else np.zeros((0, 10))
    outputs = loaded(images)
    assert outputs.shape == (batch, 10)
    assert_close(outputs, live, 1e-5)
    np.testing.assert_array_equal(loaded(images, training=False), outputs)
    served = loaded.signatures["serving_default"](images=tf.constant(images))
    assert {*served} == {"logits", "probabilities"}
    assert_close(served["logits"], live, 1e-5)
    assert_close(served["probabilities"], keras.ops.softmax(live.astype("float64")), 1e-5)


def test_dropout_is_active_in_training_only(loaded):
    images = pixels(4)
    outputs, trained, again = loaded(images), loaded(images, training=True), loaded(images, training=True)
    assert np.abs(trained - outputs).max() > 0.1
    assert np.abs(trained - again).max() > 0.1
    np.testing.assert_array_equal(loaded(images), outputs)


def test_its_input_is_float_images_of_the_models_size(loaded):
    (_, inputs) = loaded.signatures["serving_default"].structured_input_signature
    assert inputs == {"images": tf.TensorSpec((None, 16, 16, 3), tf.float32, name="images")}


def test_its_lists_hold_every_variable_and_penalty(model, loaded):
    assert [v.shape for v in loaded.variables] == [v.shape for v in model.variables]
    assert len(loaded.variables) > len(loaded.trainable_variables)  # the dropouts' seeds
    assert all(variable.trainable for variable in loaded.trainable_variables)
    for variable, weight in zip(loaded.trainable_variables, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(variable, weight.numpy())
    (penalty,) = loaded.regularization_losses
    assert float(penalty()) == pytest.approx(0.1 * float(np.sum(model.get_layer("head").kernel.numpy() ** 2)))


def test_gradients_reach_every_trainable_variable(model, loaded):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(loaded(pixels(), training=False) ** 2)
    gradients = tape.gradient(loss, loaded.trainable_variables)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(model.preprocessing(pixels())) ** 2)
    expected = tape.gradient(loss, [weight.value for weight in model.trainable_variables])
    for gradient, live, weight in zip(gradients, expected, model.trainable_variables):
        assert gradient is not None, weight.path
        np.testing.assert_allclose(gradient, live, atol=2e-4 * np.abs(live).max() + 1e-5, err_msg=weight.path)


def test_keras_loads_it_as_a_layer(model, saved_model):
    layer = keras.layers.TFSMLayer(saved_model, call_training_endpoint="serve_training")
    assert_close(layer(pixels()), run_live(model, pixels()), 1e-5)
    assert np.abs(layer(pixels(), training=True) - layer(pixels())).max() > 0.1
    inputs = keras.Input((16, 16, 3))
    outer = keras.Model(inputs, keras.layers.Dense(2)(layer(inputs)))
    outer.compile("sgd", "mse")
    before = [weight.numpy() for weight in layer.trainable_weights]
    assert len(before) == len(model.trainable_weights)
    outer.fit(pixels(), np.ones((3, 2)), verbose=0)
    assert any((weight.numpy() != old).any() for weight, old in zip(layer.trainable_weights, before))


@pytest.mark.slow
def test_weights_are_stored_once(tmp_path):
    model = one_block(hidden_size=192, mlp_dim=768)
    folder = export_saved_model(model, tmp_path / "1", warmup=())
    stored = sum(file.stat().st_size for file in (folder / "variables").iterdir())
    assert 4 * model.count_params() <= stored <= 4 * model.count_params() * 1.01 + 64 * 1024


@pytest.mark.parametrize(
    "options, arguments",
    [
        (
            {"distillation": True, "class_names": ("red", "green", "blue", "grey", "pink")},
            {"representation": True},
        ),
        pytest.param({"num_classes": None, "representation_size": 6}, {}, marks=pytest.mark.slow),
    ],
)
def test_a_model_without_a_head_gives_its_representation(options, arguments, tmp_path):
    model = one_block(**options)
    folder = export_saved_model(model, tmp_path / "1", **arguments)
    loaded = tf.saved_model.load(folder)
    expected = model.feature_extractor("representation")(model.preprocessing(pixels()))["representation"]
    assert_close(loaded(pixels()), expected, 1e-5)
    outputs = loaded.signatures["serving_default"](images=tf.constant(pixels()))
    assert {*outputs} == {"representation"}
    assert_close(outputs["representation"], expected, 1e-5)
    assert not any(variable.shape[-1:] == (5,) for variable in loaded.variables)
    assert not hasattr(loaded, "labels")
    assert read_description(folder).output == "representation"


COLORS = ("red", "green", "blau", "größer", "pink")


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """A model in float16 with frozen parts, its values before its export, and the moved export."""
    model = one_block(dtype="float16", dropout_rate=0.5, class_names=COLORS)
    model.get_layer("encoder_block_0").mlp.trainable = False
    model.get_layer("patch_embedding").trainable = False
    before = {variable.path: variable.numpy() for variable in model.variables}
    folder = tmp_path_factory.mktemp("half")
    return model, before, export_saved_model(model, folder / "1", task="multi_label").rename(folder / "moved")


def test_a_model_of_any_dtype_is_exported_in_float32(half):
    model, _, folder = half
    loaded = tf.saved_model.load(folder)
    exact = VisionTransformer.from_config({**model.get_config(), "dtype": "float32"})
    for weight, source in zip(exact.weights, model.weights):
        weight.assign(source.value)
    assert {variable.dtype for variable in loaded.trainable_variables} == {tf.float32}
    assert_close(loaded(pixels()), run_live(exact, pixels()), 1e-5)


def test_exporting_does_not_change_the_model(half):
    model, before, _ = half
    assert model.dtype_policy.name == "float16"
    assert [variable.path for variable in model.variables] == [*before]
    for variable in model.variables:
        np.testing.assert_array_equal(variable, before[variable.path])


def test_frozen_layers_stay_frozen(half):
    model, _, folder = half
    loaded = tf.saved_model.load(folder)
    seeds = [variable for variable in model.variables if "int" in variable.dtype]
    frozen = len(model.weights) - len(model.trainable_weights)
    assert frozen == 6 and seeds
    assert len(loaded.variables) - len(loaded.trainable_variables) == frozen + len(seeds)
    for variable, weight in zip(loaded.trainable_variables, model.trainable_weights, strict=True):
        np.testing.assert_array_equal(variable, weight.numpy())


def test_labels_and_description_are_assets(half):
    _, _, folder = half
    loaded = tf.saved_model.load(folder)
    path = pathlib.Path(loaded.labels.asset_path.numpy().decode())
    assert path == folder / "assets" / "labels.txt"
    assert tuple(path.read_text(encoding="utf-8").splitlines()) == COLORS
    description = read_description(folder)
    assert (description.task, description.class_names) == ("multi_label", COLORS)
    assert loaded.description.asset_path.numpy().decode() == os.fspath(folder / "assets" / "keras_vit.json")


@pytest.mark.slow
def test_what_is_loaded_can_be_tuned_and_saved_again(saved_model, tmp_path):
    loaded = tf.saved_model.load(saved_model)
    loaded.trainable_variables[0].assign_add(tf.ones_like(loaded.trainable_variables[0]))
    tf.saved_model.save(loaded, tmp_path / "again", signatures=loaded.signatures)
    again = tf.saved_model.load(tmp_path / "again")
    np.testing.assert_array_equal(again(pixels()), loaded(pixels()))
    assert np.abs(again(pixels(), training=True) - again(pixels())).max() > 0.1
    assert read_description(tmp_path / "again") == read_description(saved_model)
    assert {*again.signatures} == {*loaded.signatures}


@pytest.mark.slow
def test_a_model_trained_on_jax_and_saved_is_exported(repository, tmp_path):
    program = """
import numpy as np
from reference.small import one_block
model = one_block(dropout_rate=0.5)
model.compile("sgd", "mse")
model.fit(np.ones((2, 16, 16, 3)), np.ones((2, 5)), verbose=0)
model.save("model.keras")
np.save("logits.npy", model.predict_on_batch(np.full((2, 16, 16, 3), 0.5)))
"""
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    environment["PYTHONPATH"] = os.fspath(repository / "tests")
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True)
    model = keras.saving.load_model(tmp_path / "model.keras")
    loaded = tf.saved_model.load(export_saved_model(model, tmp_path / "1"))
    images = np.full((2, 16, 16, 3), 0.75, "float32")  # 0.5 after the model's normalisation
    assert_close(loaded(images), np.load(tmp_path / "logits.npy"), 1e-5)


SAVED_MODEL_CLI = """
import json, sys
from tensorflow.python.tools.saved_model_cli import main
for command in json.loads(sys.argv[1]):
    sys.argv = ["saved_model_cli", *command]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
"""


@pytest.mark.slow
def test_tensorflows_command_line_tool_shows_and_runs_it(model, saved_model, tmp_path):
    image = np.random.default_rng(0).integers(0, 255, (20, 30, 3)).astype("uint8")
    files = {"png": tf.io.encode_png(image).numpy(), "jpeg": tf.io.encode_jpeg(image[:9]).numpy()}
    np.save(tmp_path / "files.npy", np.array([*files.values()], object))
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    chosen = ("--tag_set", "serve", "--signature_def", "serving_bytes", "--outdir", tmp_path)
    commands = [
        ("show", "--dir", saved_model, "--all"),
        ("run", "--dir", saved_model, *chosen, "--inputs", f"image_bytes={tmp_path / 'files.npy'}"),
    ]
    arguments = json.dumps([[str(part) for part in command] for command in commands])
    command = [sys.executable, "-c", SAVED_MODEL_CLI, arguments]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for name in ("serving_default", "image_feature_vector", "serving_bytes", "serving_uint8"):
        assert f"signature_def['{name}']" in shown
    assert "Function Name: '__call__'" in shown
    classes, scores = (np.load(tmp_path / f"{name}.npy", allow_pickle=True) for name in ("classes", "scores"))
    for row, best in enumerate(model.classify([tmp_path / name for name in files])):
        assert [name.decode() for name in classes[row]] == [name for name, _ in best]
        np.testing.assert_allclose(scores[row], [score for _, score in best], atol=1e-5)


def test_weights_that_are_not_finite_are_named(tmp_path):
    model = one_block()
    model.get_layer("encoder_norm").gamma.assign(np.full(12, np.inf))
    model.get_layer("head").bias.assign([0, 1, np.nan, 2, 3])
    with pytest.raises(ValueError, match="not finite.*: encoder_norm/gamma, head/bias$"):
        export_saved_model(model, tmp_path / "1")
    assert [*tmp_path.iterdir()] == []


def test_wrong_arguments_models_and_backends_are_refused(model, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"warmup must be a tuple of batch sizes.*got \(0,\)"):
        export_saved_model(model, tmp_path / "1", warmup=(0,))
    with pytest.raises(ValueError, match="task must be one of .*; got 'words'"):
        export_saved_model(model, tmp_path / "1", task="words")
    with pytest.raises(ValueError, match="expected a VisionTransformer to export; got Sequential"):
        export_saved_model(keras.Sequential([keras.layers.Dense(2)]), tmp_path / "1")
    monkeypatch.setattr(exporting.keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="^SavedModels are written on the TensorFlow backend, not on jax"):
        export_saved_model(model, tmp_path / "1")
    assert [*tmp_path.iterdir()] == []


def test_an_existing_path_is_refused_and_the_next_version_suggested(saved_model, model, tmp_path):
    with pytest.raises(ValueError, match="1' exists; '.*2' is free"):
        export_saved_model(model, saved_model)
    (tmp_path / "1").write_text("mine")
    with pytest.raises(ValueError, match="'.*/1' exists; .* is free"):
        export_saved_model(model, tmp_path / "1")
    assert [*tmp_path.iterdir()] == [tmp_path / "1"] and (tmp_path / "1").read_text() == "mine"


@pytest.mark.parametrize(
    "limit, file",
    [(10_000, r"variables/\S+"), pytest.param(25_000, r"saved_model.pb\S*", marks=pytest.mark.slow)],
)
def test_a_write_that_fails_ends_in_one_line(limit, file, model, tmp_path):
    with pytest.raises(OSError) as error, largest_file(limit):
        export_saved_model(model, tmp_path / "1")
    assert re.fullmatch(rf"'.*/1' cannot be written: \S+/{file}; File too large.*", str(error.value))
    assert [*tmp_path.iterdir()] == []


EXPORT = """
from reference.small import one_block
from keras_vit.export import export_saved_model
model = one_block()
print("ready", flush=True)
export_saved_model(model, "served/1")
print("done", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0, 0.02, 0.1])
def test_an_export_that_is_killed_leaves_nothing_under_its_name(delay, repository, tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.fspath(repository / "tests")}
    process = subprocess.Popen(
        [sys.executable, "-c", EXPORT], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    while not (written := [*tmp_path.glob("served/.writing-*/1/**/*")]) and process.poll() is None:
        time.sleep(0.005)
    time.sleep(delay)
    process.kill()
    printed, _ = process.communicate()
    assert written and ("done" in printed or not (tmp_path / "served" / "1").exists())
    shutil.rmtree(tmp_path / "served")
