import statistics
import subprocess
import sys
import time

import numpy as np
import pytest

import _keras_vit_cli
from _keras_vit_cli import VERBS, settings

HELP = """
import sys, _keras_vit_cli
for verb in ([], *([verb] for verb in _keras_vit_cli.VERBS)):
    try:
        _keras_vit_cli.main([*verb, "--help"])
    except SystemExit as stop:
        assert stop.code == 0
print({"keras", "tensorflow", "numpy", "matplotlib"} & {*sys.modules})
"""


def test_help_comes_within_a_second(script):
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        done = script("--help")
        seconds.append(time.perf_counter() - start)
        assert done.returncode == 0 and done.stderr == ""
        assert all(f"\n    {verb}" in done.stdout for verb in VERBS)
    assert statistics.median(seconds) < 1


def test_help_imports_neither_keras_nor_numpy():
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_its_options(verb, keras_vit):
    done = keras_vit(verb, "--help")
    assert done.returncode == 0
    assert VERBS[verb] in " ".join(done.stdout.split())
    assert f"usage: keras-vit {verb}" in done.stdout


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["train"], ["'train'", "quickstart", "finetune"]),
        ([], ["VERB"]),
        (["predict"], ["--model", "images"]),
        (["finetune", "--dataset", "digits"], ["--workdir"]),
        (["models", "--sizes"], ["--sizes"]),
        (["models", "--image_size", "big"], ["--image_size", "'big'", "whole number above 0"]),
        (["models", "--num_classes", "-1"], ["--num_classes"]),
        (["predict", "--model", "m", "--top", "0", "i"], ["--top", "'0'"]),
        (["evaluate", "--model", "m", "--dataset", "d", "--batch_size", "0"], ["--batch_size", "'0'"]),
        (
            ["finetune", "--dataset", "d", "--workdir", "w", "--image_size", "1x2x3"],
            ["1x2x3", "HEIGHTxWIDTH"],
        ),
        (["inspect", "--model", "m", "--image", "i"], ["--output"]),
        (["inspect", "--model", "m", "--output", "o", "--block", "last"], ["--block", "'last'"]),
        (["finetune", "--dataset", "d", "--workdir", "w", "--image_size", "0x8"], ["0x8", "HEIGHTxWIDTH"]),
        (["finetune", "--dataset", "d", "--workdir", "w", "--on_bad_image", "warn"], ["'warn'", "skip"]),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_refused_in_one_line(arguments, words, keras_vit, refused):
    refused(keras_vit(*arguments), *words, "--help")


def test_the_script_refuses_an_unknown_verb(script, refused):
    refused(script("train"), "'train'", "quickstart")


@pytest.mark.parametrize(
    "text, value",
    [
        ("base_lr=0.01", 0.01),
        ("total_steps=5", 5),
        ("flip=False", False),
        ("clip_norm=None", None),
        ("crop_area=(0.5, 1.0)", (0.5, 1.0)),
        ("decay=linear", "linear"),
        ("decay='linear'", "linear"),
        ("name=a=b", "a=b"),
        ("name=", ""),
        ("name=__import__('os').getcwd()", "__import__('os').getcwd()"),
    ],
)
def test_settings_are_literals_or_text_and_never_run(text, value):
    assert settings([text]) == {text.partition("=")[0]: value}


def test_of_two_settings_of_a_field_the_last_counts():
    assert settings(["base_lr=1", "flip=True", "base_lr=2"]) == {"base_lr": 2, "flip": True}


@pytest.mark.parametrize("text", ["base_lr", "=1", ""])
def test_a_setting_without_a_field_or_a_value_is_refused(text):
    with pytest.raises(ValueError, match=f"--set wants FIELD=VALUE; got '{text}'"):
        settings([text])


def damaged(path, content):
    path.write_bytes(content)
    return path


def pickled(path):
    np.savez(path, head=np.array([{"a": 1}], dtype=object))
    return path


CHECKPOINTS = {
    "missing": (lambda path, weights: path, "no such checkpoint file"),
    "cut": (
        lambda path, weights: damaged(path, weights.read_bytes()[:5000]),
        "no checkpoint that can be read",
    ),
    "empty": (lambda path, weights: damaged(path, b""), "no checkpoint that can be read"),
    "pickled": (lambda path, weights: pickled(path), "pickled objects"),
    "foreign": (lambda path, weights: np.savez(path, weight=np.zeros(3)) or path, "in no known layout"),
    "an address": (lambda path, weights: "s3://bucket/vit.npz", "s3:// is unknown; wanted a path, hf://"),
    "a folder": (lambda path, weights: path.parent, "holds no finished run"),
}


@pytest.mark.parametrize("verb", ["predict", "evaluate", "finetune"])
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_checkpoint_that_cannot_be_read_is_refused(
    verb, kind, keras_vit, refused, weights, images, tmp_path
):
    make, message = CHECKPOINTS[kind]
    source = make(tmp_path / "file.npz", weights)
    if verb == "predict":
        done = keras_vit(verb, "--model", source, images)
    elif verb == "evaluate":
        done = keras_vit(verb, "--model", source, "--dataset", f"folder:{images}")
    else:
        done = keras_vit(
            *(verb, "--weights", source, "--dataset", f"folder:{images}", "--workdir", tmp_path / "run")
        )
        message = "is a folder without model.keras, model.safetensors" if kind == "a folder" else message
        assert not (tmp_path / "run").exists()
    refused(done, source, message)


def test_an_interrupted_command_says_so(keras_vit, monkeypatch):
    from keras_vit.cli import models

    def interrupt(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "run", interrupt)
    done = keras_vit("models")
    assert (done.returncode, done.stderr) == (130, "keras-vit: interrupted\n")


def test_the_parser_offers_what_the_package_has():
    """It says these lists again, so that --help need not import Keras."""
    from keras_vit.data import datasets
    from keras_vit.models import masked_patch
    from keras_vit.training import recipes, run, strategy
    from keras_vit.weights.layouts import LAYOUTS

    assert set(_keras_vit_cli.LAYOUTS) == set(LAYOUTS)
    assert _keras_vit_cli.TASKS == datasets.TASKS == recipes.TASKS
    assert _keras_vit_cli.OBJECTIVES == run.OBJECTIVES
    assert _keras_vit_cli.TARGETS == masked_patch.TARGETS
    assert _keras_vit_cli.STRATEGIES == strategy.STRATEGIES
