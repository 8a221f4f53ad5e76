import json

import numpy as np
import pytest
from reference.small import SMALL, small

from keras_vit import VisionTransformer
from keras_vit.export import folder as exporting
from keras_vit.export.folder import export_folder
from keras_vit.export.verify import run_live, run_saved_model, run_tflite


@pytest.fixture
def model():
    return small(num_layers=1)


@pytest.fixture
def images(rng):
    return rng.uniform(size=(4, 16, 16, 3)).astype("float32")


def test_the_folder_holds_both_formats_and_the_report(model, images, tmp_path):
    path = tmp_path / "export"
    report = export_folder(model, path, images)
    assert sorted(file.name for file in path.iterdir()) == [
        "model_float32.tflite",
        "saved_model",
        "verification.json",
    ]
    assert [*tmp_path.iterdir()] == [path]
    assert json.loads((path / "verification.json").read_text()) == report
    assert report["saved_model"]["path"] == str(path / "saved_model" / "1")
    assert report["tflite"]["path"] == str(path / "model_float32.tflite")
    assert report["tflite"]["bytes"] == (path / "model_float32.tflite").stat().st_size
    live = run_live(model, images)
    for name, runtime in (("saved_model", run_saved_model), ("tflite", run_tflite)):
        difference = np.abs(runtime(report[name]["path"], images) - live).max() / np.abs(live).max()
        assert difference <= 1e-5
        assert report[name]["max_logit_difference"] == pytest.approx(difference, abs=1e-7)
        assert report[name]["top1_agreement"] == 1.0


@pytest.fixture
def stubs(monkeypatch, model):
    """Formats that write a file at once, and runtimes that compute what the model does."""

    def write(source, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("an export")
        return path

    for name in ("saved_model", "tflite"):
        monkeypatch.setattr(exporting, f"export_{name}", write)
        monkeypatch.setattr(exporting, f"run_{name}", lambda path, images: run_live(model, images))


@pytest.mark.parametrize("error, kept", [(0, True), (5e-6, True), (2e-5, False), (np.nan, False)])
@pytest.mark.parametrize("name", ["saved_model", "tflite"])
def test_an_export_that_computes_something_else_is_not_kept(
    name, error, kept, stubs, model, images, tmp_path, monkeypatch
):
    live = run_live(model, images)
    monkeypatch.setattr(
        exporting, f"run_{name}", lambda path, images: live + error * np.abs(live).max() * np.eye(*live.shape)
    )
    if kept:
        export_folder(model, tmp_path / "export", images)
        assert (tmp_path / "export" / "verification.json").is_file()
    else:
        with pytest.raises(ValueError, match=f"the exported {name} differs from the live model by .*1e-05"):
            export_folder(model, tmp_path / "export", images)
        assert [*tmp_path.iterdir()] == []


def test_an_existing_folder_is_refused(model, images, tmp_path):
    (tmp_path / "export").mkdir()
    with pytest.raises(ValueError, match="export' exists; .* is free"):
        export_folder(model, tmp_path / "export", images)


def test_a_model_whose_head_is_still_zero_can_be_exported(images, tmp_path):
    report = export_folder(VisionTransformer(**SMALL), tmp_path / "export", images)
    assert report["tflite"]["max_logit_difference"] == 0


def test_a_model_of_mixed_precision_is_refused_in_one_line(images, tmp_path):
    with pytest.raises(ValueError, match="takes float32 models; this one computes in bfloat16"):
        export_folder(small(dtype="mixed_bfloat16"), tmp_path / "export", images)
    assert [*tmp_path.iterdir()] == []
