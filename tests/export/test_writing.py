"""Paths that every writer of exports accepts, and full disks."""

import pathlib

import pytest
from made.disks import largest_file

from keras_vit.export.archive import extract_archive, make_archive
from keras_vit.export.tflite import export_tflite


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
