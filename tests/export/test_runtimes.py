import concurrent.futures
import hashlib
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from made.servers import Server, file, serving
from reference.comparing import assert_close
from reference.small import run_live, small

from keras_vit.data.datasets import load_dataset
from keras_vit.evaluation import evaluate, predict
from keras_vit.export.archive import make_archive
from keras_vit.export.layer import SavedModelLayer
from keras_vit.export.onnx import export_onnx
from keras_vit.export.runtimes import in_pieces, open_exported
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.tflite import export_tflite
from keras_vit.export.tflite_metadata import read_tflite_description, write_tflite

FORMATS = ("saved_model", "model.tflite", "model.onnx")
NAMES = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay"]


def exported(model, folder, task="single_label", formats=FORMATS):
    saved = export_saved_model(model, folder / "saved_model", task=task, warmup=())
    if "model.tflite" in formats:
        export_tflite(saved, folder / "model.tflite", precision="float32")
    if "model.onnx" in formats:
        export_onnx(saved, folder / "model.onnx")
    return folder


def one_format(name):
    """Of the forms of models each in one format; with FULL in all."""
    return FORMATS if "FULL" in os.environ else (name,)


@pytest.fixture(scope="module")
def plain():
    return small(num_layers=1, num_classes=10, class_names=NAMES)


@pytest.fixture(scope="module")
def folder(plain, tmp_path_factory):
    return exported(plain, tmp_path_factory.mktemp("plain"))


def pixels(count, size=(16, 16)):
    return np.random.default_rng(0).uniform(size=(count, *size, 3)).astype("float32")


@pytest.mark.parametrize("name", FORMATS)
def test_an_exported_model_is_evaluated_like_the_live_one(name, plain, folder):
    opened, samples = open_exported(folder / name), load_dataset("digits").split("test")
    for batch in (1, 5, 0):
        images = pixels(batch)
        found = opened.outputs(images)
        assert {*found} == {"logits", "probabilities"}
        assert all(values.shape == (batch, 10) and values.dtype == np.float32 for values in found.values())
        assert_close(opened.predict_on_batch(images), run_live(plain, images), 1e-5)
    ours, live = evaluate(opened, samples), evaluate(plain, samples)
    assert ours["samples"] == 355 and ours == pytest.approx(live, rel=1e-4)
    np.testing.assert_array_equal(predict(opened, samples).best[:, 0], predict(plain, samples).best[:, 0])
    assert (opened.num_classes, opened.class_names, opened.is_classifier) == (10, tuple(NAMES), True)
    assert opened.image_size == (16, 16)


@pytest.mark.parametrize("name", FORMATS)
def test_it_classifies_as_the_live_model_does(name, plain, folder):
    pictures = [np.random.default_rng(i).integers(0, 256, (20 + i, 30, 3)).astype("uint8") for i in range(3)]
    found = open_exported(folder / name).classify(pictures, top=3, batch_size=2)
    for ours, theirs in zip(found, plain.classify(pictures, top=3), strict=True):
        assert [best for best, _ in ours] == [best for best, _ in theirs]
        np.testing.assert_allclose([p for _, p in ours], [p for _, p in theirs], rtol=1e-4)


def test_the_probabilities_are_those_of_the_task(tmp_path):
    model = small(num_layers=1)
    formats = one_format("model.tflite")
    folder = exported(model, tmp_path, "multi_label", formats)
    pictures = (pixels(2) * 255).astype("uint8")
    logits = run_live(model, pictures / np.float32(255))
    for name in formats:
        opened = open_exported(folder / name)
        for row, best in zip(logits, opened.classify(pictures), strict=True):
            assert [label for label, _ in best] == [str(i) for i in np.argsort(-row)]
            np.testing.assert_allclose([p for _, p in best], np.sort(1 / (1 + np.exp(-row)))[::-1], rtol=1e-4)
    assert opened.classify(pictures) != model.classify(pictures)
    with pytest.raises(ValueError, match="there are classes in the tasks .* alone; got 'regression'"):
        model.classify(pictures, task="regression")


def test_a_regression_has_values_and_no_classes(tmp_path):
    model = small(num_layers=1, num_classes=2)
    formats = one_format("model.onnx")
    folder = exported(model, tmp_path, "regression", formats)
    for name in formats:
        opened = open_exported(folder / name)
        assert_close(opened.predict_on_batch(pixels(3)), run_live(model, pixels(3)), 1e-5)
        with pytest.raises(ValueError, match="got 'regression'"):
            opened.classify(pixels(1))


def test_a_model_without_a_head_gives_its_representation(tmp_path):
    model = small(num_layers=1, num_classes=None)
    formats = one_format("saved_model")
    folder = exported(model, tmp_path, formats=formats)
    for name in formats:
        opened = open_exported(folder / name)
        assert not opened.is_classifier
        assert_close(opened.predict_on_batch(pixels(3)), run_live(model, pixels(3)), 1e-5)
        with pytest.raises(ValueError, match="no classification head"):
            opened.classify(pixels(1))


def test_a_model_of_any_size_takes_any(tmp_path):
    model = small(num_layers=1, image_size=(None, None), pooling="gap")
    formats = one_format("model.onnx")
    folder = exported(model, tmp_path, formats=formats)
    for name in formats:
        opened = open_exported(folder / name)
        for size in ((16, 16), (24, 32)):
            assert_close(opened.predict_on_batch(pixels(2, size)), run_live(model, pixels(2, size)), 1e-5)
        with pytest.raises(ValueError, match="a grid of 15×17 .* is not divisible"):
            opened.classify(np.zeros((1, 15, 17, 3), "uint8"))


@pytest.mark.parametrize("integer_io", (None, "uint8", "int8"))
def test_whole_numbers_and_fixed_batches_are_the_files_own_affair(integer_io, plain, folder, tmp_path):
    path = export_tflite(
        folder / "saved_model",
        tmp_path / "model.tflite",
        precision="int8",
        batch_size=2,
        calibration=pixels(20),
        integer_io=integer_io,
    )
    opened, images = open_exported(path), pixels(5)
    for batch in (0, 1, 2, 5):
        found = opened.outputs(images[:batch])
        assert all(values.shape == (batch, 10) and values.dtype == np.float32 for values in found.values())
        live = run_live(plain, images[:batch])
        assert np.abs(found["logits"] - live).max(initial=0) < 0.15 * np.abs(run_live(plain, images)).max()
    np.testing.assert_allclose(found["probabilities"].sum(1), 1, atol=0.05)


def test_pieces_are_put_together_in_order_and_without_what_filled_them_up():
    seen = []

    def run(x):
        seen.append(x.tolist())
        return {"double": 2 * x}

    assert in_pieces(run, 2)(np.array([1.0, 2.0, 3.0]))["double"].tolist() == [2, 4, 6]
    assert seen == [[1, 2], [3, 0]]
    assert in_pieces(run)(np.array([1.0, 2.0, 3.0]))["double"].tolist() == [2, 4, 6]
    assert in_pieces(run)(np.zeros(0))["double"].tolist() == []
    assert seen[2:] == [[1, 2, 3], [0]]


def test_images_of_another_shape_are_refused_in_one_line(folder):
    for name in FORMATS:
        for shape in ((1, 16, 24, 3), (1, 16, 16, 1), (16, 16, 3)):
            with pytest.raises(ValueError, match=r"images of the shape \(None, 16, 16, 3\) are wanted; got"):
                open_exported(folder / name).outputs(np.zeros(shape))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("calls", (25, pytest.param(1000, marks=pytest.mark.slow)))
def test_sixteen_threads_with_mixed_batches_get_their_own_answers(name, calls, folder):
    opened = open_exported(folder / name)
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


@pytest.mark.parametrize("name", ("model.tflite", "model.onnx"))
def test_threads_can_be_chosen(name, plain, folder):
    for threads in (1, 2):
        opened = open_exported(folder / name, threads)
        assert_close(opened.predict_on_batch(pixels(2)), run_live(plain, pixels(2)), 1e-5)
    for threads in (0, -1, 1.5, "2", True):
        with pytest.raises(ValueError, match="threads must be an int above 0 or None; got"):
            open_exported(folder / name, threads)


def test_the_threads_of_a_saved_model_are_set_first_or_refused(folder):
    with pytest.raises(ValueError, match="TensorFlow has begun to compute, and its threads cannot be set"):
        open_exported(folder / "saved_model", 3)
    code = (
        "import sys, numpy as np, tensorflow as tf; from keras_vit.export.runtimes import open_exported;"
        "opened = open_exported(sys.argv[1], 1); opened.outputs(np.zeros((1, 16, 16, 3)));"
        "assert tf.config.threading.get_intra_op_parallelism_threads() == 1; open_exported(sys.argv[1], 1)"
    )
    command = [sys.executable, "-c", code, str(folder / "saved_model")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr


def test_what_is_missing_or_of_another_kind_is_refused(folder, tmp_path):
    for name in ("nothing", "nothing.onnx", "nothing.tflite"):
        with pytest.raises(ValueError, match=f"got '.*{name}', which does not exist"):
            open_exported(tmp_path / name)
    (tmp_path / "model.keras").write_text("")
    with pytest.raises(ValueError, match="a file that ends in .tflite or .onnx; got '.*model.keras'$"):
        open_exported(tmp_path / "model.keras")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="was not exported by keras_vit"):
        open_exported(tmp_path / "empty")


@pytest.mark.parametrize("share", (0, 0.5))
@pytest.mark.parametrize("name", ("model.tflite", "model.onnx"))
def test_a_damaged_file_is_said_to_be_one(name, share, folder, tmp_path):
    content = (folder / name).read_bytes()
    (tmp_path / name).write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match="damaged|was not exported") as caught:
        open_exported(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "part", ("saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001")
)
def test_a_damaged_saved_model_is_said_to_be_one(part, folder, tmp_path):
    shutil.copytree(folder / "saved_model", tmp_path / "saved")
    file = tmp_path / "saved" / part
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(ValueError, match="saved' is damaged, or cannot be opened here: ") as caught:
        open_exported(tmp_path / "saved")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ("model.tflite", "model.onnx"))
def test_data_is_opened_from_an_address_without_trust(name, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path))
    content = (folder / name).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    with serving(Server()) as server:
        server.answers[f"/{name}"] = file(content)
        with pytest.raises(ValueError, match=f"has SHA-256 {digest}; expected 0"):
            open_exported(f"{server.url}/{name}", sha256="0" * 64)
        opened = open_exported(f"{server.url}/{name}", sha256=digest)
    np.testing.assert_array_equal(
        opened.predict_on_batch(pixels(2)), open_exported(folder / name).predict_on_batch(pixels(2))
    )
    with pytest.raises(ValueError, match="is not encrypted"):
        open_exported(f"http://host/{name}")
    with pytest.raises(ValueError, match=f"has SHA-256 {digest}; expected 1"):
        open_exported(folder / name, sha256="1" * 64)


def test_a_program_is_opened_from_an_address_with_trust_only(folder, tmp_path, monkeypatch):
    """A SavedModel that writes a file when it computes."""
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    mark = tmp_path / "written by the graph"

    def writes(images):
        with tf.control_dependencies([tf.io.write_file(str(mark), "here")]):
            return {"logits": tf.zeros((tf.shape(images)[0], 10))}

    program = tf.Module()
    program.run = tf.function(writes, input_signature=[tf.TensorSpec((None, 16, 16, 3), name="images")])
    tf.saved_model.save(program, tmp_path / "evil", signatures={"serving_default": program.run})
    shutil.copytree(folder / "saved_model" / "assets", tmp_path / "evil" / "assets", dirs_exist_ok=True)
    content = make_archive(tmp_path / "evil", tmp_path / "evil.tar.gz").read_bytes()
    with serving(Server()) as server:
        address = f"{server.url}/evil.tar.gz"
        server.answers["/evil.tar.gz"] = file(content)
        for options in ({}, {"sha256": hashlib.sha256(content).hexdigest()}):
            for opened in (open_exported, SavedModelLayer):
                with pytest.raises(ValueError, match="is a SavedModel: a program, whose graph may"):
                    opened(address, **(options if opened is open_exported else {}))
        assert server.seen == [] and not mark.exists()
        open_exported(address, trust=True).outputs(pixels(1))
    assert mark.read_text() == "here"


def test_tensorflows_own_operations_do_not_run_in_a_tflite_file(folder, tmp_path):
    """By which a `.tflite` file could read and write files."""
    mark = tmp_path / "written by the graph"

    def writes(images):
        with tf.control_dependencies([tf.io.write_file(str(mark), "here")]):
            return {"logits": tf.identity(images)}

    program = tf.Module()
    program.run = tf.function(writes, input_signature=[tf.TensorSpec((1, 16, 16, 3), name="images")])
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [program.run.get_concrete_function()], program
    )
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
    description = read_tflite_description(folder / "model.tflite")
    write_tflite(tmp_path / "evil.tflite", converter.convert(), description)
    with pytest.raises(ValueError, match="is damaged, or cannot be opened here: Select TensorFlow op"):
        open_exported(tmp_path / "evil.tflite")
    assert not mark.exists()
