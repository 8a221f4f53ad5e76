"""The dtype "auto" by devices that are not here: what TensorFlow, JAX and PyTorch say of them is replaced."""

import types

import keras
import pytest
import tensorflow as tf
from made.tables import by_table

from keras_vit.engine import device_dtype as dtypes
from keras_vit.engine.device_dtype import TPU, device_dtype


@by_table(
    "found, expected",
    [
        ([], "float32"),
        ([(7, 5)], "mixed_float16"),  # T4
        ([(8, 0)], "mixed_bfloat16"),  # A100
        ([(12, 0)], "mixed_bfloat16"),
        ([TPU] * 4, "mixed_bfloat16"),
        ([(8, 9), (7, 0)], "mixed_float16"),
        ([(8, 0), None], "float32"),
    ],
)
def test_the_dtype_is_what_all_devices_support(found, expected, monkeypatch):
    monkeypatch.setattr(dtypes, "accelerators", lambda: found)
    assert device_dtype() == expected


def test_tensorflow_says_the_capability_of_its_visible_gpus(monkeypatch):
    details = {"T4": {"compute_capability": (7, 5), "device_name": "Tesla T4"}, "other": {}}
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [*details] if kind == "GPU" else [])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", details.get)
    assert dtypes.accelerators() == [(7, 5), None]


def test_tpus_of_tensorflow_are_those_of_the_strategy(monkeypatch):
    strategy = tf.distribute.TPUStrategy.__new__(tf.distribute.TPUStrategy)
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    monkeypatch.setattr(tf.distribute, "get_strategy", lambda: strategy)
    assert dtypes.accelerators() == [TPU]


def test_jax_says_the_capability_of_its_devices(monkeypatch):
    jax = pytest.importorskip("jax")
    devices = [
        types.SimpleNamespace(platform="gpu", compute_capability="8.0"),
        types.SimpleNamespace(platform="gpu", compute_capability="gfx90a"),  # of AMD
        types.SimpleNamespace(platform="tpu"),
        types.SimpleNamespace(platform="cpu"),
        types.SimpleNamespace(platform="METAL"),
    ]
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    monkeypatch.setattr(jax, "devices", lambda: devices)
    assert dtypes.accelerators() == [(8, 0), None, TPU, None]


def test_pytorch_says_the_capability_of_its_gpus(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: (7, 5 + number))
    assert dtypes.accelerators() == [(7, 5), (7, 6)]
