"""Paths that every writer of exports accepts, and full disks."""

import pathlib

import pytest
from made.disks import largest_file
from reference.small import one_block

from keras_vit.export.archive import extract_archive, make_archive, saved_model_folder
from keras_vit.export.description import describe
from keras_vit.export.exported_model import open_exported
from keras_vit.export.onnx import export_onnx
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.tflite import export_tflite


@pytest.mark.slow
def test_a_tilde_is_expanded_in_every_path(tmp_path, monkeypatch):
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for folder in (home, elsewhere):
        folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(elsewhere)
    model = one_block()
    assert export_saved_model(model, "~/1", warmup=()) == home / "1"
    assert export_tflite("~/1", "~/m.tflite", precision="float32") == home / "m.tflite"
    assert export_onnx("~/1", "~/m.onnx") == home / "m.onnx"
    assert make_archive("~/1", "~/m.tar.gz") == home / "m.tar.gz"
    assert extract_archive("~/m.tar.gz", "~/2") == home / "2"
    assert saved_model_folder("~/2") == saved_model_folder("~") == home / "2"
    for name in ("1", "m.tflite", "m.onnx"):
        assert open_exported(f"~/{name}").description == describe(model)
    assert {path.name for path in home.glob("[!.]*")} == {"1", "2", "m.tflite", "m.onnx", "m.tar.gz"}
    assert [*elsewhere.iterdir()] == []


def test_a_full_disk_ends_in_one_line(saved_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    archive = make_archive(saved_model, "whole.tar.gz")
    for write, source, name, limit in (
        (export_tflite, saved_model, "m.tflite", 10_000),
        (make_archive, saved_model, "m.tar.gz", 1_000),
        (extract_archive, archive, "saved", 10_000),
    ):
        with pytest.raises(OSError) as error, largest_file(limit):
            write(source, f"out/{name}")
        assert str(error.value) == f"'out/{name}' cannot be written: File too large"
    assert [*pathlib.Path("out").iterdir()] == []
