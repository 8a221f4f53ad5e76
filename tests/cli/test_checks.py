import importlib.metadata
import platform

import keras
import pytest

from keras_vit.cli import checks


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """A small cache of the package, and one of Hugging Face."""
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "none"))
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "shards" / "file")
    return tmp_path


def test_versions_devices_and_caches_are_listed(json_of, keras_vit, cache):
    found = json_of("checks")
    assert found["python"] == platform.python_version() and found["packages"]["keras"] == keras.__version__
    assert found["backend"] == keras.backend.backend() and found["devices"][0].startswith("CPU:0")
    assert found["caches"] == {str(cache): 5, str(cache / "none"): 0}
    text = keras_vit("checks").stdout
    assert f"{cache}, 0.0 MiB" in text and keras.__version__ in text


def test_missing_packages_have_the_command_that_installs_them(json_of, monkeypatch):
    known = {"keras": "3.15.1", "onnx": "1.23.2"}

    def version(name):
        if name not in known:
            raise importlib.metadata.PackageNotFoundError(name)
        return known[name]

    listed = ["keras>=3.14.1", "numpy", 'onnx; extra == "onnx"', 'onnxruntime>=1.27; extra == "onnx"']
    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "requires", {checks.DISTRIBUTION: listed}.get)
    found = json_of("checks")
    assert found["packages"] == known
    assert found["missing"] == {"required": "pip install numpy", "onnx": "pip install 'onnxruntime>=1.27'"}


def test_a_broken_installation_is_reported(json_of, monkeypatch):
    def fails(*_):
        raise importlib.metadata.PackageNotFoundError("it")

    def broken():
        raise AttributeError("no such\nsymbol")

    monkeypatch.setattr(importlib.metadata, "requires", fails)
    monkeypatch.setattr(keras.backend, "backend", broken)
    found = json_of("checks")
    assert (found["backend"], found["devices"]) == ("AttributeError: no such symbol", [])
    assert found["missing"] == {} and [*found["packages"]] == ["keras", "tensorflow", "jax", "numpy"]
