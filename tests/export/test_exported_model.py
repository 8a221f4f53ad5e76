import concurrent.futures
import hashlib
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from made.exports import FILES, NAMES, pixels
from made.servers import Server, file, serving
from reference.comparing import assert_close
from reference.small import one_block, run_live

from keras_vit.data.datasets import load_dataset
from keras_vit.evaluation import evaluate, predict
from keras_vit.export.archive import make_archive
from keras_vit.export.exported_model import ExportedModel, open_exported
from keras_vit.export.layer import SavedModelLayer
from keras_vit.export.onnx import export_onnx
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.tflite import export_tflite
from keras_vit.export.tflite_metadata import read_tflite_description, write_tflite

SLOW = pytest.mark.slow
RUNTIMES = [FILES[name] for name in ("saved_model", "tflite_float32", "onnx")]  # one file for each


@pytest.mark.parametrize("name", RUNTIMES)
def test_an_exported_model_is_evaluated_like_the_live_one(name, model, exported):
    opened, samples = open_exported(exported / name), load_dataset("digits").split("test").take(range(64))
    for batch in (1, 5, 0):
        images = pixels(batch)
        found = opened.outputs(images)
        assert {*found} == {"logits", "probabilities"}
        assert all(values.shape == (batch, 10) and values.dtype == np.float32 for values in found.values())
        assert_close(opened.predict_on_batch(images), run_live(model, images), 1e-5)
    ours, live = evaluate(opened, samples), evaluate(model, samples)
    assert ours["samples"] == 64 and ours == pytest.approx(live, rel=1e-4)
    np.testing.assert_array_equal(predict(opened, samples).best[:, 0], predict(model, samples).best[:, 0])
    assert (opened.num_classes, opened.class_names, opened.is_classifier) == (10, NAMES, True)
    assert opened.image_size == (16, 16)


@pytest.mark.parametrize("name", RUNTIMES)
def test_it_classifies_as_the_live_model_does(name, model, exported):
    pictures = [np.random.default_rng(i).integers(0, 256, (20 + i, 30, 3)).astype("uint8") for i in range(3)]
    found = open_exported(exported / name).classify(pictures, top=3, batch_size=2)
    for ours, theirs in zip(found, model.classify(pictures, top=3), strict=True):
        assert [best for best, _ in ours] == [best for best, _ in theirs]
        np.testing.assert_allclose([p for _, p in ours], [p for _, p in theirs], rtol=1e-4)


@pytest.mark.slow
def test_the_probabilities_are_those_of_the_task(tmp_path):
    live = one_block()
    saved = export_saved_model(live, tmp_path / "saved", task="multi_label", warmup=())
    opened = open_exported(export_tflite(saved, tmp_path / "model.tflite", precision="float32"))
    pictures = (pixels(2) * 255).astype("uint8")
    for row, best in zip(run_live(live, pictures / np.float32(255)), opened.classify(pictures), strict=True):
        assert [label for label, _ in best] == [str(i) for i in np.argsort(-row)]
        np.testing.assert_allclose([p for _, p in best], np.sort(1 / (1 + np.exp(-row)))[::-1], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options, task, message",
    [
        ({"num_classes": 2}, "regression", "got 'regression'"),
        ({"num_classes": None}, "single_label", "no classification head: its output"),
    ],
)
def test_what_is_no_classifier_gives_its_output_and_no_classes(options, task, message, tmp_path):
    live = one_block(**options)
    saved = export_saved_model(live, tmp_path / "saved", task=task, warmup=())
    for path in (saved, export_onnx(saved, tmp_path / "model.onnx")):
        opened = open_exported(path)
        assert_close(opened.predict_on_batch(pixels(3)), run_live(live, pixels(3)), 1e-5)
        with pytest.raises(ValueError, match=message):
            opened.classify(pixels(1))


@pytest.mark.slow
def test_a_model_of_any_size_takes_any(tmp_path):
    live = one_block(image_size=(None, None), pooling="gap")
    saved = export_saved_model(live, tmp_path / "saved", warmup=())
    for path in (saved, export_onnx(saved, tmp_path / "model.onnx")):
        opened = open_exported(path)
        for size in ((16, 16), (24, 32)):
            assert_close(opened.predict_on_batch(pixels(2, size)), run_live(live, pixels(2, size)), 1e-5)
        with pytest.raises(ValueError, match="a grid of 15×17 .* is not divisible"):
            opened.classify(np.zeros((1, 15, 17, 3), "uint8"))


@pytest.mark.parametrize("integer_io", ("uint8", *(pytest.param(io, marks=SLOW) for io in (None, "int8"))))
def test_integers_and_fixed_batches_of_a_file_are_hidden(integer_io, model, saved_model, tmp_path):
    options = {"precision": "int8", "batch_size": 2, "calibration": pixels(20), "integer_io": integer_io}
    opened = open_exported(export_tflite(saved_model, tmp_path / "model.tflite", **options))
    images = pixels(5)
    live = run_live(model, images)
    for batch in (0, 1, 2, 5):
        found = opened.outputs(images[:batch])
        assert all(values.shape == (batch, 10) and values.dtype == np.float32 for values in found.values())
        assert np.abs(found["logits"] - live[:batch]).max(initial=0) < 0.3 * np.abs(live).max()
    np.testing.assert_allclose(found["probabilities"].sum(1), 1, atol=0.05)


@pytest.mark.parametrize(
    "size, count, calls", [(2, 3, [2, 2]), (2, 4, [2, 2]), (2, 0, [2]), (None, 3, [3]), (None, 0, [1])]
)
def test_batches_are_padded_to_the_size_that_a_file_takes(size, count, calls, exported):
    seen = []

    def compute(images):
        seen.append(len(images))
        return {"sum": images.sum((1, 2, 3))}

    description = open_exported(exported / "saved_model/1").description
    found = ExportedModel(description, compute, size).outputs(pixels(count))
    np.testing.assert_allclose(found["sum"], pixels(count).sum((1, 2, 3)), rtol=1e-5)
    assert seen == calls


@pytest.mark.parametrize("name", RUNTIMES)
def test_images_of_another_shape_are_refused_in_one_line(name, exported):
    for shape in ((1, 16, 24, 3), (1, 16, 16, 1), (16, 16, 3)):
        with pytest.raises(ValueError, match=r"expected images of shape \(None, 16, 16, 3\); got"):
            open_exported(exported / name).outputs(np.zeros(shape))


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("calls", (10, pytest.param(1000, marks=SLOW)))
def test_sixteen_threads_with_mixed_batches_get_their_own_answers(name, calls, exported):
    opened = open_exported(exported / name)
    batches = [pixels(30)[i : i + size] for i, size in enumerate((1, 2, 5, 1, 3, 8))]
    alone = [opened.outputs(images) for images in batches]

    def call_often(thread):
        for i in range(thread, thread + calls):
            found = opened.outputs(batches[i % len(batches)])
            for key, values in alone[i % len(batches)].items():
                np.testing.assert_allclose(found[key], values, rtol=1e-4, atol=1e-6)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(call_often, thread) for thread in range(16)]:
            done.result()


def test_threads_can_be_chosen(model, exported):
    for name in RUNTIMES[1:]:
        opened = open_exported(exported / name, 2)
        assert_close(opened.predict_on_batch(pixels(2)), run_live(model, pixels(2)), 1e-5)
    for threads in (0, -1, 1.5, "2", True):
        with pytest.raises(ValueError, match="threads must be an int above 0 or None; got"):
            open_exported(exported / "model.onnx", threads)


def test_the_threads_of_a_saved_model_cannot_be_set_after_computing(saved_model):
    with pytest.raises(ValueError, match="TensorFlow's threads can be set only before it computes"):
        open_exported(saved_model, 3)


@pytest.mark.slow
def test_the_threads_of_a_saved_model_are_set_in_a_new_process(saved_model):
    code = (
        "import sys, numpy as np, tensorflow as tf; from keras_vit.export import open_exported;"
        "opened = open_exported(sys.argv[1], 1); opened.outputs(np.zeros((1, 16, 16, 3)));"
        "assert tf.config.threading.get_intra_op_parallelism_threads() == 1; open_exported(sys.argv[1], 1)"
    )
    done = subprocess.run([sys.executable, "-c", code, saved_model], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_is_missing_or_of_another_kind_is_refused(tmp_path):
    for name in ("nothing", "nothing.onnx", "nothing.tflite"):
        with pytest.raises(ValueError, match=f"{name}' does not exist|no such .*file: '.*{name}'"):
            open_exported(tmp_path / name)
    (tmp_path / "model.keras").write_text("")
    with pytest.raises(ValueError, match="model.keras' is a Keras model, not a SavedModel; write one by"):
        open_exported(tmp_path / "model.keras")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty' holds no SavedModel"):
        open_exported(tmp_path / "empty")


@pytest.mark.parametrize("fraction", (0, 0.5))
@pytest.mark.parametrize("name", RUNTIMES[1:])
def test_a_damaged_file_is_said_to_be_damaged(name, fraction, exported, tmp_path):
    content = (exported / name).read_bytes()
    (tmp_path / name).write_bytes(content[: int(fraction * len(content))])
    with pytest.raises(ValueError, match="damaged|was not exported") as caught:
        open_exported(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "part", ("saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001")
)
def test_a_damaged_saved_model_is_said_to_be_damaged(part, saved_model, tmp_path):
    shutil.copytree(saved_model, tmp_path / "saved")
    damaged = tmp_path / "saved" / part
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    with pytest.raises(ValueError, match="saved' is damaged, or cannot be opened here: ") as caught:
        open_exported(tmp_path / "saved")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", RUNTIMES[1:])
def test_data_is_opened_from_a_url_without_trust(name, exported, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path))
    content = (exported / name).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    with serving(Server()) as server:
        server.answers[f"/{name}"] = file(content)
        with pytest.raises(ValueError, match=digest):
            open_exported(f"{server.url}/{name}", sha256="0" * 64)
        opened = open_exported(f"{server.url}/{name}", sha256=digest)
    np.testing.assert_array_equal(
        opened.predict_on_batch(pixels(2)), open_exported(exported / name).predict_on_batch(pixels(2))
    )
    with pytest.raises(ValueError, match="is not encrypted"):
        open_exported(f"http://host/{name}")
    with pytest.raises(ValueError, match=digest):
        open_exported(exported / name, sha256="1" * 64)


def writer(mark, shape):
    """A program that writes a file when it computes."""

    def writes(images):
        with tf.control_dependencies([tf.io.write_file(os.fspath(mark), "here")]):
            return {"logits": tf.zeros((tf.shape(images)[0], 10))}

    program = tf.Module()
    program.run = tf.function(writes, input_signature=[tf.TensorSpec(shape, name="images")])
    return program


def test_a_program_is_opened_from_a_url_with_trust_only(saved_model, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    mark = tmp_path / "written by the graph"
    program = writer(mark, (None, 16, 16, 3))
    tf.saved_model.save(program, tmp_path / "evil", signatures={"serving_default": program.run})
    shutil.copytree(saved_model / "assets", tmp_path / "evil" / "assets", dirs_exist_ok=True)
    content = make_archive(tmp_path / "evil", tmp_path / "evil.tar.gz").read_bytes()
    with serving(Server()) as server:
        url = f"{server.url}/evil.tar.gz"
        server.answers["/evil.tar.gz"] = file(content)
        refused = "is a SavedModel: a program, whose graph may"
        with pytest.raises(ValueError, match=refused):
            open_exported(url, sha256=hashlib.sha256(content).hexdigest())
        for opener in (open_exported, SavedModelLayer):
            with pytest.raises(ValueError, match=refused):
                opener(url)
        assert server.seen == [] and not mark.exists()
        open_exported(url, trust=True).outputs(pixels(1))
    assert mark.read_text() == "here"


def test_tensorflow_operations_do_not_run_in_a_tflite_file(exported, tmp_path):
    """A `.tflite` file could read and write files by them."""
    mark = tmp_path / "written by the graph"
    program = writer(mark, (1, 16, 16, 3))
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [program.run.get_concrete_function()], program
    )
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
    description = read_tflite_description(exported / "model_float32.tflite")
    write_tflite(tmp_path / "evil.tflite", converter.convert(), description)
    with pytest.raises(ValueError, match="is damaged, or cannot be opened here: Select TensorFlow op"):
        open_exported(tmp_path / "evil.tflite")
    assert not mark.exists()
