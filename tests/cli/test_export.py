"""`keras-vit export`, and the verbs that take what it writes."""

import json

import numpy as np
import pytest
from reference.small import small

NAMES = ("cat", "dog")
FORMATS = ["live", "saved_model", "tflite_float32", "tflite_int8", "onnx", "hub"]
FILES = ["", "saved_model", "saved_model/1", "hub/pets.tar.gz", "model_float32.tflite", "model.onnx"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.keras"
    small(num_layers=1, num_classes=2, class_names=NAMES).save(path)
    return path


@pytest.fixture(scope="module")
def exported(model, images, script, tmp_path_factory):
    """(folder of an export in every format, made by the script, and the process)."""
    path = tmp_path_factory.mktemp("exported") / "export"
    arguments = ("--formats", "saved_model,tflite,onnx,hub", "--precisions", "float32,int8", "--name", "pets")
    data = ("--dataset", f"folder:{images}", "--licence", "Apache-2.0")
    done = script("export", "--model", model, "--output", path, *arguments, *data)
    assert done.returncode == 0, done.stderr
    return path, done


def test_it_prints_a_table_and_writes_the_result(exported, model):
    path, done = exported
    assert done.stderr == ""
    result = json.loads((path / "result.json").read_text())
    assert result["model"] == str(model) and result["seconds"] > 0
    verified = json.loads((path / "verification.json").read_text())
    assert verified == {name: result[name] for name in verified}
    header, *lines = done.stdout.splitlines()
    assert header.split()[:3] == ["format", "accuracy", "agreement"]
    assert [line.split()[0] for line in lines[:6]] == [
        "live",
        "saved_model",
        "tflite_float32",
        "tflite_int8",
        "onnx",
        "hub",
    ]
    for row in verified["formats"].values():
        assert row["path"] in done.stdout
    assert (
        "Apache-2.0" in (path / "hub" / "pets.md").read_text()
        or "apache-2.0" in (path / "hub" / "pets.md").read_text()
    )


@pytest.mark.parametrize(
    "name", ["", "saved_model", "saved_model/1", "hub/pets.tar.gz", "model_float32.tflite", "model.onnx"]
)
def test_every_verb_takes_every_format(name, exported, keras_vit, model, images):
    file = exported[0] / name
    alike = keras_vit("predict", "--model", model, images, "--json")
    done = keras_vit("predict", "--model", file, images, "--json")
    assert done.returncode == 0, done.stderr
    for row, expected in zip(json.loads(done.stdout), json.loads(alike.stdout), strict=True):
        assert [c["name"] for c in row["classes"]] == [c["name"] for c in expected["classes"]]
        probabilities = [[c["probability"] for c in found["classes"]] for found in (row, expected)]
        np.testing.assert_allclose(*probabilities, rtol=1e-4)
    data = ("--dataset", f"folder:{images}", "--json")
    evaluated = [json.loads(keras_vit("evaluate", "--model", m, *data).stdout) for m in (model, file)]
    assert evaluated[0]["accuracy"] == evaluated[1]["accuracy"]
    assert evaluated[0]["loss"] == pytest.approx(evaluated[1]["loss"], rel=1e-4)
