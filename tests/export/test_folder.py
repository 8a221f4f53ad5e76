import json
import re
import tarfile
from unittest import mock

import numpy as np
import pytest
from made.exports import FILES, digits, pixels
from made.tables import by_table
from reference.comparing import assert_close
from reference.small import one_block, run_live

from keras_vit.export import folder as exporting
from keras_vit.export.exported_model import ExportedModel, open_exported
from keras_vit.export.folder import export_folder
from keras_vit.export.tar_archive import saved_model_folder
from keras_vit.weights import from_pretrained, save_weights


def test_the_folder_holds_every_format_and_the_report(exported, report):
    names = {name.partition("/")[0] for name in FILES.values()}
    assert {file.name for file in exported.iterdir()} == names | {"verification.json"}
    assert [*exported.parent.iterdir()] == [exported]
    page = (exported / "web" / "model.tflite").read_bytes()
    assert page == (exported / FILES["tflite_dynamic_int8"]).read_bytes()  # It is not converted again.
    paths = {name: str(exported / file) for name, file in FILES.items()}
    assert {name: row["path"] for name, row in report["formats"].items()} == paths
    assert (report["dataset"], report["images"], report["judged"]) == ("digits, test", 40, "accuracy")
    assert {"keras_vit", "keras", "tensorflow"} <= report["versions"].keys()


@pytest.mark.parametrize(
    "opened, file",
    [
        (lambda path: open_exported(path).image_size, "model_float32.onnx"),
        (saved_model_folder, "hub/vit.tar.gz"),
        (saved_model_folder, "."),
    ],
    ids=["open_exported", "an archive", "an export"],
)
def test_the_path_of_an_export_is_a_str_or_a_pathlib_path(opened, file, exported):
    assert opened(exported / file) == opened(str(exported / file))


def test_the_hub_archive_holds_the_saved_model_and_its_page_the_accuracy(exported, saved_model, report):
    page = (exported / "hub" / "vit.md").read_text()
    assert "scanned digits" in page and "Apache" in page and f"{report['live']['score']:.4g}" in page
    with tarfile.open(exported / "hub" / "vit.tar.gz") as archive:
        content = archive.extractfile("saved_model.pb").read()
    assert content == (saved_model / "saved_model.pb").read_bytes()


@pytest.mark.slow
def test_an_export_beyond_its_tolerance_is_discarded(model, copied, tmp_path, monkeypatch):
    class Skewed(ExportedModel):
        def main_output(self, images):
            outputs = super().main_output(images)
            return outputs + 2e-5 * np.abs(outputs).max() * np.eye(*outputs.shape)

    monkeypatch.setattr(exporting, "ExportedModel", Skewed)
    with pytest.raises(ValueError, match="the saved_model export is discarded: its outputs differ"):
        export_folder(model, tmp_path / "export", ("saved_model",))
    assert [*tmp_path.iterdir()] == []


@pytest.fixture
def failing(monkeypatch):
    """Names of formats whose files are beyond their tolerance; the others are written without a check."""
    names = set()

    def export(format, job, target, reference):
        target.parent.mkdir(parents=True, exist_ok=True)
        for file in (target, target.with_suffix(format.beside)) if format.beside else (target,):
            file.write_text(format.name)
        if format.name in names:
            raise ValueError("its outputs differ")
        return {"score": None, "max_logit_difference": 2e-7, "warning": None}

    reference = mock.Mock(images=np.zeros((2, 16, 16, 3)), **{"measure.return_value": {"score": None}})
    monkeypatch.setattr(exporting, "_export", export)
    monkeypatch.setattr(exporting, "live_reference", lambda *_: reference)
    return names


def test_of_several_formats_those_that_do_not_fail_stay(failing, model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    failing |= {"tflite_float16", "onnx_float32"}
    precisions, formats = map(iter, (("float32", "float16"), ("tflite", "onnx")))
    report = export_folder(model, tmp_path / "export", precisions=precisions, formats=formats)
    expected = {name: f"the {name} export is discarded: its outputs differ" for name in failing}
    lines = re.sub(r"[\d.]+ s,", "s,", capsys.readouterr().err).replace("\r", "\n").splitlines()
    assert "tflite_float32: s, verified, the largest difference is 2.0e-07" in lines
    assert {*expected.values()} <= {*lines}
    assert report["failed"] == expected and [*report["formats"]] == ["tflite_float32"]
    assert {file.name for file in (tmp_path / "export").iterdir()} == {
        "model_float32.tflite",
        "verification.json",
    }


@pytest.mark.parametrize("name", ["saved_model", "onnx_float32"])
def test_nothing_stays_if_all_formats_fail(name, failing, model, tmp_path):
    failing.add(name)
    with pytest.raises(ValueError, match=f"^the {name} export is discarded: its outputs differ$"):
        export_folder(model, tmp_path / "export", ("onnx",))
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "options, more, output",
    [
        ({"dtype": "mixed_bfloat16"}, {}, "logits"),
        ({"pooling": "gap"}, {"representation": True}, "representation"),
    ],
)
def test_a_model_that_exports_are_no_copies_of_is_exported(options, more, output, tmp_path):
    """Other kinds of models: test_formats.py, and by this function test_web.py."""
    report = export_folder(one_block(**options), tmp_path / "export", precisions=("float32",), **more)
    for row in report["formats"].values():
        assert row["max_logit_difference"] <= 1e-5
        assert open_exported(row["path"]).description.output == output


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
    for name in ("saved_model", "tflite_float32"):
        exported = open_exported(report["formats"][name]["path"])
        assert_close(exported.predict_on_batch(pixels()), run_live(plain, pixels()), 1e-5)


@pytest.mark.slow
def test_versions_are_folders_of_tf_serving(model, copied, tmp_path):
    """Verified on noise, which has no labels."""
    folder = tmp_path / "export"
    export_folder(model, folder, ("saved_model",), version=7)
    first = (folder / "verification.json").read_text()
    report = export_folder(model, folder, ("saved_model",), version=8)
    row = report["formats"]["saved_model"]
    assert row["path"] == str(folder / "saved_model" / "8") and row["max_logit_difference"] <= 1e-5
    assert (report["dataset"], report["images"], row["agreement"], row["score"]) == (None, 16, None, None)
    assert json.loads((folder / "verification-8.json").read_text()) == report
    assert (folder / "verification.json").read_text() == first
    assert sorted(file.name for file in (folder / "saved_model").iterdir()) == ["7", "8"]
    with pytest.raises(ValueError, match=r"export' has a version 7; choose version=9 \(--version 9\)"):
        export_folder(model, folder, ("saved_model",), version=7)
    with pytest.raises(ValueError, match="export' exists; '.*export-2' is free"):
        export_folder(model, folder, ("saved_model", "onnx"), version=9)


@by_table(
    "options, message",
    [
        ({"image_size": (8, 8)}, r"image_size must be the model's \(16, 16\); got \(8, 8\)"),
        ({"dataset": digits(2), "task": "regression"}, "expected a data set for the task 'regression'"),
        ({"batch_size": 0}, "batch_size must be a positive int; got 0"),
        ({"images": 0}, "images must be a positive int; got 0"),
        ({"version": -1}, "version must be an int of at least 0; got -1"),
        ({"version": "../1"}, "version must be an int of at least 0; got '../1'"),
        ({"formats": ("web",), "representation": True}, "a web page shows one row of class scores or values"),
        ({"formats": ("web",), "drawing": 0}, "drawing must be a positive int or None; got 0"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_written(options, message, model, tmp_path):
    """Those of other formats: contract/test_wrong_input.py."""
    with pytest.raises(ValueError, match=message):
        export_folder(model, tmp_path / "export", **options)
    assert [*tmp_path.iterdir()] == []
