import hashlib
import json
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from made.exports import FILES, pixels, saved_function
from made.sampling import some
from made.servers import Server, file, serving
from made.tables import by_table
from PIL import Image
from reference.comparing import assert_same_arrays
from reference.small import one_block

from keras_vit.export.description import read_description
from keras_vit.export.exported_model import ExportedModel, open_exported
from keras_vit.export.formats import FORMATS, choose_formats
from keras_vit.export.litert.metadata import write_tflite
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.saved_model_layer import SavedModelLayer
from keras_vit.export.tar_archive import make_archive


@pytest.fixture
def onnx(opened):
    return opened(*choose_formats(("onnx",), ("float32",)))


IMPORTS = """
import importlib, sys, _keras_vit_cli
with _keras_vit_cli.without_keras():
    for name in ("tflite", "onnx", "openvino", "web", "exported_model"):
        importlib.import_module(f"keras_vit.export.{name}")
heavy = {"keras", "tensorflow"} & {*sys.modules}
assert not heavy, heavy
"""


def test_what_opens_files_of_runtimes_imports_neither_keras_nor_tensorflow():
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


PREDICT = """
import json, sys, _keras_vit_cli
photo, *files = sys.argv[1:]
for file in files:
    assert _keras_vit_cli.main(["predict", "--model", file, photo, "--format", "jsonl"]) == 0
heavy = {"keras", "keras_vit", "tensorflow"} & {*sys.modules}
assert not heavy, heavy
"""


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(40, 70, 3), (9, 12, 3)])
def test_files_with_a_runtime_predict_without_keras_and_tensorflow(shape, exported, rng, tmp_path):
    photo = tmp_path / "photo.png"
    keras.utils.save_img(photo, rng.integers(0, 256, shape), scale=False)
    formats = [format for format in FORMATS if format.name in FILES and not format.needs_keras]
    assert {format.option for format in formats} == {"tflite", "onnx", "web"}
    files = [str(exported / FILES[format.name]) for format in formats]
    done = subprocess.run([sys.executable, "-c", PREDICT, photo, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for path, line in zip(files, done.stdout.splitlines(), strict=True):
        ((*expected,),) = open_exported(path).classify(photo)
        classes = json.loads(line)["classes"]
        assert [row["name"] for row in classes] == [name for name, _ in expected]
        np.testing.assert_allclose(
            [row["probability"] for row in classes], [p for _, p in expected], rtol=1e-4
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "options, task, message",
    [
        ({"num_classes": 2}, "regression", "got 'regression'"),
        ({"num_classes": None}, "single_label", "no classification head: its output"),
    ],
)
def test_what_is_no_classifier_gives_no_classes(options, task, message, tmp_path):
    saved = export_saved_model(one_block(**options), tmp_path / "saved", task=task, warmup=())
    with pytest.raises(ValueError, match=message):
        open_exported(saved).classify(pixels(1))


@pytest.mark.parametrize("size, count, calls", [(2, 3, [2, 2]), (2, 4, [2, 2]), (2, 0, [2]), (None, 0, [1])])
def test_batches_are_padded_to_the_size_that_a_file_takes(size, count, calls, onnx):
    seen, images = [], pixels(count)

    def compute(batch):
        seen.append(len(batch))
        assert np.shares_memory(batch, images) is (count == 4)  # Images are copied to be padded only.
        return {"sum": batch.sum((1, 2, 3))}

    found = ExportedModel(onnx.description, compute, size).outputs(images)
    np.testing.assert_allclose(found["sum"], images.sum((1, 2, 3)), rtol=1e-5)
    assert seen == calls


def test_images_of_another_shape_are_refused(onnx):
    for shape in ((1, 16, 24, 3), (1, 16, 16, 1), (16, 16, 3)):
        with pytest.raises(ValueError, match=r"expected images of shape \(None, 16, 16, 3\); got"):
            onnx.outputs(np.zeros(shape))


@by_table("kind", ["path", "bytes", "picture", "pixels", "list"])
def test_outputs_of_raw_images_are_those_of_its_preprocessing(kind, onnx, tmp_path):
    photo = np.random.default_rng(0).integers(0, 256, (20, 28, 3), "uint8")
    path = tmp_path / "photo.png"
    Image.fromarray(photo).save(path)
    images = {"path": path, "bytes": path.read_bytes(), "picture": Image.fromarray(photo)}
    images |= {"pixels": photo, "list": [path, photo]}
    expected = onnx.outputs(onnx.preprocessing([photo] * (2 if kind == "list" else 1)))
    assert_same_arrays(onnx.outputs(images[kind]), expected)


def test_values_far_outside_of_the_range_are_refused(onnx):
    images = np.round(255 * pixels(2))
    damaged = pixels(2)
    damaged[1, 3, 4, 0] = np.nan
    message = r"expected float images in \[0, 1\], or uint8; got values from "
    for wrong, values in ((images, r"\d+ to 255$"), (damaged, "nan to nan$")):
        with pytest.raises(ValueError, match=message + values):
            onnx.outputs(wrong)


@pytest.mark.parametrize("threads", (0, 1.5, True))
def test_threads_are_positive(threads, exported):
    with pytest.raises(ValueError, match="threads must be a positive int or None; got"):
        open_exported(exported / "model_float32.onnx", threads)


def test_the_threads_of_a_saved_model_cannot_be_set_after_computing(saved_model):
    with pytest.raises(ValueError, match="TensorFlow's threads can be set only before it computes"):
        open_exported(saved_model, 3)


def test_what_is_missing_or_of_another_kind_is_refused(tmp_path):
    for name in ("nothing", "nothing.onnx", "nothing.tflite"):
        with pytest.raises(ValueError, match=f"{name}' does not exist|no such .*file: '.*{name}'"):
            open_exported(tmp_path / name)
    (tmp_path / "model.keras").write_text("")
    for path in (tmp_path / "model.keras", tmp_path):
        with pytest.raises(ValueError, match="holds no SavedModel; expected a folder"):
            open_exported(path)


@pytest.mark.parametrize("part", some(["saved_model.pb", "variables/variables.data-00000-of-00001"], 2))
def test_a_damaged_saved_model_is_said_to_be_damaged(part, saved_model, tmp_path):
    shutil.copytree(saved_model, tmp_path / "saved")
    damaged = tmp_path / "saved" / part
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    with pytest.raises(ValueError, match="^.*saved' is damaged, or cannot be opened .*$"):  # in one line
        open_exported(tmp_path / "saved")


@pytest.mark.parametrize("name", ["model_float32.tflite", "model_float32.onnx"])
def test_data_is_opened_from_a_url_without_trust(name, exported, cache):
    content = (exported / name).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    with serving(Server()) as server:
        server.answers[f"/{name}"] = file(content)
        with pytest.raises(ValueError, match=digest):
            open_exported(f"{server.url}/{name}", sha256="0" * 64)
        opened = open_exported(f"{server.url}/{name}", sha256=digest)
    assert opened.predict_on_batch(pixels(2)).shape == (2, 10)
    with pytest.raises(ValueError, match="is not encrypted"):
        open_exported(f"http://host/{name}")
    with pytest.raises(ValueError, match=digest):
        open_exported(exported / name, sha256="1" * 64)


@pytest.fixture
def program(saved_model, tmp_path):
    """A SavedModel that writes a file when it computes, and this file."""
    mark = tmp_path / "written by the graph"

    def writes(images):
        with tf.control_dependencies([tf.io.write_file(str(mark), "here")]):
            return tf.zeros((tf.shape(images)[0], 10))

    return saved_function(writes, tmp_path / "evil", saved_model / "assets"), mark


def test_a_program_is_opened_from_a_url_with_trust_only(program, cache, tmp_path):
    folder, mark = program
    content = make_archive(folder, tmp_path / "evil.tar.gz").read_bytes()
    with serving(Server()) as server:
        url = f"{server.url}/evil.tar.gz"
        server.answers["/evil.tar.gz"] = file(content)
        digest = {"sha256": hashlib.sha256(content).hexdigest()}
        for opener, options in ((open_exported, {}), (open_exported, digest), (SavedModelLayer, {})):
            with pytest.raises(ValueError, match="is a SavedModel: a program, whose graph may"):
                opener(url, **options)
        assert server.seen == [] and not mark.exists()
        open_exported(url, trust=True).outputs(pixels(1))
    assert mark.read_text() == "here"


def test_tensorflow_operations_do_not_run_in_a_tflite_file(program, tmp_path):
    """A `.tflite` file could read and write files by them."""
    folder, mark = program
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder), signature_keys=["serving_default"])
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
    write_tflite(tmp_path / "evil.tflite", converter.convert(), read_description(folder))
    with pytest.raises(ValueError, match="is damaged, or cannot be opened here: Select TensorFlow op"):
        open_exported(tmp_path / "evil.tflite")
    assert not mark.exists()
