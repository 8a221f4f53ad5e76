import json
import shutil

import pytest
import tensorflow as tf
from made.exports import FILES, any_size_model, export_any_size, export_everything, shared_model

from keras_vit.export import saved_model as exporting
from keras_vit.export.exported_model import open_exported


@pytest.fixture(scope="session")
def model():
    """The live model of `exported`; no test changes it."""
    return shared_model()


@pytest.fixture(scope="session")
def exported(shared_folder):
    """The folder of an export in every format, which no test changes."""
    return shared_folder("export", export_everything) / "export"


@pytest.fixture(scope="session")
def report(exported):
    return json.loads((exported / "verification.json").read_text())


@pytest.fixture(scope="session")
def saved_model(exported):
    """The folder of its SavedModel."""
    return exported / "saved_model" / "1"


@pytest.fixture(scope="session")
def loaded(saved_model):
    """The same in TensorFlow; tests that assign its variables load their own."""
    return tf.saved_model.load(saved_model)


@pytest.fixture(scope="session")
def opened(exported):
    """One `ExportedModel` for each runtime."""
    return {name: open_exported(exported / FILES[name]) for name in ("saved_model", "tflite_float32", "onnx")}


@pytest.fixture(scope="session")
def any_size(shared_folder):
    """A model of any image size, and the folder of its SavedModel."""
    return any_size_model(), shared_folder("any_size", export_any_size) / "1"


@pytest.fixture
def copied(saved_model, monkeypatch):
    """Makes `export_folder` copy the SavedModel of `exported` where it would write one."""
    monkeypatch.setattr(
        exporting, "export_saved_model", lambda model, path, **options: shutil.copytree(saved_model, path)
    )
