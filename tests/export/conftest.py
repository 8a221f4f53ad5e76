import json

import pytest
import tensorflow as tf
from made.exports import export_everything, shared_model


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
