"""What every test gets: quiet TensorFlow, a fixed seed, the golden files, and the backend's skips."""

import gc
import os
import pathlib
import shutil

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if os.environ.get("KERAS_BACKEND") == "jax":  # compiling takes most of the time there
    cheap = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    os.environ.setdefault("XLA_FLAGS", cheap)

import keras
import numpy as np
import pytest
from filelock import FileLock
from hypothesis import settings
from made.limited import Limited

# `make test-full` tries ten times as many examples; JAX, which compiles anew for every shape, fewer.
EXAMPLES = 20 if keras.backend.backend() == "tensorflow" else 4
settings.register_profile("made", deadline=None, max_examples=EXAMPLES * (10 if "FULL" in os.environ else 1))
settings.load_profile("made")

if keras.backend.backend() == "tensorflow":  # before anything touches them: four devices to distribute over
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)

TESTS = pathlib.Path(__file__).parent
# The files that take longest start first, so that none is alone at the end.
LONGEST = (
    *("colab/test_notebooks.py", "cli/test_quickstart.py", "training/test_workers.py", "test_docs.py"),
    *("export/test_folder.py", "export/test_saved_model.py", "training/test_run.py", "cli/test_export.py"),
    *("contract/test_docstrings.py", "models/test_distributed_shares.py", "export/test_hub.py"),
    *("export/test_quantisation.py", "export/test_tflite.py", "export/test_layer.py"),
    *("models/test_vit.py", "models/test_masked_patch.py", "contract/test_contract.py"),  # of JAX's
)


def pytest_configure(config):
    config.addinivalue_line("markers", "tensorflow_only(reason): skipped on another Keras backend")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: not item.path.as_posix().endswith(LONGEST))


def pytest_collection_finish(session):
    gc.collect()
    gc.freeze()  # what is imported stays, so that no later collection looks through all of it again


def pytest_runtest_setup(item):
    for mark in item.iter_markers("tensorflow_only"):
        if keras.backend.backend() != "tensorflow":
            pytest.skip(f"TensorFlow only: {mark.args[0]}")


@pytest.fixture(autouse=True)
def _seed():
    keras.utils.set_random_seed(0)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def golden():
    """The folder of small official checkpoints and of what their authors' code computes from them."""
    return TESTS / "golden"


@pytest.fixture(scope="session")
def limited():
    """A process with limited memory and time, in which hostile files are read as by a user."""
    process = Limited("made.attacked")
    yield process
    process.close()


@pytest.fixture(scope="session")
def repository():
    return TESTS.parent


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    """A function that returns a folder made once for all test processes, which none of them may change.

    `shared_folder("digits_run", make)` calls `make(folder)` in the first process that asks for the name; the
    others wait, and read what it made.
    """
    base = tmp_path_factory.getbasetemp()
    # pytest-xdist gives each of its processes a folder of its own below the common one.
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def share(name, make):
        folder, done = base / f"shared_{name}", base / f"shared_{name}.done"
        with FileLock(base / f"shared_{name}.lock"):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a process whose `make` failed
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return share
