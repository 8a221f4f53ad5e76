import dataclasses
import os
import runpy
import statistics
import subprocess
import sys
import time

import numpy as np
import pytest

import _keras_vit_cli
import keras_vit as keras_vit_package
from _keras_vit_cli import VERBS, quiet_startup_logs, settings

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


@pytest.mark.parametrize(
    "arguments, meant",
    [
        ("finetune --lr 3e-4", "unknown option --lr; did you mean --set base_lr=3e-4?"),
        ("finetune --learning_rate=0.1 --dataset d", "did you mean --set base_lr=0.1?"),
        ("finetune --dataset d --epochs 3", "did you mean --total_steps (epochs × images / batch size)?"),
        ("finetune --dataset d --bs 8", "did you mean --batch_size 8?"),
        ("finetune --dataset d --batch-sise 8", "did you mean --batch_size?"),
        ("finetune --model_name B/16", "did you mean --model B/16?"),
        ("finetune --dataset d --mixup 0.2", "did you mean --set mixup=0.2?"),
        ("evaluate --subset test", "did you mean --split test?"),
        ("finetune --dropuot 0.1", "did you mean --set dropout_rate=0.1?"),
        ("pretrain --weights vit.npz", "unknown option --weights; see"),
        ("predict --topk 3 photo.jpg", "did you mean --top 3?"),
        ("predict --model m --top_k=3 photo.jpg", "did you mean --top 3?"),
        ("predict --weights runs/flowers photo.jpg", "did you mean --model runs/flowers?"),
        ("predict --model m -k 3 photo.jpg", "unknown option -k; did you mean --top 3?"),
        ("benchmark --bs --model m", "did you mean --batch_sizes VALUE?"),
        ("weights show vit.npz --frobnicate", "unknown option --frobnicate; see keras-vit weights show"),
        ("train --dataset digits", "unknown 'train'; did you mean finetune?"),
        ("trian --dataset digits", "did you mean finetune?"),
        ("predcit photo.jpg", "did you mean predict?"),
        ("weights conver vit.npz", "did you mean convert?"),
        ("predict --model m --format JSONL photo.jpg", "unknown 'JSONL'; did you mean jsonl?"),
    ],
)
def test_what_was_probably_meant_is_named(arguments, meant, keras_vit, refused):
    refused(keras_vit(*arguments.split()), meant)


def test_what_is_suggested_is_there():
    from keras_vit.training.recipes import Recipe

    fields = {field.name for field in dataclasses.fields(Recipe)}
    for commands, hints in _keras_vit_cli.OPTIONS_ELSEWHERE.items():
        known = {verb: options_of(verb) for verb in commands.split() or VERBS}
        for hint, names in hints.items():
            option, _, value = hint.partition(" ")
            assert any(option in options for options in known.values()), hint
            assert option != "--set" or value.partition("=")[0] in fields, hint
            if option == "--set":
                assert not {f"--{name}" for name in names.split()} & known["finetune"], hint
    assert {*_keras_vit_cli.ELSEWHERE} <= {*VERBS}


def options_of(verb):
    (verbs,) = [action for action in _keras_vit_cli.parser()._actions if action.dest == "verb"]
    return {option for action in verbs.choices[verb]._actions for option in action.option_strings}


def test_the_module_is_the_script_and_has_the_packages_version(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["keras-vit", "--version"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("keras_vit", run_name="__main__")
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"keras_vit {keras_vit_package.__version__}\n"


def test_start_up_logs_are_removed_and_all_else_is_kept(capfd):
    with pytest.raises(OSError), quiet_startup_logs():
        for line in (
            *("I0000 00:00:1 1 port.cc:153] oneDNN custom operations are on.", "E0000 00:00:1 1 a.cc:1] bad"),
            *("INFO: Created TensorFlow Lite XNNPACK delegate for CPU.", "INFO: Created a mess"),
            *("W0000 00:00:1 1 other.cc:1] look here", "fully_quantize: 0, inference_type: 6"),
        ):
            os.write(2, f"{line}\n".encode())
        raise OSError
    kept = "E0000 00:00:1 1 a.cc:1] bad\nINFO: Created a mess\nW0000 00:00:1 1 other.cc:1] look here\n"
    assert capfd.readouterr().err == kept
    with pytest.raises(OSError), quiet_startup_logs(drop_on_error=True):
        os.write(2, b"what the exception repeats\n")
        raise OSError
    assert capfd.readouterr().err == ""


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
    "an address": (lambda path, weights: "s3://bucket/vit.npz", "s3:// is unknown; expected a path, hf://"),
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


def test_control_characters_in_a_message_are_escaped(keras_vit):
    done = keras_vit("weights", "show", "no\x1b[31msuch.npz")
    assert done.returncode == 2 and "\x1b" not in done.stderr and r"no\x1b[31msuch.npz" in done.stderr


def test_the_parser_offers_what_the_package_has():
    """It says these lists again, so that --help need not import Keras."""
    from keras_vit.cli import rows
    from keras_vit.data import datasets
    from keras_vit.models import masked_patch
    from keras_vit.training import recipes, run, strategy
    from keras_vit.weights.layouts import LAYOUTS

    assert set(_keras_vit_cli.LAYOUTS) == set(LAYOUTS)
    assert (*rows.FORMATS,) == _keras_vit_cli.ROWS
    assert _keras_vit_cli.TASKS == datasets.TASKS == (*recipes.TASKS,)
    assert _keras_vit_cli.OBJECTIVES == run.OBJECTIVES
    assert _keras_vit_cli.TARGETS == masked_patch.TARGETS
    assert _keras_vit_cli.STRATEGIES == strategy.STRATEGIES


@pytest.mark.parametrize(
    "command",
    [
        "predict --model SOURCE IMAGE",
        "evaluate --model SOURCE --dataset digits",
        "fewshot --model SOURCE --dataset digits",
        "inspect --model SOURCE --image IMAGE --output OUT",
        "export --model SOURCE --output OUT",
        "benchmark --model SOURCE",
        "weights show SOURCE",
        "weights convert SOURCE OUT.npz --layout vit_jax",
        "weights push SOURCE me/vit",
        "finetune --weights SOURCE --dataset digits --workdir OUT --total_steps 1",
    ],
    ids=lambda command: command.partition(" -")[0],
)
def test_every_command_that_opens_a_model_checks_what_it_opens(
    command, keras_vit, refused, weights, images, tmp_path
):
    image = next(images.rglob("*.png"))
    words = command.replace("IMAGE", str(image)).replace("OUT", str(tmp_path / "out")).split()

    def of(source, *options):
        return keras_vit(*(str(source) if word == "SOURCE" else word for word in words), *options)

    refused(of(weights, "--sha256", "0" * 64), "has SHA-256", f"expected {'0' * 64}")
    refused(of("http://host.invalid/vit.npz"), "is not encrypted", "--sha256", "--trust")
    assert not (tmp_path / "out").exists()
