import argparse
import os

import jax
import keras
import pytest
import tensorflow as tf

from keras_vit.cli import console, device
from keras_vit.cli.parser import actions, parser

COMMANDS = (
    *("predict", "evaluate", "embed", "inspect", "benchmark", "fewshot", "probe", "search", "finetune"),
    *("pretrain", "complete"),
)
NAMES = ("CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Nothing is chosen by the environment, which is restored after the test."""
    for name in NAMES:
        monkeypatch.setenv(name, "")


def on(name):
    return argparse.Namespace(device=name)


@pytest.mark.parametrize(
    "name, allowed, chosen",
    [
        ("auto", "4,7", ("4,7", "")),
        ("gpu", "4,7", ("4,7", "")),
        ("cpu", "4,7", ("-1", "cpu")),
        ("gpu:1", "", ("1", "")),
        ("gpu:1", "4,7", ("7", "")),
        ("gpu:0", "GPU-8932f937", ("GPU-8932f937", "")),
    ],
)
def test_a_device_is_chosen_by_the_environment_of_tensorflow_and_jax(name, allowed, chosen, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", allowed)
    device.choose(on(name))
    assert tuple(os.environ[name] for name in NAMES) == chosen


def test_a_gpu_that_is_not_allowed_is_refused(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    with pytest.raises(ValueError, match="--device gpu:2 is not among CUDA_VISIBLE_DEVICES, 4,7"):
        device.choose(on("gpu:2"))


def test_it_is_chosen_before_tensorflow_starts_and_is_looked_for_after(monkeypatch, capsys):
    chosen = []

    def start(*_):
        chosen.append(os.environ["CUDA_VISIBLE_DEVICES"])
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [])
        monkeypatch.setattr(jax, "devices", lambda: [])

    monkeypatch.setattr(console, "_start", start)
    words = ["evaluate", "--model", "m", "--dataset", "digits", "--device", "gpu:3"]
    assert console.run(parser(words).parse_args(words)) == 2
    backend = keras.backend.backend()
    assert chosen == ["3"]
    assert capsys.readouterr().err == f"keras-vit: --device gpu:3 is not there: {backend} sees no GPU\n"


def test_a_gpu_that_is_there_is_accepted(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    monkeypatch.setattr(jax, "devices", lambda: [argparse.Namespace(platform="gpu")])
    device.check(on("gpu"))


def test_a_backend_that_cannot_start_has_no_gpu(monkeypatch):
    def devices():
        raise RuntimeError("no cuda")

    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    monkeypatch.setattr(jax, "devices", devices)
    with pytest.raises(ValueError, match="jax sees no GPU"):
        device.check(on("gpu"))


@pytest.mark.parametrize("name, noted", [("gpu", "tflite_int8, onnx_float32"), ("cpu", ""), ("auto", "")])
def test_formats_that_compute_on_the_cpu_are_named(name, noted, capsys):
    device.note_formats(on(name), ["live", "saved_model", "tflite_int8", "onnx_float32"])
    written = capsys.readouterr().err
    assert written == (f"on the CPU, in spite of --device gpu: {noted}\n" if noted else "")


def test_the_commands_that_compute_with_a_live_model_have_it():
    having = set()
    for name, _, add_arguments in (row for top in COMMANDS for row in actions(top)):
        if add_arguments:
            options = []
            add_arguments(lambda *names, **_: options.extend(names))  # noqa: B023 - It is called at once.
            having |= {name} if "--device" in options else set()
    searches = {"search index", "search query"}
    assert having == {*COMMANDS, *searches} - {"search"}
