import errno
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from keras_vit.data import fingerprint
from keras_vit.training.workdir import Workdir, stored_recipe

CONFIG = {"dataset": "digits", "recipe": {"base_lr": 0.1, "crop_area": (0.5, 1.0)}, "model": None}


RECORD = {"test_accuracy": 0.5, "steps": 2, "train_seconds": 0.1, "replicas": 1, "bad_images": []}


@pytest.fixture
def workdir(tmp_path):
    workdir = Workdir(tmp_path / "run", CONFIG)
    workdir.make()
    return workdir


def test_a_folder_is_created_by_make_and_opened_with_the_same_configuration(tmp_path):
    workdir = Workdir(tmp_path / "run", CONFIG)
    assert not workdir.path.exists()
    assert workdir.result is None and workdir.metrics() == []
    workdir.make()
    assert json.loads((workdir.path / "config.json").read_text())["recipe"]["crop_area"] == [0.5, 1.0]
    assert workdir.checkpoints.is_dir() and workdir.figures.is_dir()
    again = Workdir(tmp_path / "run", CONFIG)
    again.make()
    again.write_result(RECORD)
    assert workdir.result == RECORD


def test_the_folder_may_be_below_that_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Workdir("~/run", CONFIG).make()
    assert stored_recipe("~/run")["base_lr"] == 0.1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_another_configuration_is_refused_with_the_fields_that_differ(tmp_path):
    other = {**CONFIG, "model": "B/16", "recipe": {**CONFIG["recipe"], "base_lr": 0.2}}
    workdir = Workdir(tmp_path / "run", other)
    Workdir(tmp_path / "run", CONFIG).make()
    with pytest.raises(ValueError, match="another configuration"):
        workdir.make()
    with pytest.raises(ValueError) as refused:
        Workdir(tmp_path / "run", other)
    message = str(refused.value)
    assert "model (there None, asked 'B/16')" in message
    assert "recipe.base_lr (there 0.1, asked 0.2)" in message
    assert "crop_area" not in message and "dataset" not in message


def test_a_result_of_nan_is_not_written(workdir):
    with pytest.raises(ValueError, match="not JSON compliant"):
        workdir.write_result(RECORD | {"test_loss": float("nan")})
    assert workdir.result is None


def test_a_folder_that_is_not_a_run_is_refused(tmp_path):
    (tmp_path / "chapter.tex").write_text("")
    with pytest.raises(ValueError, match="exists and is no run of keras-vit; choose another folder"):
        Workdir(tmp_path, CONFIG)


def test_tables_are_read_as_they_were_written(workdir):
    rows = [{"step": 5, "loss": 1 / 3}, {"step": 10, "loss": 1e-12, "val_loss": 0.75}]
    workdir.write_metrics(rows)
    assert workdir.metrics() == rows
    assert (workdir.path / "metrics.csv").read_text().splitlines()[0] == "step,loss,val_loss"
    workdir.write_metrics(rows[:1])
    assert workdir.metrics() == rows[:1]


FILES = fingerprint.FILES.empty_table()
DATA = {"version": None, "classes": ["cat"], "splits": {"train": 2}, "files": FILES}
DATA |= {"tokenizer": None, "mask_values": None}
DAMAGED = [
    *(("config.json", text) for text in ("[]", "{")),
    ("data.json", json.dumps({**DATA, "files": None})),
    ("result.json", json.dumps(RECORD | {"train_seconds": "long"})),
    *(("metrics.csv", text) for text in ("step,loss\n1,a", "loss\n1", "\xff")),
]


@pytest.mark.parametrize("name, content", DAMAGED, ids=ascii)
def test_a_damaged_file_is_named(name, content, workdir):
    (workdir.path / name).write_bytes(content.encode("latin1"))
    with pytest.raises(ValueError, match=f"{name}' is damaged .*; remove it and start again"):
        Workdir(workdir.path, CONFIG).check_data(DATA)
        assert workdir.result or workdir.metrics()


def test_the_list_of_files_is_read_only_if_they_have_changed(workdir):
    file = {"file": "a.png", "split": "train", "label": '"cat"', "size": 3, "time": 5}
    files = fingerprint.FILES.empty_table().from_pylist([file], fingerprint.FILES)
    data = {**DATA, "files": files}
    workdir.record_data(data)
    changed = {**data, "files": data["files"].slice(1)}
    with pytest.raises(ValueError, match="have changed: 1 file missing from train, first: a.png; restore"):
        workdir.check_data(changed)
    (workdir.path / "data_files.parquet").write_bytes(b"PAR1")
    workdir.check_data(data)
    with pytest.raises(ValueError, match="data_files.parquet' is damaged .*; remove it and start again"):
        workdir.check_data(changed)


def test_one_process_has_the_lock_and_a_killed_one_releases_it(tmp_path):
    workdir, other = Workdir(tmp_path, {}), Workdir(tmp_path, {})
    acquire = "import filelock, os, sys; filelock.FileLock(sys.argv[1]).acquire(); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", acquire, tmp_path / ".lock"])
    assert done.returncode == -signal.SIGKILL and (tmp_path / ".lock").exists()
    with workdir.locked():
        words = f"process {os.getpid()} on {socket.gethostname()} trains in '{tmp_path}'; wait for its end"
        with pytest.raises(ValueError, match=words), other.locked():
            pytest.fail("two have the lock")
    with other.locked():
        pass


def test_a_file_system_without_locks_is_reported(tmp_path, monkeypatch, capsys):
    def refuse(fd):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("filelock._unix.lock_fd_nonblocking", refuse)
    with Workdir(tmp_path / "run", {}).locked():
        assert "run' cannot be locked ([Errno 37] No locks available)" in capsys.readouterr().out
