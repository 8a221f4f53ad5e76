import errno
import os
import re
import subprocess
import sys
import threading
import time

import pytest
from made.disks import largest_file

from keras_vit.writing import atomic_open, atomic_path, atomic_write, check_writable

MAKE = {
    "file": lambda path, text: path.write_text(text),
    "folder": lambda path, text: path.mkdir(),
    "link": lambda path, text: path.symlink_to("nowhere"),
}


def write_new(path):
    with atomic_path(path, overwrite=False) as temporary:
        temporary.write_text("complete")


def test_a_file_appears_complete_or_not_at_all(tmp_path):
    file = tmp_path / "found.csv"
    for content in ("ä\n", "newer\n"):
        with atomic_open(file) as opened:
            opened.write(content)
        assert file.read_bytes() == content.encode()
    with pytest.raises(KeyboardInterrupt), atomic_open(file) as opened:
        opened.write("half")
        raise KeyboardInterrupt
    assert file.read_text() == "newer\n" and [*tmp_path.iterdir()] == [file]


@pytest.mark.parametrize("name", ["model.onnx", "deep/er/model.onnx", "1"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_new_path_appears_at_the_end_with_its_parents(kind, name, tmp_path):
    path = tmp_path / name
    with atomic_path(path, overwrite=False) as temporary:
        assert temporary.name == path.name
        MAKE[kind](temporary, "complete")
        assert not path.exists()
    assert path.is_dir() if kind == "folder" else path.read_text() == "complete"
    assert [*path.parent.iterdir()] == [path]


def test_contents_are_on_the_disk_before_the_rename(tmp_path, monkeypatch):
    done, replace = [], os.replace
    monkeypatch.setattr(os, "fsync", lambda file: done.append(os.readlink(f"/proc/self/fd/{file}")))
    monkeypatch.setattr(os, "replace", lambda *paths: done.append("replace") or replace(*paths))
    with atomic_path(tmp_path / "1", overwrite=False) as folder:
        (folder / "deeper").mkdir(parents=True)
        (folder / "deeper" / "file").write_text("complete")
    assert done == [os.fspath(folder / "deeper" / "file"), "replace"]


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_full_disk_leaves_the_old_file_and_the_message_names_the_new_one(size, tmp_path):
    file = tmp_path / "found.csv"
    atomic_write(file, "old")
    message = f"'{file}' cannot be written: File too large"
    with pytest.raises(OSError, match=re.escape(message)), largest_file(5):
        atomic_write(file, b"x" * size)
    assert file.read_text() == "old" and [*tmp_path.iterdir()] == [file]


@pytest.mark.parametrize("overwrite", [True, False])
def test_an_error_without_a_path_names_the_target(overwrite, tmp_path):
    for error, reason in (
        (OSError(errno.ENOSPC, "No space left"), "No space left"),
        (OSError("lines\n of it"), "lines of it"),
    ):
        with pytest.raises(OSError) as found, atomic_path(tmp_path / "1", overwrite) as temporary:
            temporary.write_text("half")
            raise error
        assert str(found.value) == f"{str(tmp_path / '1')!r} cannot be written: {reason}"
        assert [*tmp_path.iterdir()] == []


def test_of_nested_writes_the_outer_target_is_named(tmp_path):
    with (
        pytest.raises(OSError) as error,
        atomic_path(tmp_path / "export", overwrite=False) as folder,
        atomic_path(folder / "hub", overwrite=False) as temporary,
    ):
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, "No space left")
    assert str(error.value) == f"{str(tmp_path / 'export')!r} cannot be written: No space left"
    assert [*tmp_path.iterdir()] == []


def test_an_error_about_another_file_passes_unchanged(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.png"), atomic_path(tmp_path / "found.csv"):
        (tmp_path / "nowhere.png").read_text()


def test_other_errors_pass_unchanged(tmp_path):
    for stop in (ValueError("no such task"), KeyboardInterrupt()):
        with pytest.raises(type(stop)) as error, atomic_path(tmp_path / "1") as temporary:
            temporary.write_text("half")
            raise stop
        assert error.value is stop
    assert [*tmp_path.iterdir()] == []


def test_a_link_stays_one(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link.csv").symlink_to(tmp_path / "there" / "found.csv")
    for content in ("new", "newer"):
        atomic_write(tmp_path / "link.csv", content)
        assert (tmp_path / "link.csv").is_symlink()
        assert (tmp_path / "there" / "found.csv").read_text() == content


def test_a_pipe_is_written_directly(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    found = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_text()))
    reader.start()
    atomic_write(tmp_path / "pipe", "through")
    reader.join()
    assert found == ["through"] and (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize(
    "name, problem",
    [
        ("none/found.csv", "there is no folder '{}/none'"),
        ("file/found.csv", "there is no folder '{}/file'"),
        ("folder", "it is a folder"),
        ("folder/", "it is a folder"),
        ("locked/found.csv", "the folder '{}/locked' is read-only"),
        ("fixed", "it is read-only"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused_with_the_reason(name, problem, tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "locked").mkdir()
    for file in ("file", "fixed"):
        (tmp_path / file).write_text("old")
    # The superuser may write anywhere but on a read-only file system.
    monkeypatch.setattr(os, "access", lambda path, mode: path.name not in ("locked", "fixed"))
    message = f"'{tmp_path}/{name}' cannot be written: {problem.format(tmp_path)}"
    with pytest.raises(ValueError, match=re.escape(message)):
        check_writable(f"{tmp_path}/{name}")
    with pytest.raises(ValueError, match=re.escape(message)):
        atomic_write(f"{tmp_path}/{name}", "new")
    assert (tmp_path / "fixed").read_text() == "old"


def test_the_check_of_a_path_writes_nothing(tmp_path):
    check_writable(tmp_path / "found.csv")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("target", ["file/1", "file/deeper/1"])
def test_a_file_instead_of_a_parent_is_named(target, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match=rf"^'.*/{target}' cannot be written: .*/file.*'$"):
        write_new(tmp_path / target)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "names, free",
    [
        (["vit.tar.gz"], "vit-2.tar.gz"),
        (["vit.tar.gz", "vit-2.tar.gz", "vit-4.tar.gz"], "vit-5.tar.gz"),
        (["vit.b16.tflite", "vit-9.tflite"], "vit.b16-2.tflite"),
        (["model.onnx", "model-3.tflite"], "model-2.onnx"),
        (["v1.5", "v1.5-2", "v1-7.5"], "v1.5-3"),
        (["a+b", "aab-7"], "a+b-2"),
        (["3", "10", "readme"], "11"),
        (["export", "export-2b", "export-x"], "export-2"),
    ],
)
@pytest.mark.parametrize("kind", ["folder", "file"])
def test_an_existing_path_is_refused_with_a_free_one(kind, names, free, tmp_path):
    for name in names:
        MAKE[kind](tmp_path / name, "mine")
    with pytest.raises(ValueError) as error:
        write_new(tmp_path / names[0])
    assert str(error.value) == f"{str(tmp_path / names[0])!r} exists; {str(tmp_path / free)!r} is free"
    assert {path.name for path in tmp_path.iterdir()} == {*names}
    write_new(tmp_path / free)


def test_a_link_to_nothing_exists(tmp_path):
    (tmp_path / "1").symlink_to("nowhere")
    with pytest.raises(ValueError, match="/1' exists; '.*/2' is free"):
        write_new(tmp_path / "1")


@pytest.mark.parametrize("taken", MAKE)
@pytest.mark.parametrize("ours", ["file", "folder"])
def test_what_appears_during_the_write_is_not_replaced(ours, taken, tmp_path):
    path = tmp_path / "1"
    with pytest.raises(ValueError, match="/1' exists; '.*/2' is free"), atomic_path(path, False) as temporary:
        MAKE[ours](temporary, "ours")
        MAKE[taken](path, "theirs")
    assert [*tmp_path.iterdir()] == [path]
    assert taken != "file" or path.read_text() == "theirs"
    assert taken != "folder" or [*path.iterdir()] == []
    assert taken != "link" or path.is_symlink()


@pytest.mark.parametrize("path", [".", "", "..", "../here", "../nowhere/../here"])
def test_a_path_without_a_name_is_resolved(path, tmp_path, monkeypatch):
    (tmp_path / "here" / "in").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here" / ("in" if path == ".." else ""))
    with pytest.raises(ValueError, match="here' exists; '.*here-2' is free"):
        write_new(path)
    with pytest.raises(ValueError, match="exists"):
        write_new("missing/..")
    assert {item.name for item in tmp_path.rglob("*")} == {"here", "in"}


def test_stale_temporary_folders_are_removed_and_those_in_use_are_not(tmp_path):
    kill = "import filelock, os, sys; filelock.FileLock(sys.argv[1]).acquire(); os.kill(os.getpid(), 9)"
    ages = {"killed": 61, "new": 59, "unlocked": 24 * 3600 - 60, "old": 24 * 3600 + 60}
    for name in ages:
        folder = tmp_path / f".writing-{name}"
        (folder / "vit").mkdir(parents=True)
        if name == "killed":
            subprocess.run([sys.executable, "-c", kill, folder / ".lock"])
        if name == "new":
            (folder / ".lock").touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / ".writing-link").symlink_to("mine")
    with atomic_path(tmp_path / "1", overwrite=False) as in_use:
        ages[in_use.parent.name.removeprefix(".writing-")] = 10 * 24 * 3600
        for name, age in ages.items():
            then = time.time() - age
            os.utime(tmp_path / f".writing-{name}", (then, then))
        atomic_write(tmp_path / "2", "complete")
        assert in_use.parent.is_dir()
        in_use.mkdir()
    left = {"1", "2", ".writing-new", ".writing-unlocked", ".writing-link", "mine"}
    assert {path.name for path in tmp_path.iterdir()} == left
