import dataclasses
import os
import resource
import runpy
import signal
import statistics
import subprocess
import sys

import pytest
from made.sampling import some

import keras_vit as keras_vit_package
from keras_vit import names
from keras_vit.cli import data, embed, options, parser, search
from keras_vit.data.datasets import ON_BAD_IMAGE, SOURCES
from keras_vit.data.samples import SPLITS
from keras_vit.embeddings.encoder import CAPTIONS, OUTPUTS
from keras_vit.embeddings.exported_encoder import EXPORT_FORMATS
from keras_vit.engine.strategy import STRATEGIES
from keras_vit.export import onnx, openvino
from keras_vit.export.formats import FORMATS
from keras_vit.search.approximate import ENGINES
from keras_vit.startup_logs import quiet_startup_logs
from keras_vit.tasks import NAMES, OBJECTIVES, label_kinds, label_tasks, objectives
from keras_vit.tasks.pretraining.masked_patch_predictor import TARGETS
from keras_vit.training.recipes import DTYPES, Recipe
from keras_vit.weights.array_files import FLOATS
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.push import PUSHED

EVERY_ACTION = [action for name in parser.SUBCOMMANDS for action in parser.actions(name)]
STATUS = """
import sys, _keras_vit_cli
try:
    sys.exit(_keras_vit_cli.main(sys.argv[1:]))
finally:
    heavy = {"keras", "keras_vit", "tensorflow", "jax", "torch", "numpy", "jinja2"} & {*sys.modules}
    assert not heavy, heavy
"""


def test_help_takes_less_than_three_tenths_of_a_second(script):
    """Of processor time, since other processes run too."""
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = script("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.returncode == 0 and done.stderr == ""
        assert all(f"\n    {name}" in done.stdout for name in parser.SUBCOMMANDS)
    assert statistics.median(seconds) < 0.3


@pytest.mark.parametrize(
    "words, status",
    some(
        [
            ("--help", 0),
            ("evaluate --help", 0),
            ("weights show --help", 0),
            ("train", 2),
            ("finetune --lr 1", 2),
            ("models b16", 0),
            ("models --variant b16", 2),
        ],
        2,
    ),
)
def test_command_lines_are_parsed_explained_and_refused_without_keras_and_numpy(words, status):
    done = subprocess.run([sys.executable, "-c", STATUS, *words.split()], capture_output=True, text=True)
    assert done.returncode == status, done.stderr


EXPORTED = """
import sys, _keras_vit_cli
with _keras_vit_cli.without_keras():
    from keras_vit.cli import source
    from keras_vit.tasks import export_outputs
    export_outputs()
heavy = {"keras", "tensorflow", "jax", "torch"} & {*sys.modules}
assert not heavy, heavy
"""


def test_exported_models_of_all_tasks_are_opened_without_keras():
    subprocess.run([sys.executable, "-c", EXPORTED], check=True)


def test_the_names_in_help_texts_are_those_of_the_registries():
    precisions = {}
    for format in FORMATS:
        precisions.setdefault(format.option, []).append(format.precision)
    assert [*precisions] == [*names.FORMATS]
    assert precisions["tflite"] == [*names.LITERT_PRECISIONS]
    assert precisions["onnx"] == [*names.ONNX_PRECISIONS] == [*onnx.PRECISIONS]
    assert precisions["openvino"] == [*names.OPENVINO_PRECISIONS] == [*openvino.PRECISIONS]
    assert [*NAMES] == [*label_kinds()] == [*label_tasks()] and [*OBJECTIVES] == [*objectives()]
    assert names.TARGETS == TARGETS and names.SPLITS == SPLITS and {*names.RUN_DTYPES} == {*DTYPES}
    assert ON_BAD_IMAGE.choices == names.ON_BAD_IMAGE and {*names.STORED_DTYPES} == {*FLOATS}
    assert {*names.LAYOUTS} == {*LAYOUTS} and names.PUSHED_LAYOUTS == PUSHED
    assert (*OUTPUTS, CAPTIONS) == names.EMBEDDING_OUTPUTS
    assert tuple(EXPORT_FORMATS) == names.EMBEDDING_FORMATS
    assert tuple(ENGINES) == names.SEARCH_ENGINES
    sources = {name.partition(":")[0]: ":" in name for name in names.DATA_SETS}
    assert sources == {name: bool(source.placeholder) for name, source in SOURCES.items()}
    assert tuple(name.split()[0] for name in names.STRATEGIES) == STRATEGIES["tensorflow"]
    assert {"auto", *(name.partition("=")[0] for name in names.JAX_STRATEGIES)} == {*STRATEGIES["jax"]}


def test_every_subcommand_explains_its_options(keras_vit):
    for name, text, _ in EVERY_ACTION:
        done = keras_vit(*name.split(), "--help")
        assert f"usage: keras-vit {name}" in done.stdout
        assert text in " ".join(done.stdout.split())


def test_only_existing_options_fields_and_subcommands_are_suggested():
    known = {parser.CONFIG}
    for _, _, add_arguments in EVERY_ACTION:
        if add_arguments:
            add_arguments(lambda *names, **_: known.update(names))
    assert {option.split()[0] for option in parser.OPTIONS_ELSEWHERE} <= known
    assert {*parser.FIELDS_ELSEWHERE} <= {field.name for field in dataclasses.fields(Recipe)}
    assert {format.partition(",")[0] for format in parser.FORMATS_ELSEWHERE} <= {*names.FORMATS}
    assert {*parser.SUBCOMMANDS_ELSEWHERE} <= {word for name, *_ in EVERY_ACTION for word in name.split()}


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


@pytest.mark.parametrize(
    "text, value",
    [
        ("base_lr=0.01", 0.01),
        ("flip=False", False),
        ("crop_area=(0.5, 1.0)", (0.5, 1.0)),
        ("decay=linear", "linear"),
        ("name=", ""),
        ("name=__import__('os').getcwd()", "__import__('os').getcwd()"),
    ],
)
def test_settings_are_literals_or_text_and_never_run(text, value):
    assert options.settings([text]) == {text.partition("=")[0]: value}


def test_of_two_settings_of_a_field_the_last_counts():
    assert options.settings(["base_lr=1", "flip=True", "base_lr=2"]) == {"base_lr": 2, "flip": True}


def test_a_setting_without_a_field_is_refused():
    with pytest.raises(ValueError, match="--set expects FIELD=VALUE; got '=1'"):
        options.settings(["=1"])


def test_an_image_size_is_height_and_width():
    sizes = [options.image_size(text) for text in ("384", "384x512", "32X8")]
    assert sizes == [(384, 384), (384, 512), (32, 8)]


@pytest.fixture
def interruptible():
    """Handle SIGINT, which is ignored in a process that a script has started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_stopped_command_says_what_continues_it(keras_vit, monkeypatch):
    monkeypatch.setattr(embed, "run", lambda args: signal.raise_signal(signal.SIGTERM))
    command = ("embed", "--model", "m", "--dataset", "folder:d", "--output", "o")
    before = signal.getsignal(signal.SIGTERM)
    line = "keras-vit: stopped by SIGTERM; the same command computes the parts that are missing\n"
    assert keras_vit(*command, status=143).stderr == line
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    "module, command, line",
    [
        (
            data,
            "data write --dataset digits --output o",
            "; the same command writes the files that are missing",
        ),
        (data, "data check --dataset digits", ""),
        (search, "search index i --model m --index x", "; the same command adds the images that are missing"),
        (search, "search query cat --index x", ""),
    ],
)
def test_only_actions_that_continue_say_so(module, command, line, keras_vit, monkeypatch, interruptible):
    monkeypatch.setattr(module, "run", lambda args: signal.raise_signal(signal.SIGINT))
    assert keras_vit(*command.split(), status=130).stderr == f"keras-vit: interrupted{line}\n"


def test_control_characters_in_a_message_are_escaped(refused):
    line = refused(("weights", "show", "no\x1b[31msuch.npz"), r"no\x1b[31msuch.npz")
    assert "\x1b" not in line


@pytest.mark.parametrize(
    "command",
    some(
        [
            "predict --model SOURCE IMAGE",
            "evaluate --model SOURCE --dataset digits",
            "fewshot --model SOURCE --dataset digits",
            "probe --model SOURCE --dataset digits",
            "inspect --model SOURCE --image IMAGE --output OUT",
            "export --model SOURCE --output OUT",
            "benchmark --model SOURCE",
            "weights show SOURCE",
            "weights convert SOURCE OUT.npz --layout vit_jax",
            "weights push SOURCE me/vit",
            "finetune --weights SOURCE --dataset digits --workdir OUT --total_steps 1",
        ],
        2,
    ),
    ids=lambda command: command.partition(" -")[0],
)
def test_every_command_that_opens_a_model_checks_what_it_opens(command, refused, weights, images, tmp_path):
    image = next(images.rglob("*.png"))
    words = command.replace("IMAGE", str(image)).replace("OUT", str(tmp_path / "out")).split()

    def of(source, *options):
        return *(source if word == "SOURCE" else word for word in words), *options

    refused(of(weights, "--sha256", "0" * 64), "has SHA-256", "0" * 64)
    refused(of("http://host.invalid/vit.npz"), "is not encrypted", "--sha256", "--trust")
    assert not (tmp_path / "out").exists()


def test_every_command_that_reads_a_data_set_can_leave_out_bad_images():
    without = set()
    for name, _, add_arguments in EVERY_ACTION:
        names = []
        if add_arguments:
            add_arguments(lambda *options, names=names, **_: names.extend(options))
        if "--dataset" in names and "--on_bad_image" not in names:
            without.add(name)
    assert without == {"data check"}  # which names them
