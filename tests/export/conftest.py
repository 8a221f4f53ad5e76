import functools
import importlib.util
import json
import shutil

import pytest
import tensorflow as tf
from made.exports import FILES, any_size_model, digits, export_any_size, export_everything, shared_model
from made.saved import litert, saved  # noqa: F401

from keras_vit.export import saved_model as exporting
from keras_vit.export.exported_model import open_exported
from keras_vit.export.folder import export_folder
from keras_vit.export.formats import ExportJob, precisions_of
from keras_vit.export.openvino import PACKAGES


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
def openvino_folder(shared_folder, model):
    """An export to OpenVINO in each precision."""
    if not all(map(importlib.util.find_spec, PACKAGES)):
        pytest.skip("openvino and nncf are not installed")

    def export(folder):
        precisions = precisions_of("openvino")
        export_folder(model, folder / "export", ("openvino",), precisions=precisions, dataset=digits(40))

    return shared_folder("openvino", export) / "export"


@pytest.fixture(scope="session")
def folder_of(exported, request):
    """A function from a `Format` to the export folder that holds it, always of the same model."""
    return lambda row: exported if row.name in FILES else request.getfixturevalue(f"{row.option}_folder")


@pytest.fixture(scope="session")
def path_of(folder_of):
    """A function from a `Format` to its file or folder there."""
    return lambda row: row.target(folder_of(row), ExportJob(None))


@pytest.fixture(scope="session")
def opened(path_of):
    """A function from a `Format` to the `ExportedModel` of that file."""
    open_path = functools.cache(open_exported)
    return lambda row: open_path(path_of(row))


@pytest.fixture(scope="session")
def any_size(shared_folder):
    """A model of any image size, and the folder of its SavedModel."""
    return any_size_model(), shared_folder("any_size", export_any_size) / "1"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The cache of downloads, which is empty."""
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def copied(saved_model, monkeypatch):
    """Makes `export_folder` copy the SavedModel of `exported` where it would write one."""
    monkeypatch.setattr(
        exporting, "export_saved_model", lambda model, path, **options: shutil.copytree(saved_model, path)
    )
