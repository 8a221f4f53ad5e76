import functools
import importlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

import pytest
from made.tables import by_table

import keras_vit

CODE = """
import json, operator, sys, time
start = time.process_time()
import keras
of_keras, before = time.process_time() - start, [*sys.modules]
import keras_vit
keras_vit.VisionTransformer
ratio = (time.process_time() - start) / of_keras
modules = [*{*sys.modules} - {*before}]
for path in sys.stdin.read().split():  # raises if there is no such name
    operator.attrgetter(path)(keras_vit)
print(json.dumps({
    "ratio": ratio,
    "modules": modules,
    "registered": [name for name in sys.argv[1:] if keras.saving.get_registered_object(f"keras_vit>{name}")],
}))
"""
# What the reference describes, as it is reached after `import keras_vit`.
TEXT = "\n".join(page.read_text() for page in (pathlib.Path(__file__).parents[1] / "docs/api").glob("*.md"))
NAMES = re.findall(r"^::: keras_vit\.([\w.]+)$(?!\n +options:\n +heading:)", TEXT, re.MULTILINE)
REGISTERED = ("VisionTransformer", "EncoderBlock", "AdamW", "WarmupDecay", "SoftmaxCrossEntropy")
REGISTERED += ("PreprocessingLayer", "PairRecall")


def imported(backend):
    """What a process of its own finds when it imports Keras and then this package."""
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, *REGISTERED],
        input="\n".join(NAMES if backend == "tensorflow" else ()),
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def found():
    return functools.cache(imported)


@pytest.mark.slow
def test_importing_costs_at_most_a_tenth_more_than_keras(found):
    # Processor time, since other processes run too; what looks slow is measured again.
    ratio = found("tensorflow")["ratio"]
    assert (
        ratio <= 1.1 or (ratio := statistics.median(imported("tensorflow")["ratio"] for _ in range(5))) <= 1.1
    ), ratio


@pytest.mark.parametrize("backend", ["tensorflow", pytest.param("jax", marks=pytest.mark.slow)])
def test_importing_brings_nothing_that_only_some_need(backend, found):
    modules = found(backend)["modules"]
    added = {name.partition(".")[0] for name in modules}
    assert "keras_vit" in added
    assert not [name for name in modules if name.startswith(("keras_vit.weights", "keras_vit.evaluation"))]
    assert not added & {
        *("matplotlib", "sklearn", "scipy", "PIL", "tensorflow_datasets", "tensorflow_hub", "ai_edge_litert"),
        *("tensorflow", "jax", "torch", "_keras_vit_cli", "huggingface_hub", "filelock"),
    }


OPENED = """
import sys, tempfile
import keras_vit
before = {*sys.modules}
exec(sys.argv[1])
print(*sorted(name for name in {*sys.modules} - before if name.startswith("keras_vit.")))
"""
LOAD = 'keras_vit.from_pretrained("tests/golden/token.npz")'
RUN = """
from keras_vit.training import RunConfig, find_recipe, train
recipe = find_recipe("finetune").with_changes(total_steps=1, batch_size=16, warmup_steps=0)
with tempfile.TemporaryDirectory() as folder:
    train(RunConfig("digits", recipe, weights="tests/golden/token.npz"), folder, verbose=0)
"""


@pytest.mark.parametrize("code, most", [(LOAD, 25), pytest.param(RUN, 98, marks=pytest.mark.slow)])
def test_few_files_are_opened(code, most):
    """What one layout, one task and one recipe do without is not imported."""
    done = subprocess.run([sys.executable, "-c", OPENED, code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    opened = done.stdout.splitlines()[-1].split()
    assert {"keras_vit.weights.load", "keras_vit.weights.layouts.vit_jax"} <= {*opened}
    assert len(opened) <= most, opened


EACH_FIRST = """
import importlib, os, pkgutil, sys
import keras_vit, tensorflow
modules = pkgutil.walk_packages(keras_vit.__path__, "keras_vit.")
names = [module.name for module in modules if not module.name.endswith("__main__")]
for name in names:
    if not (child := os.fork()):
        try:
            importlib.import_module(name)
        except BaseException as error:
            print(name, error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
print(len(names))
"""


@pytest.mark.slow
def test_each_module_can_be_imported_first():
    """A cycle of imports would fail for some first module."""
    done = subprocess.run([sys.executable, "-c", EACH_FIRST], capture_output=True, text=True)
    (count,) = done.stdout.splitlines()
    assert int(count) > 300, done.stderr


def test_a_plain_import_registers_the_classes_for_loading(found):
    assert found("tensorflow")["registered"] == [*REGISTERED]


def test_the_names_of_the_reference_are_two_levels_deep_and_there(found):
    assert len(NAMES) > 80
    assert [name for name in NAMES if name.count(".") > 1] == []
    assert found("tensorflow")  # in whose process each was looked up


@by_table(
    "package",
    [
        "",
        *sorted({name for name, module in keras_vit.LAZY.items() if module is None} - {"search", "variants"}),
    ],
)
def test_dir_lists_public_names_only(package):
    names = {
        name for name in dir(importlib.import_module(f"keras_vit.{package}".strip("."))) if "__" not in name
    }
    documented = {name.rpartition(".")[2] for name in NAMES if name.rpartition(".")[0] == package}
    assert documented <= names
    constants = {"MAX_BYTES", "MAX_PIXELS", "RECIPES"}
    in_reference = {part for name in NAMES for part in name.split(".")}
    assert names - in_reference - constants <= {"is_float32", "read_image"}


def test_what_is_imported_when_first_used_is_listed_before():
    for package in (keras_vit, keras_vit.training, keras_vit.export):
        assert {*package.LAZY} <= {*dir(package)}
    with pytest.raises(AttributeError, match="module 'keras_vit.training' has no attribute 'trian'"):
        _ = keras_vit.training.trian
