import errno
import os
import pathlib
import subprocess
import sys
import time

import pytest
from made.disks import largest_file
from reference.small import one_block

from keras_vit.export.archive import extract_archive, make_archive, saved_model_folder
from keras_vit.export.description import describe, read_description
from keras_vit.export.onnx import export_onnx, read_onnx_description
from keras_vit.export.runtimes import open_exported
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.tflite import export_tflite
from keras_vit.export.tflite_metadata import read_tflite_description
from keras_vit.export.writing import new_path

MAKE = {
    "file": pathlib.Path.write_text,
    "folder": lambda path, text: path.mkdir(),
    "link": lambda path, text: path.symlink_to("nowhere"),
}


def write(path):
    with new_path(path) as temporary:
        temporary.write_text("whole")


@pytest.mark.parametrize("name", ["model.onnx", "deep/er/model.onnx", "1"])
def test_it_appears_at_the_end(name, tmp_path):
    path = tmp_path / name
    with new_path(path) as temporary:
        assert temporary.name == path.name
        temporary.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize(
    "names, free",
    [
        (["vit.tar.gz"], "vit-2.tar.gz"),
        (["vit.tar.gz", "vit-2.tar.gz", "vit-4.tar.gz"], "vit-5.tar.gz"),
        (["vit.b16.tflite", "vit-9.tflite"], "vit.b16-2.tflite"),
        (["model.onnx", "model-3.tflite"], "model-2.onnx"),
        (["v1.5"], "v1.5-2"),
        (["v1.5", "v1.5-2", "v1-7.5"], "v1.5-3"),
        (["a+b", "aab-7"], "a+b-2"),
        (["3", "10", "readme"], "11"),
        (["export", "export-2b", "export-x"], "export-2"),
    ],
)
@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_name_that_is_taken_is_refused_and_a_free_one_offered(kind, names, free, tmp_path):
    for name in names:
        MAKE[kind](tmp_path / name, "mine")
    with pytest.raises(ValueError) as error:
        write(tmp_path / names[0])
    assert str(error.value) == f"{str(tmp_path / names[0])!r} exists; {str(tmp_path / free)!r} is free"
    assert {path.name for path in tmp_path.iterdir()} == {*names}
    write(tmp_path / free)


def test_a_link_to_nothing_is_a_taken_name_at_once(tmp_path):
    (tmp_path / "1").symlink_to("nowhere")
    with pytest.raises(ValueError, match="/1' exists; '.*/2' is free"), new_path(tmp_path / "1"):
        pytest.fail("there is nothing to do")


@pytest.mark.parametrize("path", [".", "", "..", "../here", "../nowhere/../here"])
def test_a_path_without_a_name_of_its_own_is_resolved(path, tmp_path, monkeypatch):
    (tmp_path / "here" / "in").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here" / ("in" if path == ".." else ""))
    with pytest.raises(ValueError, match="here' exists; '.*here-2' is free"):
        write(path)


def test_a_name_that_goes_up_again_writes_nothing_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="exists"):
        write("nowhere/..")
    assert [*tmp_path.iterdir()] == []


def test_a_tilde_is_home_wherever_a_path_is_given(tmp_path, monkeypatch):
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
    read = {"1": read_description, "m.tflite": read_tflite_description, "m.onnx": read_onnx_description}
    for name, description_of in read.items():
        assert description_of(f"~/{name}") == open_exported(f"~/{name}").description == describe(model)
    assert {path.name for path in home.glob("[!.]*")} == {"1", "2", "m.tflite", "m.onnx", "m.tar.gz"}
    assert [*elsewhere.iterdir()] == []


def test_what_killed_exports_left_is_removed_and_what_others_write_is_not(tmp_path):
    kill = "import filelock, os, sys; filelock.FileLock(sys.argv[1]).acquire(); os.kill(os.getpid(), 9)"
    ages = {"killed": 61, "new": 59, "unlocked": 24 * 3600 - 60, "of-0.1": 24 * 3600 + 60}
    for name in ages:
        folder = tmp_path / f".writing-{name}"
        (folder / "vit").mkdir(parents=True)
        if name == "killed":
            subprocess.run([sys.executable, "-c", kill, folder / ".lock"])
        if name == "new":
            (folder / ".lock").touch()
    (tmp_path / ".writing-file.npz").touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / ".writing-link").symlink_to("mine")
    with new_path(tmp_path / "1") as under_way:
        ages[under_way.parent.name.removeprefix(".writing-")] = 10 * 24 * 3600
        for name, age in ages.items():
            then = time.time() - age
            os.utime(tmp_path / f".writing-{name}", (then, then))
        write(tmp_path / "2")
        assert under_way.parent.is_dir()
        under_way.mkdir()
    left = {"1", "2", ".writing-new", ".writing-unlocked", ".writing-file.npz", ".writing-link", "mine"}
    assert {path.name for path in tmp_path.iterdir()} == left


@pytest.mark.parametrize("taken", MAKE)
@pytest.mark.parametrize("ours", ["file", "folder"])
def test_what_appears_meanwhile_is_not_replaced(ours, taken, tmp_path):
    path = tmp_path / "1"
    with pytest.raises(ValueError, match="/1' exists; '.*/2' is free"), new_path(path) as temporary:
        MAKE[ours](temporary, "ours")
        MAKE[taken](path, "theirs")
    assert [*tmp_path.iterdir()] == [path]
    assert taken != "file" or path.read_text() == "theirs"
    assert taken != "folder" or [*path.iterdir()] == []
    assert taken != "link" or path.is_symlink()


def test_an_error_of_the_system_names_the_target(tmp_path):
    for target, reason in (("model.onnx", "[Errno 28] No space left"), ("1", "lines of it")):
        with pytest.raises(OSError) as error, new_path(tmp_path / target) as temporary:
            temporary.write_text("half")
            if target == "1":
                raise OSError("lines\n of it")
            raise OSError(errno.ENOSPC, "No space left")
        assert str(error.value) == f"{str(tmp_path / target)!r} cannot be written: {reason}"
        assert [*tmp_path.iterdir()] == []


def test_of_one_within_another_the_outer_target_is_named(tmp_path):
    export = tmp_path / "export"
    with pytest.raises(OSError) as error, new_path(export) as folder, new_path(folder / "hub") as temporary:
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, "No space left")
    assert str(error.value) == f"{str(export)!r} cannot be written: [Errno 28] No space left"
    assert [*tmp_path.iterdir()] == []


def test_other_errors_stay_what_they_are(tmp_path):
    for stop in (ValueError("no such task"), KeyboardInterrupt()):
        with pytest.raises(type(stop)) as error, new_path(tmp_path / "1") as temporary:
            temporary.write_text("half")
            raise stop
        assert error.value is stop
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("target", ["file/1", "file/deeper/1"])
def test_a_file_in_the_way_is_named(target, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(b"x")
    with pytest.raises(OSError, match=rf"^'.*/{target}\.tar\.gz' cannot be written: .*/file.*'$"):
        make_archive(tmp_path / "saved", tmp_path / f"{target}.tar.gz")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_full_disk_ends_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved = export_saved_model(one_block(hidden_size=48, mlp_dim=192), "saved", warmup=())
    archive = make_archive(saved, "whole.tar.gz")
    for write, source, name, limit in (
        (export_tflite, saved, "m.tflite", 20_000),
        (export_onnx, saved, "m.onnx", 20_000),
        (make_archive, saved, "m.tar.gz", 1_000),
        (make_archive, saved, "m.tar.gz", 100_000),
        (extract_archive, archive, "saved", 20_000),
    ):
        with pytest.raises(OSError) as error, largest_file(limit):
            write(source, f"out/{name}")
        assert str(error.value) == f"'out/{name}' cannot be written: [Errno 27] File too large"
    assert [*pathlib.Path("out").iterdir()] == []
