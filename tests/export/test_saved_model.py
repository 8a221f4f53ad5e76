import json
import os
import pathlib
import random
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
from reference.comparing import assert_close
from reference.small import one_block, penalised

from keras_vit import VisionTransformer
from keras_vit.export import saved_model
from keras_vit.export.description import read_description
from keras_vit.export.saved_model import export_saved_model

FULL = "FULL" in os.environ


@pytest.fixture(scope="module")
def model():
    """A model with dropout, with a preprocessing of its own and with a weight penalty."""
    return penalised(
        dropout_rate=0.5, preprocessing={"image_size": 16, "mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.1)}
    )


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    return export_saved_model(model, tmp_path_factory.mktemp("export") / "saved_model" / "1")


@pytest.fixture(scope="module")
def loaded(folder):
    return tf.saved_model.load(folder)


def pixels(count=3, size=(16, 16)):
    return np.random.default_rng(0).uniform(size=(count, *size, 3)).astype("float32")


def live(model, images):
    """What the model computes, by its own preprocessing of float images."""
    return model(model.preprocessing(images)).numpy() if len(images) else np.zeros((0, model.num_classes))


@pytest.mark.parametrize("batch", [0, 1, 7])
def test_the_loaded_object_computes_what_the_model_does(batch, model, loaded):
    outputs = loaded(pixels(batch))
    assert outputs.shape == (batch, 5)
    assert_close(outputs, live(model, pixels(batch)), 1e-5)
    np.testing.assert_array_equal(loaded(pixels(batch), training=False), outputs)


def test_dropout_is_active_in_training_only(loaded):
    images = pixels(4)
    outputs, trained, again = loaded(images), loaded(images, training=True), loaded(images, training=True)
    assert np.abs(trained - outputs).max() > 0.1
    assert np.abs(trained - again).max() > 0.1
    np.testing.assert_array_equal(loaded(images), outputs)


@pytest.mark.parametrize("batch", [0, 1, 7])
def test_serving_gives_logits_and_probabilities(batch, model, loaded):
    outputs = loaded.signatures["serving_default"](images=tf.constant(pixels(batch)))
    assert {*outputs} == {"logits", "probabilities"}
    logits = live(model, pixels(batch)).astype("float64")
    assert_close(outputs["logits"], logits, 1e-5)
    scores = np.exp(logits - logits.max(1, keepdims=True, initial=-1e9))
    assert_close(outputs["probabilities"], scores / scores.sum(1, keepdims=True), 1e-5)


def test_images_go_in_as_floats_of_the_models_size(loaded):
    (_, inputs) = loaded.signatures["serving_default"].structured_input_signature
    assert inputs == {"images": tf.TensorSpec((None, 16, 16, 3), tf.float32, name="images")}


def test_its_lists_hold_every_variable(model, loaded):
    def sizes(variables):
        return [tuple(variable.shape) for variable in variables]

    assert sizes(loaded.variables) == sizes(model.variables)
    assert sizes(loaded.trainable_variables) == sizes(model.trainable_variables)
    assert len(loaded.variables) > len(loaded.trainable_variables)  # the dropouts' seeds
    assert all(variable.trainable for variable in loaded.trainable_variables)
    for variable, weight in zip(loaded.trainable_variables, model.trainable_variables):
        np.testing.assert_array_equal(variable, weight.numpy())


def test_its_penalties_are_the_models(model, loaded):
    (penalty,) = loaded.regularization_losses
    assert float(penalty()) == pytest.approx(0.1 * float(np.sum(model.get_layer("head").kernel.numpy() ** 2)))


def test_gradients_reach_every_trainable_variable(model, loaded):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(loaded(pixels(), training=False) ** 2)
    gradients = tape.gradient(loss, loaded.trainable_variables)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(model.preprocessing(pixels())) ** 2)
    expected = tape.gradient(loss, [weight.value for weight in model.trainable_variables])
    for gradient, wanted, weight in zip(gradients, expected, model.trainable_variables):
        assert gradient is not None, weight.path
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(gradient, wanted, atol=2e-4 * scale + 1e-5, err_msg=weight.path)


def test_the_loaded_object_can_be_trained(folder):
    loaded = tf.saved_model.load(folder)
    labels = tf.constant([0, 1, 2])
    losses = []
    for _ in range(20):
        with tf.GradientTape() as tape:
            logits = loaded(pixels(), training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        for variable, gradient in zip(
            loaded.trainable_variables, tape.gradient(loss, loaded.trainable_variables)
        ):
            variable.assign_sub(0.05 * tf.clip_by_norm(gradient, 1.0))
        losses.append(float(loss))
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


def test_keras_takes_it_as_a_layer(model, folder):
    layer = keras.layers.TFSMLayer(folder, call_training_endpoint="serve_training")
    assert_close(layer(pixels()), live(model, pixels()), 1e-5)
    assert np.abs(layer(pixels(), training=True) - layer(pixels())).max() > 0.1
    assert len(layer.trainable_weights) == len(model.trainable_weights)

    inputs = keras.Input((16, 16, 3))
    outer = keras.Model(inputs, keras.layers.Dense(2)(layer(inputs)))
    outer.compile("sgd", "mse")
    before = [weight.numpy() for weight in layer.trainable_weights]
    outer.fit(pixels(), np.ones((3, 2)), verbose=0)
    assert any((weight.numpy() != old).any() for weight, old in zip(layer.trainable_weights, before))


def test_keras_finds_the_serving_signature_too(model, folder):
    outputs = keras.layers.TFSMLayer(folder, call_endpoint="serving_default")(pixels())
    assert_close(outputs["logits"], live(model, pixels()), 1e-5)


@pytest.mark.parametrize("size", [*[12] * FULL, 192])
def test_weights_are_stored_once(size, tmp_path):
    model = one_block(hidden_size=size, mlp_dim=4 * size)
    folder = export_saved_model(model, tmp_path / "1")
    stored = sum(file.stat().st_size for file in (folder / "variables").iterdir())
    assert 4 * model.count_params() <= stored <= 4 * model.count_params() * 1.01 + 64 * 1024


@pytest.mark.parametrize("head", ["none", *["left out"] * FULL, "left out, of two tokens"])
def test_a_model_without_a_head_gives_its_representation(head, tmp_path):
    if head == "none":
        model = one_block(num_classes=None, representation_size=6)
        folder = export_saved_model(model, tmp_path / "1")
    else:
        names = ("red", "green", "blue", "grey", "pink")
        model = one_block(distillation="two" in head, class_names=names)
        model.get_layer("head").trainable = False
        folder = export_saved_model(model, tmp_path / "1", representation=True)
    loaded = tf.saved_model.load(folder)
    expected = model.feature_extractor("representation")(model.preprocessing(pixels()))["representation"]
    assert_close(loaded(pixels()), expected, 1e-5)
    outputs = loaded.signatures["serving_default"](images=tf.constant(pixels()))
    assert {*outputs} == {"representation"}
    assert_close(outputs["representation"], expected, 1e-5)
    assert not any(variable.shape[-1:] == (5,) for variable in loaded.variables)
    assert not hasattr(loaded, "labels")
    assert read_description(folder).output == "representation"


def test_a_model_of_any_size_stays_one(tmp_path):
    model = one_block(image_size=(None, None), position_grid=(4, 4))
    loaded = tf.saved_model.load(export_saved_model(model, tmp_path / "1"))
    for size in ((32, 32), (24, 48)):
        images = pixels(2, size)
        assert_close(loaded(images), live(model, images), 1e-5)


@pytest.mark.parametrize("dtype", ["float16", *["mixed_float16", "mixed_bfloat16"] * FULL])
def test_a_model_of_any_dtype_is_exported_in_float32(dtype, tmp_path):
    model = one_block(dtype=dtype)
    loaded = tf.saved_model.load(export_saved_model(model, tmp_path / "1"))
    assert {variable.dtype for variable in loaded.trainable_variables} == {tf.float32}
    exact = VisionTransformer.from_config({**model.get_config(), "dtype": "float32"})
    for variable, weight, source in zip(loaded.trainable_variables, exact.weights, model.weights):
        weight.assign(source.value)
        np.testing.assert_array_equal(variable, source.numpy().astype("float32"))
    assert_close(loaded(pixels()), live(exact, pixels()), 1e-5)
    assert model.dtype_policy.name == dtype


def test_the_model_and_the_process_are_left_as_they_were(tmp_path):
    model = one_block(dropout_rate=0.5)
    before = [variable.numpy() for variable in model.variables]
    names, draws = [variable.path for variable in model.variables], random.getstate()
    export_saved_model(model, tmp_path / "1")
    for variable, name, value in zip(model.variables, names, before):
        assert variable.path == name
        np.testing.assert_array_equal(variable, value)
    assert random.getstate() == draws


def test_frozen_layers_stay_frozen(tmp_path):
    model = one_block(dropout_rate=0.5)
    model.get_layer("encoder_block_0").mlp.trainable = False  # a part of a layer
    model.get_layer("patch_embedding").trainable = False
    loaded = tf.saved_model.load(export_saved_model(model, tmp_path / "1"))
    frozen = len(model.weights) - len(model.trainable_weights)
    assert frozen == 6 and seeds(model)
    assert len(loaded.variables) - len(loaded.trainable_variables) == frozen + len(seeds(model))
    for variable, weight in zip(loaded.trainable_variables, model.trainable_weights):
        np.testing.assert_array_equal(variable, weight.numpy())
    model.trainable = False
    assert not tf.saved_model.load(export_saved_model(model, tmp_path / "2")).trainable_variables


def seeds(model):
    return [variable for variable in model.variables if "int" in variable.dtype]


def test_a_model_trained_on_jax_and_saved_is_exported(repository, tmp_path):
    program = """
import numpy as np
from reference.small import one_block, penalised
model = one_block(dropout_rate=0.5, num_layers=1)
model.compile("sgd", "mse")
model.fit(np.ones((2, 16, 16, 3)), np.ones((2, 5)), verbose=0)
model.save("model.keras")
np.save("logits.npy", model.predict_on_batch(np.full((2, 16, 16, 3), 0.5)))
"""
    cheap = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": cheap}
    environment["PYTHONPATH"] = os.fspath(repository / "tests")
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True)
    model = keras.saving.load_model(tmp_path / "model.keras")
    loaded = tf.saved_model.load(export_saved_model(model, tmp_path / "1"))
    images = np.full((2, 16, 16, 3), 0.75, "float32")  # 0.5 as the model reads it
    assert_close(loaded(images), np.load(tmp_path / "logits.npy"), 1e-5)


def test_what_is_loaded_can_be_tuned_and_saved_again(folder, tmp_path):
    loaded = tf.saved_model.load(folder)
    loaded.trainable_variables[0].assign_add(tf.ones_like(loaded.trainable_variables[0]))
    tf.saved_model.save(loaded, tmp_path / "again", signatures=loaded.signatures)
    again = tf.saved_model.load(tmp_path / "again")
    np.testing.assert_array_equal(again(pixels()), loaded(pixels()))
    assert np.abs(again(pixels(), training=True) - again(pixels())).max() > 0.1
    assert read_description(tmp_path / "again") == read_description(folder)
    assert {*again.signatures} == {*loaded.signatures}


def test_labels_and_description_are_assets(tmp_path):
    names = ("red", "green", "blau", "größer", "pink")
    folder = export_saved_model(one_block(class_names=names), tmp_path / "1", task="multi_label")
    folder = folder.rename(tmp_path / "moved")
    loaded = tf.saved_model.load(folder)
    path = pathlib.Path(loaded.labels.asset_path.numpy().decode())
    assert path == folder / "assets" / "labels.txt"
    assert tuple(path.read_text(encoding="utf-8").splitlines()) == names
    description = read_description(folder)
    assert (description.task, description.class_names) == ("multi_label", names)
    assert loaded.description.asset_path.numpy().decode() == os.fspath(folder / "assets" / "keras_vit.json")


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


def saved_model_cli(*commands):
    """What TensorFlow's tool prints, run in one process for several commands."""
    arguments = json.dumps([[str(part) for part in command] for command in commands])
    command = [sys.executable, "-c", SAVED_MODEL_CLI, arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_command_line_tool_shows_and_runs_it(model, folder, tmp_path):
    assert not (folder / "fingerprint.pb").exists()  # it holds a random number
    image = np.random.default_rng(0).integers(0, 255, (20, 30, 3)).astype("uint8")
    files = {"png": tf.io.encode_png(image).numpy(), "jpeg": tf.io.encode_jpeg(image[:9]).numpy()}
    np.save(tmp_path / "files.npy", np.array([*files.values()], object))
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    chosen = ("--tag_set", "serve", "--signature_def", "serving_bytes", "--outdir", tmp_path)
    shown = saved_model_cli(
        ("show", "--dir", folder, "--all"),
        ("run", "--dir", folder, *chosen, "--inputs", f"image_bytes={tmp_path / 'files.npy'}"),
    )
    for name in ("serving_default", "image_feature_vector", "serving_bytes", "serving_uint8"):
        assert f"signature_def['{name}']" in shown
    assert "Function Name: '__call__'" in shown
    expected = model.classify([tmp_path / name for name in files])
    classes = np.load(tmp_path / "classes.npy", allow_pickle=True)
    scores = np.load(tmp_path / "scores.npy")
    for row, best in enumerate(expected):
        assert [name.decode() for name in classes[row]] == [name for name, _ in best]
        np.testing.assert_allclose(scores[row], [score for _, score in best], atol=1e-5)


def test_weights_that_are_not_finite_are_named(tmp_path):
    model = one_block()
    model.get_layer("encoder_norm").gamma.assign(np.full(12, np.inf))
    model.get_layer("head").bias.assign([0, 1, np.nan, 2, 3])
    with pytest.raises(ValueError, match="not finite.*: encoder_norm/gamma, head/bias$"):
        export_saved_model(model, tmp_path / "1")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    "options, message",
    [
        ({"warmup": (0,)}, r"warmup must hold batch sizes.*got \(0,\)"),
        ({"task": "words"}, "task 'words' is unknown"),
    ],
)
def test_wrong_arguments_are_refused(options, message, model, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_saved_model(model, tmp_path / "1", **options)
    assert [*tmp_path.iterdir()] == []


def test_other_models_are_refused(tmp_path):
    with pytest.raises(ValueError, match="only a VisionTransformer can be exported; got Sequential"):
        export_saved_model(keras.Sequential([keras.layers.Dense(2)]), tmp_path / "1")
    assert [*tmp_path.iterdir()] == []


def test_another_backend_is_refused(model, tmp_path, monkeypatch):
    monkeypatch.setattr(saved_model.keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="^SavedModels are written on the TensorFlow backend, not on jax"):
        export_saved_model(model, tmp_path / "1")


def test_the_next_version_is_offered(folder, model):
    with pytest.raises(ValueError, match="1' exists; '.*2' is free"):
        export_saved_model(model, folder)


EXPORT = """
from reference.small import one_block
from keras_vit.export.saved_model import export_saved_model
model = one_block()
print("ready", flush=True)
export_saved_model(model, "served/1")
print("done", flush=True)
"""


def exporting(repository, folder):
    """A process that says when it is ready, and then exports."""
    command = [sys.executable, "-c", EXPORT]
    environment = {**os.environ, "PYTHONPATH": os.fspath(repository / "tests")}
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def test_an_export_that_is_killed_leaves_nothing_under_its_name(repository, tmp_path):
    times = 10 if FULL else 2
    seen = 0
    for step in range(times):
        process = exporting(repository, tmp_path)
        while not (written := [*tmp_path.glob("served/.writing-*/1/**/*")]) and process.poll() is None:
            time.sleep(0.005)
        time.sleep(0.02 * step)
        process.kill()
        printed, _ = process.communicate()
        seen += bool(written)
        assert "done" in printed or not (tmp_path / "served" / "1").exists()
        for left in tmp_path.glob("served/*"):
            shutil.rmtree(left)
    assert seen  # it was killed while it wrote


@pytest.mark.parametrize("limit, file", [(10_000, r"variables/\S+"), (25_000, r"saved_model.pb\S*")])
def test_a_write_that_fails_ends_in_one_line(limit, file, model, tmp_path):
    with pytest.raises(OSError) as error, largest_file(limit):
        export_saved_model(model, tmp_path / "1")
    assert re.fullmatch(rf"'.*/1' cannot be written: \S+/{file}; File too large.*", str(error.value))
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_exists_is_not_overwritten(kind, model, tmp_path):
    path = tmp_path / "1"
    path.mkdir() if kind == "folder" else path.write_text("mine")
    with pytest.raises(ValueError, match="'.*/1' exists; .* is free"):
        export_saved_model(model, path)
    assert [*tmp_path.iterdir()] == [path]
    assert kind == "folder" or path.read_text() == "mine"


def test_nothing_is_left_when_writing_fails(model, tmp_path, monkeypatch):
    save = tf.saved_model.save

    def fail(*args, **options):
        save(*args, **options)
        raise OSError("the disk is full")

    monkeypatch.setattr(saved_model.tf.saved_model, "save", fail)
    with pytest.raises(OSError, match="the disk is full"):
        export_saved_model(model, tmp_path / "1")
    assert [*tmp_path.iterdir()] == []
