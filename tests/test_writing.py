import errno
import os
import re
import threading
import time

import pytest
from made.disks import largest_file
from made.tables import by_table

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


@pytest.mark.parametrize("kind, name", [("file", "deep/er/model.onnx"), ("folder", "1")])
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


def test_a_full_disk_leaves_the_old_file_and_the_message_names_the_new_one(tmp_path):
    file = tmp_path / "found.csv"
    atomic_write(file, "old")
    message = f"'{file}' cannot be written: File too large"
    with pytest.raises(OSError, match=re.escape(message)), largest_file(5):
        atomic_write(file, b"x" * 10)
    assert file.read_text() == "old" and [*tmp_path.iterdir()] == [file]


def test_an_error_without_a_path_names_the_outer_target(tmp_path):
    with (
        pytest.raises(OSError) as error,
        atomic_path(tmp_path / "export", overwrite=False) as folder,
        atomic_path(folder / "hub", overwrite=False),
    ):
        raise OSError(errno.ENOSPC, "No space left")
    assert str(error.value) == f"{str(tmp_path / 'export')!r} cannot be written: No space left"
    assert [*tmp_path.iterdir()] == []


def test_other_errors_pass_unchanged(tmp_path):
    for stop in (ValueError("no such task"), KeyboardInterrupt(), FileNotFoundError(2, "missing", "x.png")):
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


@by_table(
    "name, problem",
    [
        ("none/found.csv", "there is no folder '{}/none'"),
        ("file/found.csv", "there is no folder '{}/file'"),
        ("folder/", "it is a folder"),
        ("locked/found.csv", "the folder '{}/locked' is read-only"),
        ("fixed", "it is read-only"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused_with_the_reason(name, problem, tmp_path, monkeypatch):
    for folder in ("folder", "locked"):
        (tmp_path / folder).mkdir()
    for file in ("file", "fixed"):
        (tmp_path / file).write_text("old")
    # The superuser may write anywhere but on a read-only file system.
    monkeypatch.setattr(os, "access", lambda path, mode: path.name not in ("locked", "fixed"))
    message = re.escape(f"'{tmp_path}/{name}' cannot be written: {problem.format(tmp_path)}")
    for write in (check_writable, lambda path: atomic_write(path, "new")):
        with pytest.raises(ValueError, match=message):
            write(f"{tmp_path}/{name}")
    assert (tmp_path / "fixed").read_text() == "old"


@by_table(
    "names, free",
    [
        (["vit.tar.gz", "vit-2.tar.gz", "vit-4.tar.gz"], "vit-3.tar.gz"),
        (["vit.b16.tflite", "vit-9.tflite"], "vit.b16-2.tflite"),
        (["v1.5", "v1.5-2", "v1-7.5"], "v1.5-3"),
        (["3", "10", "readme"], "11"),
        (["export", "export-2b", "export-x"], "export-2"),
    ],
)
def test_an_existing_path_is_refused_with_a_free_one(names, free, tmp_path):
    for name in names:
        (tmp_path / name).mkdir()
    with pytest.raises(ValueError) as error:
        write_new(tmp_path / names[0])
    assert str(error.value) == f"{str(tmp_path / names[0])!r} exists; {str(tmp_path / free)!r} is free"
    assert {path.name for path in tmp_path.iterdir()} == {*names}
    write_new(tmp_path / free)


@pytest.mark.parametrize("taken", MAKE)
def test_what_appears_during_the_write_is_not_replaced(taken, tmp_path):
    path = tmp_path / "1"
    with pytest.raises(ValueError, match="/1' exists; '.*/2' is free"), atomic_path(path, False) as temporary:
        temporary.write_text("ours")
        MAKE[taken](path, "theirs")
    assert [*tmp_path.iterdir()] == [path]
    assert taken != "file" or path.read_text() == "theirs"


@by_table("path", [".", "", "in/..", "../nowhere/../here"])
def test_a_path_without_a_name_is_resolved(path, tmp_path, monkeypatch):
    (tmp_path / "here" / "in").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ValueError, match="here' exists; '.*here-2' is free"):
        write_new(path)


def test_temporary_folders_of_killed_processes_are_removed_after_a_day(tmp_path):
    for name, hours in {"old": 25, "new": 23}.items():
        (tmp_path / f".writing-{name}" / "vit").mkdir(parents=True)
        then = time.time() - hours * 3600
        os.utime(tmp_path / f".writing-{name}", (then, then))
    (tmp_path / "mine").mkdir()
    os.utime(tmp_path / "mine", (0, 0))
    (tmp_path / ".writing-link").symlink_to("mine")
    atomic_write(tmp_path / "2", "complete")
    assert {path.name for path in tmp_path.iterdir()} == {"2", ".writing-new", ".writing-link", "mine"}
