"""Set-up for all tests: quiet TensorFlow, a fixed seed, golden files, and skips by Keras backend."""

import collections
import gc
import os
import pathlib
import shutil
import time
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")  # Each core runs a process of tests.
if os.environ.get("KERAS_BACKEND") == "jax":  # Compiling takes most of the time there.
    cheap = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    os.environ.setdefault("XLA_FLAGS", cheap)

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import settings
from made import trained
from made.limited import Limited
from made.undrawn import undrawn_figures

# Keras is imported below, in functions: pytest-xdist's first process imports this file but runs no test.
BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")
# JAX compiles each shape, so it tries fewer. `make test-full` passes --hypothesis-profile=full.
EXAMPLES = 10 if BACKEND == "tensorflow" else 4
settings.register_profile("fast", deadline=None, max_examples=EXAMPLES)
settings.register_profile("full", deadline=None, max_examples=20 * EXAMPLES)
settings.load_profile("fast")

TESTS = pathlib.Path(__file__).parent
# These files share a process, because each that runs one of them starts another for the fixture `limited`.
WITH_LIMITED = ("data/test_hostile_images", "weights/test_hostile_archives", "weights/test_hostile_configs")
# These files take longest and start first, so that no process is left alone with one at the end.
LONGEST = (
    "test_docs.py",
    "cli/test_quickstart.py",
    "contract/test_verbs.py",
    "contract/test_contract.py",
    "contract/test_docstrings.py",
    "training/test_run.py",
    "export/test_folder.py",
    "embeddings/test_computing.py",
    "tasks/distillation/test_task.py",
    "tasks/pretraining/test_image_gpt_task.py",
    "training/test_jax_run.py",
    "training/test_sharded_runs.py",
    "training/test_workers.py",
    "data/test_hostile_images.py",
    "data/test_chunked_records.py",
    "engine/test_distributed_model.py",
    "models/vit/test_vision_transformer.py",
    "cli/test_predict.py",
    "cli/test_finetune.py",
    "weights/test_load.py",
)


def pytest_addoption(parser):
    parser.addoption("--part", default="1/1", help="2/4: the second of four parts of the files")
    budget = "CPU seconds of the fast tests of a file, above which it fails"
    parser.addoption("--budget", type=float, default=float("inf"), help=budget)


def pytest_configure(config):
    config.addinivalue_line("markers", "tensorflow_only(reason): skipped on another Keras backend")
    runs_tests = not config.getoption("numprocesses", None)
    if runs_tests and BACKEND == "tensorflow":
        import tensorflow as tf
        from tensorflow.python.eager.polymorphic_function import polymorphic_function

        # A process of tests traces the same functions for many models, of which TensorFlow would warn.
        polymorphic_function.FREQUENT_TRACING_WARNING_MAX_WARNING_PER_DETECTOR = 0
        # Four devices to distribute over; later they cannot be changed.
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
        if config.option.markexpr == "not slow":
            # Graphs run as they are: optimizing them takes longer than a few batches of small images. With
            # the slow tests, the same tests run optimized graphs.
            tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def pytest_ignore_collect(collection_path, config):
    """Skip the comparisons with peers, which are all slow and import torch."""
    return True if collection_path.name == "peers" and config.option.markexpr == "not slow" else None


def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "limited" if any(name in file for name in WITH_LIMITED) else file

    return Scheduling(config, log) if config.option.dist == "loadfile" else None


def pytest_collection_modifyitems(config, items):
    order = {TESTS / name: position for position, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))
    part, parts = map(int, config.getoption("part").split("/"))
    chosen = {*[*dict.fromkeys(item.path for item in items)][part - 1 :: parts]}
    others = [item for item in items if item.path not in chosen]
    items[:] = [item for item in items if item.path in chosen]
    if others:
        config.hook.pytest_deselected(items=others)


def pytest_collection_finish(session):
    gc.collect()
    gc.freeze()  # Later collections need not scan the imported modules again.
    gc.set_threshold(50_000, 10, 10)  # A graph is many objects, of which most live until it is dropped.


def pytest_runtest_setup(item):
    for mark in item.iter_markers("tensorflow_only"):
        if BACKEND != "tensorflow":
            pytest.skip(f"TensorFlow only: {mark.args[0]}")


@pytest.fixture(scope="module")
def undrawn():
    with undrawn_figures():
        yield


@pytest.fixture(autouse=True, scope="session")
def _without_fsync():
    """Files need not outlive a loss of power; tests/test_writing.py checks that users' files do."""
    with mock.patch("os.fsync"):
        yield


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as changes:
        changes.setenv("KERAS_VIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _seed():
    import keras

    # TensorFlow's own seed is set once: `tf.random.set_seed` drops its cache of compiled functions.
    with mock.patch("tensorflow.random.set_seed"):
        keras.utils.set_random_seed(0)


def _run_eagerly():
    """Keras runs steps eagerly, without tracing. Trainings in graphs are tested elsewhere, also by README."""
    import keras

    with pytest.MonkeyPatch.context() as changes:
        changes.setattr(keras.Model, "run_eagerly", property(lambda self: True, lambda self, value: None))
        yield


eager = pytest.fixture(_run_eagerly, scope="module", name="eager")  # from the first test that asks for it
eager_once = pytest.fixture(_run_eagerly, name="eager_once")


_SPENT = collections.Counter()  # CPU seconds of fast tests, with the fixtures that they made, by file


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    start = time.process_time()
    result = yield
    if not item.get_closest_marker("slow") and item.path.parent.name != "peers":  # which are all slow
        _SPENT[item.path] += time.process_time() - start
    return result


@pytest.fixture(autouse=True, scope="module")
def _within_budget(request):
    """Fail a file whose fast tests have become expensive, so that `make test` stays short."""
    yield
    spent, budget = _SPENT[request.path], request.config.getoption("budget")
    assert spent <= budget, (
        f"the fast tests of this file take {spent:.0f} s of CPU; expected at most {budget:g}"
    )


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def golden():
    """The folder of small official checkpoints and their authors' outputs."""
    return TESTS / "golden"


@pytest.fixture(scope="session")
def trained_folder():
    """The folder of transformers' files of a trained DINOv2 ViT-S/14."""
    try:
        return trained.weights_folder()
    except trained.NotInstalled as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def limited():
    """A process with limited memory and time that reads hostile files as a user would."""
    process = Limited("made.attacked")
    yield process
    process.close()


@pytest.fixture(scope="session")
def repository():
    return TESTS.parent


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    """A function that returns a folder shared by all test processes, none of which may change it.

    `shared_folder("digits_run", make)` calls `make(folder)` in the first process that asks for the name;
    the others wait for it.
    """
    base = tmp_path_factory.getbasetemp()
    # pytest-xdist gives each process its own folder below the common one.
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def shared(name, make):
        folder, done = base / f"shared_{name}", base / f"shared_{name}.done"
        with FileLock(base / f"shared_{name}.lock"):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)  # `make` may have failed in another process.
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return shared
