"""Annotations and stubs, as type checkers and editors read them."""

import importlib
import inspect
import json
import operator
import pathlib
import re
import subprocess
import sys
from inspect import Parameter

import pytest
from made import stubs
from made.tables import by_table

import keras_vit

ROOT = pathlib.Path(__file__).parents[1]
REFERENCE = "\n".join(page.read_text() for page in (ROOT / "docs/api").glob("*.md"))
NAMES = re.findall(r"^::: keras_vit\.([\w.]+)$", REFERENCE, re.MULTILINE)
SCRIPT = """\
import numpy as np

import keras_vit
from keras_vit.data import load_dataset
from keras_vit.export.description import read_description

model = keras_vit.from_pretrained("ViT-B_16.npz", image_size=384, dropout_rate=0.1)
size = model.image_size
names = model.classify("photo.jpg", top=3)
prepared = model.preprocessing(["photo.jpg"])
small = keras_vit.VisionTransformer.from_variant("Ti/16", image_size=32, num_classes=10, norm="rms")
features = small.feature_extractor(["tokens"])
split = load_dataset("digits", seed=1).split("test")
scores = keras_vit.evaluation.evaluate(small, split, batch_size=32)
recipe = keras_vit.training.compile_model(small, "finetune", epochs=2, steps_per_epoch=3)
history = small.fit(np.zeros((4, 32, 32, 3)), np.zeros(4), batch_size=2)
maps = keras_vit.from_pretrained("segmenter.keras", kind="segmenter").segment("photo.jpg")
vectors = keras_vit.from_pretrained("siglip", kind="image_text").encode_text(["a cat"])
folder = keras_vit.export.export_saved_model(small, "exported")
rows = keras_vit.export.open_exported(folder).classify(np.zeros((1, 8, 8, 3)))
found = keras_vit.export.open_exported(folder).detect("photo.jpg", 0.5)
heat = keras_vit.inspection.attention_maps(small, "photo.jpg")
tokens = keras_vit.layers.ClassToken()(np.zeros((1, 4, 8)))
saved = keras_vit.save_weights(small, "weights.npz", "vit_jax")
page = keras_vit.export.export_web(folder, "page", drawing=28, model="model.tflite")
described = read_description(folder).as_json().encode()
options = {"image_size": 16, "patch_size": 8}
heads = keras_vit.ObjectDetector(options, 4), keras_vit.DepthEstimator(options), keras_vit.DINO(options)
pretrainers = keras_vit.MaskedAutoencoder(options), keras_vit.MaskedPatchPredictor(options)
pixels, towers = keras_vit.ImageGPT(options), keras_vit.ImageTextModel(options, {"length": 4})
segments = keras_vit.ImageSegmenter(options, 4, head="mask").panoptic("photo.jpg", things=[1])
parts = np.stack(segments)
"""
MISTAKES = (
    'keras_vit.VisionTransformer.from_variant("B/16", image_size="224")',
    'keras_vit.VisionTransformer.from_variant("B/16", hiden_size=2)',
    "keras_vit.VisionTransformer(224, 16, 768, num_layers=12, mlp_dim=1, num_heads='12')",
    'keras_vit.from_pretrianed("x.npz")',
    'keras_vit.from_pretrained("x.npz", imagesize=3)',
    'keras_vit.from_pretrained("x.npz", kind="classifier").classify("photo.jpg", top="5")',
    "keras_vit.training.trian()",
    "keras_vit.layers.MlpBlock(mlp_dim='wide')",
    "keras_vit.export.export_web('served', 'page', drawing='28')",
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the package as a wheel places it."""
    folder = tmp_path_factory.mktemp("installed")
    package = folder / "keras_vit"
    package.mkdir()
    for path in (ROOT / "keras_vit").iterdir():
        (package / path.name).symlink_to(path)
    (package / "export").symlink_to(ROOT / "export")
    return folder


@pytest.fixture(scope="module")
def errors(installed, tmp_path_factory):
    """(file, line from 0, message) of what pyright, in basic mode, says about the script and the mistakes."""
    folder = tmp_path_factory.mktemp("types")
    (folder / "script.py").write_text(SCRIPT)
    (folder / "mistakes.py").write_text("\n".join(("import keras_vit", *MISTAKES)) + "\n")
    options = {"typeCheckingMode": "basic", "extraPaths": [str(installed)], "include": ["*.py"]}
    options |= {"reportUnknownVariableType": "error", "reportUnknownArgumentType": "error"}
    (folder / "pyrightconfig.json").write_text(json.dumps(options))
    pyright = pathlib.Path(sys.executable).with_name("basedpyright")
    command = [pyright, "--outputjson", "--level", "error", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [
        (pathlib.Path(each["file"]).name, each["range"]["start"]["line"], each["message"]) for each in found
    ]


@pytest.mark.slow
def test_a_users_script_has_no_unknown_types_and_no_errors(errors):
    assert [error for error in errors if error[0] == "script.py"] == []


@pytest.mark.slow
def test_wrong_arguments_and_names_are_errors(errors):
    lines = {line for file, line, _ in errors if file == "mistakes.py"}
    assert lines == {*range(1, len(MISTAKES) + 1)}


def test_layers_models_engine_and_exports_pass_mypy_in_its_strict_form(installed, tmp_path):
    options = ["--config-file", ROOT / "pyproject.toml", "--cache-dir", tmp_path]
    command = [sys.executable, "-m", "mypy", "--python-executable", sys.executable, *options]
    done = subprocess.run(command, cwd=installed, capture_output=True, text=True)
    assert done.stdout.startswith("Success: no issues found"), done.stdout + done.stderr


def functions(name):
    """(name, function) of a public name: itself, the functions of a module, or the methods of a class."""
    thing = operator.attrgetter(name)(keras_vit)
    if inspect.isfunction(thing):
        yield name, thing
    elif inspect.ismodule(thing):
        own = [value for value in vars(thing).values() if getattr(value, "__module__", "") == thing.__name__]
        yield from ((f"{name}.{value.__name__}", value) for value in own if value.__name__[0] != "_")
    elif inspect.isclass(thing):
        for method, value in vars(thing).items():
            value = getattr(value, "__func__", value)
            value = value.fget if isinstance(value, property) else value
            is_public = not method.startswith("_") or method in ("__init__", "__call__")
            # Not a method of another class under a second name.
            if is_public and getattr(value, "__qualname__", "") == f"{thing.__name__}.{method}":
                yield f"{name}.{method}", value


def test_inputs_of_layers_are_tensors():
    """As are all arguments of `call` without a default, and none is a bool."""
    for name in dir(keras_vit.layers):
        layer = getattr(keras_vit.layers, name)
        if inspect.isclass(layer) and "call" in vars(layer):
            _, *parameters = inspect.signature(layer.call).parameters.values()
            required = [each for each in parameters if each.default is each.empty]
            assert {each.annotation for each in required} <= {"Tensor", Parameter.empty}, name


def test_every_argument_and_result_of_the_reference_is_annotated():
    assert len(NAMES) > 100
    for path, function in (pair for name in NAMES for pair in functions(name)):
        function = inspect.unwrap(function)
        code = function.__code__
        count = code.co_argcount + code.co_kwonlyargcount
        count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
        arguments = {*code.co_varnames[:count]} - {"self", "cls"}
        assert arguments | {"return"} <= function.__annotations__.keys(), path


def test_the_stubs_are_those_of_the_code():
    for path, text in stubs.files().items():
        assert (ROOT / path).read_text() == text, f"{path} is not up to date; run `make stubs`"


@by_table("package", stubs.PACKAGES)
def test_a_stub_has_the_public_names_of_its_package(package):
    module = importlib.import_module(package)
    text = stubs.of_package(package)
    names = {*re.findall(r" as (\w+)$", text, re.MULTILINE)}
    assert names == {name for name in dir(module) if "__" not in name} - {"LAZY"}
