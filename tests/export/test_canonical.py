import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference.small import one_block
from tensorflow.core.protobuf import saved_model_pb2

from keras_vit.export.saved_model import export_saved_model

MODELS = {
    "plain": {"dropout_rate": 0.5, "class_names": ("a", "b", "c", "d", "e")},
    "free": {"image_size": (None, None), "activation": "gelu_erf", "stochastic_depth_rate": 0.3},
}
if "FULL" not in os.environ:
    MODELS = {"both": MODELS["plain"] | MODELS["free"]}
PLAIN, FREE = [*MODELS][0], [*MODELS][-1]


def export(kind, path):
    model = one_block(**MODELS[kind])
    model.get_layer("head").kernel.regularizer = keras.regularizers.L2(0.1)
    return export_saved_model(model, path)


def files(folder):
    """Its files' contents, by their paths in it."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def assert_same_files(folder, other):
    first, second = files(folder), files(other)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


@pytest.fixture(scope="module")
def of_another_process(repository, tmp_path_factory):
    """What a process that did nothing else exports, by kind."""
    folder = tmp_path_factory.mktemp("another process")
    program = "\n".join(
        ["import pathlib", "from test_canonical import MODELS, export"]
        + [f"export({kind!r}, pathlib.Path({kind!r}))" for kind in MODELS]
    )
    path = os.pathsep.join([os.fspath(repository / "tests"), os.fspath(repository / "tests" / "export")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", program], cwd=folder, env=environment, check=True)
    return folder


@pytest.mark.parametrize("kind", MODELS)
def test_every_process_writes_the_same_bytes(kind, of_another_process, tmp_path):
    # What this one did before: models, functions, random numbers, a name of its own, another default dtype.
    one_block(dropout_rate=0.1, name="another")(np.zeros((1, 16, 16, 3)), training=True)
    tf.function(lambda x: tf.map_fn(lambda y: y + 1, x))(tf.zeros(3))
    keras.utils.set_random_seed(7)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        with tf.name_scope("scope"), tf.device("cpu:0"):
            model = one_block(**MODELS[kind], dtype="float32", name="mine")
            model.get_layer("head").kernel.regularizer = keras.regularizers.L2(0.1)
            model(np.zeros((1, 16, 16, 3)), training=True)  # moves the dropouts' seeds
            folder = export_saved_model(model, tmp_path / "1")
    finally:
        keras.config.set_dtype_policy(before)
    assert_same_files(folder, of_another_process / kind)
    assert_same_files(folder, export(kind, tmp_path / "2"))


def test_other_weights_change_the_variables_alone(of_another_process, tmp_path):
    model = one_block(**MODELS[PLAIN])
    model.get_layer("head").kernel.regularizer = keras.regularizers.L2(0.1)
    model.get_layer("head").bias.assign([1, 2, 3, 4, 5])
    written, others = files(export_saved_model(model, tmp_path / "1")), files(of_another_process / PLAIN)
    changed = {name for name in written if written[name] != others[name]}
    assert changed == {"variables/variables.data-00000-of-00001", "variables/variables.index"}


def test_functions_are_numbered_from_0_and_nothing_of_the_machine_is_written(tmp_path):
    folder = export(PLAIN, tmp_path / "1")
    for name, content in files(folder).items():
        assert os.fsencode(tmp_path) not in content and b".writing" not in content, name
    saved = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    functions = saved.meta_graphs[0].graph_def.library.function
    numbers = [int(re.search(r"_(\d+)$", function.signature.name)[1]) for function in functions]
    assert numbers == [*range(len(functions))]


def test_the_renamed_functions_work_as_before(tmp_path, monkeypatch):
    """Gradients, training, loops and branches: the same with the names as TensorFlow gave them."""
    renamed = tf.saved_model.load(export(FREE, tmp_path / "1"))
    monkeypatch.setattr("keras_vit.export.saved_model.renumber_functions", lambda path: None)
    original = tf.saved_model.load(export(FREE, tmp_path / "2"))
    images = np.random.default_rng(0).uniform(size=(3, 16, 16, 3)).astype("float32")
    png = tf.io.encode_png((images[0] * 255).astype("uint8"))
    results = []
    for loaded in (original, renamed):
        values = []
        for training in (False, True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(loaded(images, training=training) ** 2)
                loss += sum(penalty() for penalty in loaded.regularization_losses)
            values += [loss, *tape.gradient(loss, loaded.trainable_variables)]
        signatures = loaded.signatures
        values += signatures["serving_uint8"](images=tf.cast(images * 255, tf.uint8)).values()
        values += signatures["serving_bytes"](image_bytes=tf.stack([png])).values()
        results.append(values)
    assert len(results[0]) == len(results[1])
    for value, expected in zip(*results):
        if value.dtype == tf.string:
            assert value.numpy().tolist() == expected.numpy().tolist()
        else:
            np.testing.assert_allclose(value, expected, atol=1e-4 * np.abs(expected).max())
