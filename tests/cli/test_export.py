"""`keras-vit export`, and the subcommands that accept its files."""

import json

import numpy as np
import pytest
from made.folders import write_table
from made.servers import Server, serving
from made.tables import by_table
from reference.comparing import assert_close

from keras_vit import export, from_pretrained
from keras_vit.cli.export import _facts, _name
from keras_vit.cli.parser import parser
from keras_vit.export import description, open_exported

FAST = ["saved_model", "tflite"], ["float32"]
ALL = ["saved_model", "tflite", "onnx", "hub"], ["float32", "int8"]


@pytest.fixture(scope="module", params=[FAST, pytest.param(ALL, marks=pytest.mark.slow)], ids=["fast", "all"])
def exported(model, images, keras_vit, request, tmp_path_factory):
    """The folder of an export, its formats, and the process."""
    folder, chosen = tmp_path_factory.mktemp("exported") / "export", map(",".join, request.param)
    options = [text for pair in zip(("--formats", "--precisions"), chosen) for text in pair]
    data = ("--dataset", f"folder:{images}", "--name", "pets", "--license", "Apache-2.0")
    done = keras_vit("export", "--model", model, "--output", folder, *options, *data)
    assert done.stderr == ""
    return folder, request.param, done


@pytest.mark.slow
def test_it_prints_a_table_and_writes_the_result(exported, model, images):
    path, (formats, precisions), done = exported
    result = json.loads((path / "result.json").read_text())
    assert result["model"] == str(model) and result["seconds"] > 0
    verified = json.loads((path / "verification.json").read_text())
    assert verified == {name: result[name] for name in verified}
    assert verified["dataset"] == f"{images.name}, test"
    found, header, *lines = done.stdout.splitlines()
    assert found == "2 classes (cat, dog): 14 train, 2 validation, 4 test; validation and test held out"
    assert header.split()[:3] == ["format", "accuracy", "agreement"]
    names = ["saved_model", *(f"tflite_{precision}" for precision in precisions)]
    names += [f"onnx_{precision}" for precision in precisions] * ("onnx" in formats) + formats[3:]
    assert [line.split()[0] for line in lines[: len(names) + 1]] == ["live", *names]
    assert all(row["path"] in done.stdout for row in verified["formats"].values())
    if "hub" in formats:
        page = (path / "hub" / "pets.md").read_text()
        assert "Apache-2.0" in page and str(images) not in page


def test_a_format_beyond_its_bound_is_named_and_the_others_are_listed(
    model, keras_vit, tmp_path, monkeypatch
):
    row = dict.fromkeys(("score", "agreement", "max_logit_difference", "mean_logit_difference", "warning"))
    row |= {"bytes": 2048, "ms_batch_1": 1.0, "ms_batch_16": 9.0, "path": "e/m.tflite", "delegates": {}}
    report = {"judged": "accuracy", "live": row, "formats": {"tflite_float32": row}, "images": 2}
    failed = {"onnx_float32": "the onnx_float32 export is discarded: its outputs differ"}
    report |= {"dataset": None, "margin": 0.5, "failed": failed}
    monkeypatch.setattr(export, "export_folder", lambda *_, **options: report)
    (tmp_path / "export").mkdir()
    done = keras_vit("export", "--model", model, "--output", tmp_path / "export", status=2)
    assert done.stderr == f"keras-vit: {failed['onnx_float32']}\n"
    assert "e/m.tflite" in done.stdout
    assert json.loads((tmp_path / "export" / "result.json").read_text())["failed"] == report["failed"]


@pytest.mark.slow
def test_an_export_is_downloaded(exported, keras_vit, images, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    image = images / "cat" / "00.png"
    names = ["model_float32.tflite", *["hub/pets.tar.gz", "model_float32.onnx"] * ("hub" in exported[1][0])]
    for name in names:
        content = (exported[0] / name).read_bytes()
        expected = keras_vit("predict", "--model", exported[0] / name, image).stdout
        with serving(Server()) as server:
            server.answers["/1/" + name] = lambda handler, content=content: handler.answer(200, content)
            trust = ["--trust"] * name.endswith(".tar.gz")
            done = keras_vit("predict", "--model", f"{server.url}/1/{name}", image, *trust)
        assert done.stdout == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "task, score, file",
    [
        ("multi_label", "mean_average_precision", "saved_model/1"),
        ("regression", "mae", "model_float32.tflite"),
    ],
)
def test_a_runs_task_goes_with_it(task, score, file, keras_vit, json_of, tmp_path):
    """From labels to a trained model, to an export, to `predict` and `evaluate`."""
    lines = [f"{i}.png,{i % 2},{(i // 2) % 2}" for i in range(24)]
    images = write_table(tmp_path / "data", "file,red,round", *lines, images=[f"{i}.png" for i in range(24)])
    data, run, out = ("--dataset", f"folder:{images}"), tmp_path / "run", tmp_path / "out"
    changes = f"seed=5 total_steps=2 batch_size=4 checkpoint_every=2 eval_every=2 warmup_steps=0 task={task}"
    settings = [f"--set={change}" for change in (*changes.split(), "label_smoothing=0.0")]
    given = ("--model", "mu/8", "--image_size", 16, "--recipe", "digits", "--workdir", run)
    keras_vit("finetune", *given, *data, *settings)
    assert json_of("export", "--model", run, "--output", out, *data)["judged"] == score
    assert description.read_description(out / "saved_model" / "1").seed == 5  # for the split
    live, of_file = (json_of("predict", "--model", model, images) for model in (run, out / file))
    for row, expected in zip(of_file, live, strict=True):
        if task == "regression":
            np.testing.assert_allclose(row["values"], expected["values"], atol=1e-5)
        else:
            scores = {c["name"]: c["probability"] for c in row["classes"]}
            assert scores == pytest.approx({c["name"]: c["probability"] for c in expected["classes"]})
    scores = [json_of("evaluate", "--model", model, *data)[score] for model in (run, out / file)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


@pytest.mark.slow
def test_another_patch_size_is_exported(model, keras_vit, json_of, tmp_path):
    given = ("--output", tmp_path / "out", "--patch_size", 4, "--formats", "saved_model")
    found = json_of("export", "--model", model, *given)
    assert found["formats"]["saved_model"]["max_logit_difference"] < 1e-5
    exported = open_exported(tmp_path / "out" / "saved_model" / "1")
    resized = from_pretrained(model, patch_size=4)
    images = np.random.default_rng(0).uniform(-1, 1, (2, *resized.image_size, 3)).astype("float32")
    colors = images * 0.5 + 0.5
    assert_close(exported.predict_on_batch(colors), resized.predict_on_batch(images), 1e-5)


@pytest.mark.slow
def test_another_size_is_resized_first(model, keras_vit, tmp_path):
    given = ("--output", tmp_path / "out", "--image_size", 24, "--formats", "saved_model")
    keras_vit("export", "--model", model, *given)
    assert description.read_description(tmp_path / "out" / "saved_model" / "1").image_size == (24, 24)


@by_table(
    "source, name",
    [
        ("runs/my flowers/", "my-flowers"),
        ("runs/pets/model.keras", "pets"),
        ("ViT-B_16.npz", "ViT-B_16"),
        ("hf://timm/vit_base_patch16_224.augreg_in21k", "vit_base_patch16_224"),
    ],
)
def test_the_name_for_the_hub_is_the_models(source, name):
    assert _name(source) == name


def test_facts_of_the_weights_are_the_catalogues():
    parse = parser().parse_args
    source = "vit_b16_augreg_in21k_ft_in1k"
    facts = _facts(parse(["export", "--model", source, "--output", "out"]))
    assert (facts.license, facts.trained_on) == ("apache-2.0", "ImageNet-21k, then ImageNet-1k")
    assert facts.source == "hf://timm/vit_base_patch16_224.augreg_in21k_ft_in1k"
    unknown = _facts(parse(["export", "--model", "mine.keras", "--output", "out"]))
    assert (unknown.license, unknown.trained_on, unknown.source) == (None, None, None)
