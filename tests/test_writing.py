import os
import re
import threading

import pytest
from made.disks import largest_file

from keras_vit.writing import check_target, whole_file, whole_path, write_whole


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    file = tmp_path / "found.csv"
    for content in ("ä\n", "newer\n"):
        with whole_file(file) as writing:
            writing.write(content)
        assert file.read_bytes() == content.encode()
    with pytest.raises(KeyboardInterrupt), whole_file(file) as writing:
        writing.write("half")
        raise KeyboardInterrupt
    assert file.read_text() == "newer\n" and [*tmp_path.iterdir()] == [file]


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_full_disk_leaves_the_old_file_and_is_said_of_the_new_one(size, tmp_path):
    file = tmp_path / "found.csv"
    write_whole(file, "old")
    message = f"'{file}' cannot be written: File too large"
    with pytest.raises(OSError, match=re.escape(message)), largest_file(5):
        write_whole(file, b"x" * size)
    assert file.read_text() == "old" and [*tmp_path.iterdir()] == [file]


def test_an_error_about_another_file_stays_as_it_is(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.png"), whole_path(tmp_path / "found.csv"):
        (tmp_path / "nowhere.png").read_text()


def test_other_files_of_the_folder_stay_as_they_are(tmp_path):
    (tmp_path / ".found.csv").write_text("hidden")
    write_whole(tmp_path / "found.csv", "new")
    assert (tmp_path / ".found.csv").read_text() == "hidden"


def test_a_link_stays_one(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link.csv").symlink_to(tmp_path / "there" / "found.csv")
    for content in ("new", "newer"):
        write_whole(tmp_path / "link.csv", content)
        assert (tmp_path / "link.csv").is_symlink()
        assert (tmp_path / "there" / "found.csv").read_text() == content


def test_a_pipe_is_written_directly(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    found = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_text()))
    reader.start()
    write_whole(tmp_path / "pipe", "through")
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
def test_a_target_that_cannot_be_written_is_refused_with_the_reason(name, problem, tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "locked").mkdir()
    for file in ("file", "fixed"):
        (tmp_path / file).write_text("old")
    # The superuser may write anywhere but on a read-only file system.
    monkeypatch.setattr(os, "access", lambda path, mode: path.name not in ("locked", "fixed"))
    message = f"'{tmp_path}/{name}' cannot be written: {problem.format(tmp_path)}"
    with pytest.raises(ValueError, match=re.escape(message)):
        check_target(f"{tmp_path}/{name}")
    with pytest.raises(ValueError, match=re.escape(message)):
        write_whole(f"{tmp_path}/{name}", "new")
    assert (tmp_path / "fixed").read_text() == "old"


def test_a_target_that_can_be_written_is_not_touched(tmp_path):
    check_target(tmp_path / "found.csv")
    assert not [*tmp_path.iterdir()]
