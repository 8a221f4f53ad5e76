"""`keras-vit export`, and the verbs that take what it writes."""

import json

import numpy as np
import pytest
from made.folders import write_table
from made.servers import Server, serving
from reference.small import small

import _keras_vit_cli
from keras_vit.cli.export import _facts, _name
from keras_vit.export import description

NAMES = ("cat", "dog")
FORMATS = ["saved_model", "tflite_float32", "tflite_int8", "onnx", "hub"]
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


def test_it_prints_a_table_and_writes_the_result(exported, model, images):
    path, done = exported
    assert done.stderr == ""
    result = json.loads((path / "result.json").read_text())
    assert result["model"] == str(model) and result["seconds"] > 0
    verified = json.loads((path / "verification.json").read_text())
    assert verified == {name: result[name] for name in verified}
    assert verified["dataset"] == f"{images.name}, test"
    found, header, *lines = done.stdout.splitlines()
    assert found == "2 classes (cat, dog): 14 train, 2 validation, 4 test"
    assert header.split()[:3] == ["format", "accuracy", "agreement"]
    assert [line.split()[0] for line in lines[:6]] == ["live", *FORMATS]
    for row in verified["formats"].values():
        assert row["path"] in done.stdout
    page = (path / "hub" / "pets.md").read_text()
    assert "license: apache-2.0" in page and str(images) not in page


@pytest.mark.parametrize("name", FILES)
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


@pytest.mark.parametrize("name", ["hub/pets.tar.gz", "model_float32.tflite", "model.onnx"])
def test_a_model_is_fetched_from_a_web_server(name, exported, keras_vit, images, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    content = (exported[0] / name).read_bytes()
    image = images / "cat" / "00.png"
    expected = keras_vit("predict", "--model", exported[0] / name, image).stdout
    with serving(Server()) as server:
        server.answers["/1/" + name] = lambda handler: handler.answer(200, content)
        trust = ["--trust"] * name.endswith(".tar.gz")
        done = keras_vit("predict", "--model", f"{server.url}/1/{name}", image, *trust)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


@pytest.mark.parametrize("task", ["multi_label", "regression"])
def test_a_runs_task_goes_with_it(task, keras_vit, tmp_path):
    """From labels to a trained model to an export to what `predict` and `evaluate` say of it."""
    lines = [f"{i}.png,{i % 2},{(i // 2) % 2}" for i in range(24)]
    data = write_table(tmp_path / "data", "file,red,round", *lines, images=[f"{i}.png" for i in range(24)])
    numbers = {
        "seed": 5,
        "total_steps": 2,
        "batch_size": 4,
        "checkpoint_every": 2,
        "eval_every": 2,
        "warmup_steps": 0,
        "label_smoothing": 0.0,
    }
    settings = [f"--set={name}={value}" for name, value in {**numbers, "task": task}.items()]
    run = tmp_path / "run"
    trained = keras_vit(
        *("finetune", "--model", "mu/8", "--image_size", 16, "--recipe", "digits", "--workdir", run),
        *("--dataset", f"folder:{data}", *settings),
    )
    assert trained.returncode == 0, trained.stderr
    out = tmp_path / "out"
    done = keras_vit("export", "--model", run, "--output", out, "--dataset", f"folder:{data}", "--json")
    assert done.returncode == 0, done.stderr
    assert description.read_description(out / "saved_model" / "1").seed == 5  # for the split
    judged = {"multi_label": "mean_average_precision", "regression": "mae"}[task]
    assert json.loads(done.stdout)["judged"] == judged
    data = ("--dataset", f"folder:{data}", "--json")
    for file in ("saved_model/1", "model_float32.tflite")[task == "regression" :][:1]:
        live, of_file = (
            json.loads(keras_vit("predict", "--model", m, tmp_path / "data", "--json").stdout)
            for m in (run, out / file)
        )
        assert len(live) == len(of_file) == 24
        for row, expected in zip(of_file, live):
            if task == "regression":
                np.testing.assert_allclose(row["values"], expected["values"], atol=1e-5)
            else:
                scores = {c["name"]: c["probability"] for c in row["classes"]}
                assert scores.keys() == {"red", "round"}
                assert scores == pytest.approx({c["name"]: c["probability"] for c in expected["classes"]})
        scores = [
            json.loads(keras_vit("evaluate", "--model", m, *data).stdout)[judged] for m in (run, out / file)
        ]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def exists(model, path):
    (path / "out").mkdir()
    return [], ["out' exists", "out-2' is free"]


def unwritable(model, path):
    (path / "out").write_text("a file")
    return ["--output", path / "out" / "deeper"], ["out"]


def unknown_format(model, path):
    return ["--formats", "saved_model,tfjs"], ["got tfjs", "saved_model, tflite, onnx, hub"]


def uncalibrated(model, path):
    return ["--precisions", "int8"], ["int8", "give a data set"]


def other_classes(model, path):
    return ["--dataset", "digits"], [
        "data set's 10 classes (0, 1, 2, 3, 4 and 5 more); got one with 2 outputs (cat, dog)"
    ]


def exported_already(model, path):
    (path / "m.tflite").write_bytes(b"")
    return ["--model", path / "m.tflite"], ["is an exported model", "wanted the run"]


def no_model(model, path):
    return ["--model", path / "none.keras", "--image_size", "24"], ["no such model file"]


def unfit_name(model, path):
    return ["--formats", "hub", "--name", "My Flowers"], ['letters, digits, "_", "." and "-"', "'My Flowers'"]


def not_finite(model, path):
    broken = small(num_layers=1)
    broken.get_layer("head").bias.assign([float("nan")] * 5)
    broken.save(path / "nan.keras")
    return ["--model", path / "nan.keras"], ["head/bias", "not finite"]


@pytest.mark.parametrize(
    "make",
    [
        exists,
        unwritable,
        unknown_format,
        uncalibrated,
        other_classes,
        exported_already,
        no_model,
        unfit_name,
        not_finite,
    ],
)
def test_bad_input_is_refused_in_one_line(make, keras_vit, refused, model, tmp_path):
    more, words = make(model, tmp_path)
    before = {*tmp_path.iterdir()}
    refused(keras_vit("export", "--model", model, "--output", tmp_path / "out", *more), *words)
    assert {*tmp_path.iterdir()} == before


@pytest.mark.parametrize("verb", ["finetune", "fewshot"])
def test_what_an_export_cannot_do_is_refused(verb, exported, keras_vit, refused, tmp_path):
    option = {"finetune": "--weights", "fewshot": "--model"}[verb]
    more = ("--workdir", tmp_path / "run") if verb == "finetune" else ()
    done = keras_vit(verb, option, exported[0] / "model_float32.tflite", "--dataset", "digits", *more)
    refused(done, "model_float32.tflite")


def test_another_size_is_resized_first(model, keras_vit, tmp_path):
    done = keras_vit(
        "export",
        "--model",
        model,
        "--output",
        tmp_path / "out",
        "--image_size",
        "24",
        "--formats",
        "saved_model",
    )
    assert done.returncode == 0, done.stderr
    assert description.read_description(tmp_path / "out" / "saved_model" / "1").image_size == (24, 24)


def test_the_parsers_lists_are_the_packages():
    assert _keras_vit_cli.TASKS == description.TASKS


@pytest.mark.parametrize(
    "source, name",
    [
        ("runs/my flowers/", "my-flowers"),
        ("runs/pets/model.keras", "pets"),
        ("ViT-B_16.npz", "ViT-B_16"),
        ("hf://timm/vit_base_patch16_224.augreg_in21k", "vit_base_patch16_224"),
        ("vit_b16_augreg_in21k_ft_in1k", "vit_b16_augreg_in21k_ft_in1k"),
    ],
)
def test_a_name_for_the_hub_is_made_of_the_models(source, name):
    assert _name(source) == name


def test_the_catalogue_tells_what_is_known_of_the_weights():
    parser = _keras_vit_cli.parser()
    source = "vit_b16_augreg_in21k_ft_in1k"
    facts = _facts(parser.parse_args(["export", "--model", source, "--output", "out"]))
    assert (facts.licence, facts.trained_on) == ("apache-2.0", "ImageNet-21k, then ImageNet-1k")
    assert facts.source == "hf://timm/vit_base_patch16_224.augreg_in21k_ft_in1k"
    unknown = _facts(parser.parse_args(["export", "--model", "mine.keras", "--output", "out"]))
    assert (unknown.licence, unknown.trained_on, unknown.source) == (None, None, None)
