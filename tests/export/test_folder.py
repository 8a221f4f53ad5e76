import dataclasses
import hashlib
import json
import os
import tarfile

import numpy as np
import pytest
import tensorflow as tf
from reference.comparing import assert_close
from reference.small import one_block, run_live

from keras_vit.data.datasets import load_dataset
from keras_vit.export import folder as exporting
from keras_vit.export.archive import saved_model_folder
from keras_vit.export.folder import export_folder
from keras_vit.export.hub import Facts
from keras_vit.export.runtimes import open_exported
from keras_vit.export.verify import BOUNDS, draw_images, judge, row_of
from keras_vit.weights import from_pretrained, save_weights

FULL = "FULL" in os.environ
ALL = {
    "formats": ("saved_model", "tflite", "onnx", "hub"),
    "precisions": ("float32", "float16", "dynamic_int8", "int8"),
}
FILES = {
    "saved_model": "saved_model/1",
    "tflite_float32": "model_float32.tflite",
    "tflite_float16": "model_float16.tflite",
    "tflite_dynamic_int8": "model_dynamic_int8.tflite",
    "tflite_int8": "model_int8.tflite",
    "onnx": "model.onnx",
    "hub": "hub",
}


@pytest.fixture(scope="module")
def model():
    return one_block(num_classes=10, class_names=[*"0123456789"])


def digits(count):
    """The scanned digits with so many images a split."""
    dataset = load_dataset("digits")
    splits = {
        name: samples.take(range(count)) for name, samples in dataset.splits.items() if name != "validation"
    }
    return dataclasses.replace(dataset, splits=splits)


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    """(the folder with everything in it, its report)."""
    path = tmp_path_factory.mktemp("all") / "export"
    facts = Facts(licence="Apache-2.0", trained_on="scanned digits")
    return path, export_folder(model, path, **ALL, dataset=digits(40), name="digits", facts=facts)


def test_the_folder_holds_every_format_and_the_report(exported):
    path, report = exported
    assert {file.name for file in path.iterdir()} == {
        *(name.partition("/")[0] for name in FILES.values()),
        "verification.json",
    }
    assert [*path.parent.iterdir()] == [path]
    assert json.loads((path / "verification.json").read_text()) == report
    assert {name: row["path"] for name, row in report["formats"].items()} == {
        name: str(path / file) for name, file in FILES.items()
    }
    assert (report["dataset"], report["images"], report["judged"]) == ("digits, test", 40, "accuracy")
    assert {"keras_vit", "keras", "tensorflow"} <= report["versions"].keys()


@pytest.mark.slow
def test_a_quantized_model_with_lora_is_exported_with_plain_float_kernels(tmp_path):
    model = one_block(num_classes=10)
    model.quantize("int8")
    model.enable_lora(2)
    for weight in model.weights:
        if "lora_kernel_b" in weight.name:
            weight.assign(weight + 0.1)
    report = export_folder(model, tmp_path / "export", precisions=("float32",))
    plain = from_pretrained(save_weights(model, tmp_path / "model.npz", "vit_jax"))
    images = np.random.default_rng(0).uniform(size=(3, 16, 16, 3)).astype("float32")
    for name in ("saved_model", "tflite_float32"):
        exported = open_exported(report["formats"][name]["path"])
        logits = exported.predict_on_batch(exported.preprocessing(images))
        assert_close(logits, run_live(plain, images), 1e-5)


@pytest.mark.parametrize("name", FILES)
def test_a_row_says_what_its_file_computes(name, exported, model):
    path, report = exported
    row, file = report["formats"][name], path / FILES[name]
    if name == "hub":
        file = saved_model_folder(file / "digits.tar.gz")
    images, labels = draw_images(digits(40).split("test"), open_exported(file).preprocessing, 40)
    live = model.predict_on_batch(model.preprocessing(images))
    outputs = open_exported(file).predict_on_batch(images)
    difference = np.abs(outputs - live).max() / np.abs(live).max()
    assert row["max_logit_difference"] == pytest.approx(difference, rel=0.05, abs=1e-6)
    assert row["score"] == np.mean(outputs.argmax(-1) == labels)
    assert row["agreement"] == np.mean(outputs.argmax(-1) == live.argmax(-1))
    assert report["live"]["score"] == np.mean(live.argmax(-1) == labels)
    kind, bound = BOUNDS[name]
    assert ("256 images" in (row["warning"] or "")) == ("int8" in name)
    if kind == "max_logit_difference":
        assert difference <= bound


def test_quantised_files_are_smaller(exported):
    _, report = exported
    size = {name: row["bytes"] for name, row in report["formats"].items()}
    assert size["tflite_float32"] > size["tflite_float16"] > size["tflite_dynamic_int8"]


def test_the_hubs_page_tells_what_was_measured(exported):
    path, report = exported
    page = (path / "hub" / "digits.md").read_text()
    assert "scanned digits" in page and "Apache" in page
    assert f"{report['formats']['saved_model']['score']:.4g}" in page
    with tarfile.open(path / "hub" / "digits.tar.gz") as archive:
        held = archive.extractfile("saved_model.pb").read()
    stored = (path / "saved_model" / "1" / "saved_model.pb").read_bytes()
    assert hashlib.sha256(held).digest() == hashlib.sha256(stored).digest()


class _Skewed:
    """An opened export whose outputs are off by a share of the largest."""

    def __init__(self, opened, error):
        self.opened, self.error = opened, error

    def predict_on_batch(self, images):
        outputs = self.opened.predict_on_batch(images)
        return outputs + self.error * np.abs(outputs).max() * np.eye(*outputs.shape)


@pytest.mark.parametrize("error, kept", [(2e-5, False), *[(0, True), (np.nan, False)] * FULL])
def test_an_export_that_computes_something_else_is_not_kept(error, kept, model, tmp_path, monkeypatch):
    def skewed(path):
        return _Skewed(open_exported(path), error if str(path).endswith(".tflite") else 0)

    monkeypatch.setattr(exporting, "open_exported", skewed)
    if kept:
        export_folder(model, tmp_path / "export", precisions=("float32",))
        assert (tmp_path / "export" / "verification.json").is_file()
    else:
        what = "NaN or infinity" if np.isnan(error) else "outputs differ .* bound is 1e-05"
        with pytest.raises(ValueError, match=f"the exported tflite_float32 is not kept: .*{what}"):
            export_folder(model, tmp_path / "export", precisions=("float32",))
        assert [*tmp_path.iterdir()] == []


class _Turned:
    """An opened export whose outputs are another image's."""

    def __init__(self, opened):
        self.opened = opened

    def predict_on_batch(self, images):
        return 100 * self.opened.predict_on_batch(images[::-1])


OTHERWISE = [{"representation": True}, {"task": "regression"}]


@pytest.mark.parametrize("more", [{}, {"noise": True}, *OTHERWISE * FULL])
def test_int8_that_computes_something_else_is_not_kept(more, model, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "open_exported", lambda path: _Turned(open_exported(path)))
    monkeypatch.setattr(exporting, "judge", lambda name, *args: judge("tflite_dynamic_int8", *args))
    options = {name: value for name, value in more.items() if name != "noise"}
    if not more or "representation" in more:
        options["dataset"] = digits(256)
    with pytest.raises(ValueError, match="is not kept: (its outputs differ|it decides like)"):
        export_folder(model, tmp_path / "export", ("saved_model",), **options)
    assert [*tmp_path.iterdir()] == []


def test_full_int8_only_warns(model, tmp_path, monkeypatch):
    poor = {**BOUNDS, "tflite_int8": ("agreement", 1.01)}
    monkeypatch.setattr("keras_vit.export.verify.BOUNDS", poor)
    options = {"precisions": ("int8",), "integer_io": "uint8", "dataset": digits(256)}
    report = export_folder(model, tmp_path / "export", ("tflite",), **options)
    assert [*report["formats"]] == ["tflite_int8"]
    assert "decides like the live model" in report["formats"]["tflite_int8"]["warning"]
    assert sorted(file.name for file in (tmp_path / "export").iterdir()) == [
        "model_int8.tflite",
        "verification.json",
    ]


def test_without_a_data_set_noise_tells_the_errors_and_no_agreement(model, tmp_path):
    report = export_folder(model, tmp_path / "export", ("saved_model",))
    assert report["dataset"] is None and report["images"] == 16
    row = report["formats"]["saved_model"]
    assert row["agreement"] is None and row["score"] is None and row["max_logit_difference"] <= 1e-5


KINDS = {
    "mixed": ({"dtype": "mixed_bfloat16"}, {}),
    "representation": ({"pooling": "gap"}, {"representation": True}),
    "multi_label": ({}, {"task": "multi_label"}),
    "regression": ({}, {"task": "regression"}),
    "free size": ({"image_size": (None, None), "position_grid": (4, 4)}, {"image_size": (16, 24)}),
    "headless": ({"num_classes": None}, {}),
}
# Without FULL two kinds in one, and as SavedModels alone but for one: test_tflite.py converts the others.
TOGETHER = (("mixed", "representation"), ("multi_label",), ("regression", "free size"), ("headless",))


@pytest.mark.parametrize("kinds", [(kind,) for kind in KINDS] if FULL else TOGETHER, ids=", ".join)
def test_every_kind_of_model_is_exported(kinds, tmp_path):
    options, more = ({k: v for kind in kinds for k, v in KINDS[kind][i].items()} for i in (0, 1))
    model = one_block(**options)
    formats = ("saved_model", "tflite") if FULL or "headless" in kinds else ("saved_model",)
    report = export_folder(model, tmp_path / "export", formats, precisions=("float32",), **more)
    for row in report["formats"].values():
        assert row["max_logit_difference"] <= 1e-5
    opened = open_exported(report["formats"]["saved_model"]["path"])
    representation = more.get("representation") or model.num_classes is None
    output = (
        "representation" if representation else "values" if more.get("task") == "regression" else "logits"
    )
    assert opened.description.output == output
    assert opened.description.task == more.get("task", "single_label")


def test_versions_are_folders_of_tf_serving(model, tmp_path):
    export_folder(model, tmp_path / "export", ("saved_model",), version=7)
    folder = tmp_path / "export"
    assert tf.saved_model.contains_saved_model(str(folder / "saved_model" / "7"))
    first = (folder / "verification.json").read_text()
    report = export_folder(model, folder, ("saved_model",), version=8)
    assert report["formats"]["saved_model"]["path"] == str(folder / "saved_model" / "8")
    assert json.loads((folder / "verification-8.json").read_text()) == report
    assert (folder / "verification.json").read_text() == first
    assert sorted(file.name for file in (folder / "saved_model").iterdir()) == ["7", "8"]
    with pytest.raises(ValueError, match=r"export' has a version 7; choose version=9 \(--version 9\)"):
        export_folder(model, folder, ("saved_model",), version=7)
    with pytest.raises(ValueError, match="export' exists; '.*export-2' is free"):
        export_folder(model, folder, ("saved_model", "onnx"), version=9)


@pytest.mark.parametrize(
    "more, message",
    [
        ({"formats": ("tfjs",)}, "formats .*'tfjs'.* are unknown; choose from"),
        ({"formats": ()}, "formats .* choose from"),
        ({"precisions": ("int4",)}, "precisions .*'int4'.* are unknown; choose from"),
        ({"precisions": ("int8",)}, "int8 takes the ranges of its numbers from images"),
        ({"image_size": (8, 8)}, r"the model is of \(16, 16\) pixels; image_size asks for \(8, 8\)"),
        ({"task": "guess"}, "task 'guess' is unknown"),
        ({"batch_size": 0}, "batch_size must be an int above 0 or None; got 0"),
        ({"integer_io": "uint8"}, "integer_io is of LiteRT's int8"),
        ({"formats": ("hub",), "publisher": "Me"}, "publisher must consist of .*; got 'Me'"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_written(more, message, model, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_folder(model, tmp_path / "export", **more)
    assert [*tmp_path.iterdir()] == []


def test_an_existing_folder_is_refused_and_a_free_name_offered(model, tmp_path):
    (tmp_path / "export").mkdir()
    with pytest.raises(ValueError, match="export' exists; '.*/export-2' is free"):
        export_folder(model, tmp_path / "export")


def test_a_model_whose_head_is_still_zero_can_be_exported(tmp_path):
    model = one_block()
    for weight in model.get_layer("head").weights:
        weight.assign(0 * weight)
    report = export_folder(model, tmp_path / "export", ("saved_model",))
    assert report["formats"]["saved_model"]["max_logit_difference"] == 0


def test_weights_that_are_not_finite_are_refused(tmp_path):
    model = one_block()
    model.get_layer("head").bias.assign([np.nan] * 5)
    with pytest.raises(ValueError, match="head/bias"):
        export_folder(model, tmp_path / "export")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("moment", ["export_tflite", *["export_saved_model", "row_of"] * FULL])
def test_an_interrupted_export_leaves_nothing(moment, model, tmp_path, monkeypatch):
    def stop(*args, **options):
        if moment != "row_of" or len(args) > 2:  # not the live model's row
            raise KeyboardInterrupt
        return row_of(*args, **options)

    monkeypatch.setattr(exporting, moment, stop)
    with pytest.raises(KeyboardInterrupt):
        export_folder(model, tmp_path / "export")
    assert [*tmp_path.iterdir()] == []
