"""Configurations with one field replaced: refused in one line, or read as a model that computes."""

import copy
import functools
import json
import math
import pathlib
import tempfile
import zipfile

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made.archives import rezipped
from made.checkpoints import base, made_model
from reference.small import one_block, small

from keras_vit import save_weights
from keras_vit.export.onnx import export_onnx
from keras_vit.export.saved_model import export_saved_model
from keras_vit.weights.layouts import LAYOUTS

pytestmark = pytest.mark.slow
DEEP = functools.reduce(lambda inner, _: [inner], range(50), 1)
VALUES = {
    **{"null": None, "true": True, "negative": -1, "zero": 0, "one": 1, "fraction": 0.5, "large": 10**9},
    **{"huge": 10**400, "tiny": 1e-320, "nan": math.nan, "inf": math.inf, "text": "16", "long": "x" * 10**6},
    **{"control": "\x1b[31m\n", "empty": [], "list": [1, 2, 3, 4, 5], "negatives": [-1, -1, -1]},
    **{"tiny ones": [1e-320] * 3, "texts": ["a", "b\n"], "object": {"a": 1}, "deep": DEEP, "missing": ...},
}


def made(name, file):
    """A function that writes a made checkpoint, and returns its metadata file and what is read."""
    return lambda folder: (folder / file, base(name).write(folder))


def saved(**options):
    """The same for a small model in a folder of transformers."""

    def write(folder):
        path = save_weights(
            one_block(hidden_size=16, num_heads=2, mlp_dim=16, **options), folder, "huggingface"
        )
        path.with_suffix(".json").unlink()
        return folder / "config.json", path

    return write


def timm(folder):
    path = base("timm_mu").write(folder)
    (config,) = LAYOUTS["timm"].write_config(made_model("timm_mu").get_config())
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "config.json", path


def keras(folder):
    small().save(folder / "model.keras")
    return folder / "model.keras", folder / "model.keras"


@functools.cache
def exported():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        saved = export_saved_model(small(class_names=list("abcde")), folder / "saved", warmup=())
        return export_onnx(saved, folder / "model.onnx").read_bytes()


def export(folder):
    (folder / "model.onnx").write_bytes(exported())
    return folder / "model.onnx", folder / "model.onnx"


def run(folder):
    small().save(folder / "model.keras")
    config = {"dataset": "digits", "recipe": {"seed": 3, "task": "single_label", "batch_size": 8}}
    (folder / "config.json").write_text(json.dumps(config))
    record = {"steps": 2, "train_seconds": 0.1, "replicas": 1, "bad_images": []}
    (folder / "result.json").write_text(json.dumps(record))
    return folder / "config.json", folder


# Function that writes a file and returns where its configuration is and what is read; the function of
# `made.attacked` that reads it; the objects of the configuration whose fields are replaced.
DOCUMENTS = {
    "ours": (made("token_metadata", "model.json"), "load", ("arguments", "arguments.preprocessing")),
    "transformers": (made("hf_mu", "config.json"), "load", ("",)),
    "preprocessor": (made("hf_mu", "preprocessor_config.json"), "load", ("",)),
    "dinov2": (saved(layer_scale=0.1, num_classes=None), "load", ("",)),
    "clip": (saved(pre_norm=True, num_classes=None), "load", ("",)),
    "timm": (timm, "load", ("", "model_args", "pretrained_cfg")),
    "keras": (keras, "load", ("config", "config.preprocessing")),
    "export": (export, "run_export", ("", "architecture")),
    "run": (run, "read_run", ("", "recipe")),
}


def configuration(path):
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            return json.loads(archive.read("config.json"))
    if path.suffix == ".onnx":
        properties = onnx.load(path).metadata_props
        return json.loads(next(item.value for item in properties if item.key == "keras_vit.json"))
    return json.loads(path.read_text())


def replace_configuration(path, text):
    if path.suffix == ".keras":
        rezipped(path, **{"config.json": text})
    elif path.suffix == ".onnx":
        model = onnx.load(path)
        next(item for item in model.metadata_props if item.key == "keras_vit.json").value = text
        onnx.save(model, path)
    else:
        path.write_text(text)


@functools.cache
def document(name):
    """The configuration of a document."""
    with tempfile.TemporaryDirectory() as folder:
        values = configuration(DOCUMENTS[name][0](pathlib.Path(folder))[0])
    values.pop("digest", None)  # a changed configuration would not match it
    return values


def part_of(values, part):
    for name in filter(None, part.split(".")):
        values = values[name]
    return values


@pytest.mark.parametrize("name", DOCUMENTS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draws=st.data())
def test_a_hostile_configuration_is_refused_or_read_as_a_model(name, draws, limited, tmp_path_factory):
    write, read, parts = DOCUMENTS[name]
    values = copy.deepcopy(document(name))
    fields = part_of(values, draws.draw(st.sampled_from(parts)))
    field = draws.draw(st.sampled_from([*fields, "unknown"]))
    fields[field] = VALUES[draws.draw(st.sampled_from([*VALUES]))]
    if fields[field] is ...:
        del fields[field]
    file, path = write(tmp_path_factory.mktemp("config"))
    replace_configuration(file, json.dumps(values))
    how, what = limited.call(read, str(path), *([{}] if read == "load" else []))
    assert how in ("accepted", "refused"), str(what)[:2000]
    assert how == "refused" or np.isfinite(what["outputs"]).all()
