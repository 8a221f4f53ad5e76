import errno
import json
import os
import signal
import socket
import subprocess
import sys

import pytest
from reference.small import small

from keras_vit.training.workdir import Workdir, save_model, write_json

CONFIG = {"dataset": "digits", "recipe": {"base_lr": 0.1, "crop_area": (0.5, 1.0)}, "model": None}


def test_nothing_is_written_before_make(tmp_path):
    workdir = Workdir(tmp_path / "run", CONFIG)
    assert not workdir.path.exists()
    assert workdir.result is None and workdir.metrics() == []
    workdir.make()
    assert json.loads((workdir.path / "config.json").read_text())["recipe"]["crop_area"] == [0.5, 1.0]
    assert workdir.checkpoints.is_dir() and workdir.figures.is_dir()


def test_the_same_configuration_is_taken_again(tmp_path):
    Workdir(tmp_path / "run", CONFIG).make()
    again = Workdir(tmp_path / "run", CONFIG)
    again.make()
    record = {"test_accuracy": 0.5, "steps": 2, "train_seconds": 0.1, "replicas": 1, "bad_images": []}
    again.write_result(record)
    assert Workdir(tmp_path / "run", CONFIG).result == record


def test_another_configuration_is_refused_with_the_fields_that_differ(tmp_path):
    Workdir(tmp_path / "run", CONFIG).make()
    other = {**CONFIG, "model": "B/16", "recipe": {**CONFIG["recipe"], "base_lr": 0.2}}
    with pytest.raises(ValueError) as refused:
        Workdir(tmp_path / "run", other)
    message = str(refused.value)
    assert "model (there None, asked 'B/16')" in message
    assert "recipe.base_lr (there 0.1, asked 0.2)" in message
    assert "crop_area" not in message and "dataset" not in message


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_something_else_is_not_taken_for_a_run(kind, tmp_path):
    path = tmp_path / "run"
    if kind == "folder":
        path.mkdir()
        path = path / ".."
        (tmp_path / "thesis.tex").write_text("")
    else:
        path.write_text("")
    with pytest.raises(ValueError, match="exists and is no run of keras-vit; choose another folder"):
        Workdir(path, CONFIG)


def test_tables_are_read_as_they_were_written(tmp_path):
    workdir = Workdir(tmp_path / "run", CONFIG)
    workdir.make()
    rows = [{"step": 5, "loss": 1 / 3}, {"step": 10, "loss": 1e-12, "val_loss": 0.75}]
    workdir.write_metrics(rows)
    assert workdir.metrics() == rows
    assert (workdir.path / "metrics.csv").read_text().splitlines()[0] == "step,loss,val_loss"
    workdir.write_metrics(rows[:1])
    assert workdir.metrics() == rows[:1]


def broken_model():
    model = small()
    model.get_config = lambda: {"wrong": object()}
    return model


@pytest.mark.parametrize(
    "write, content",
    [(write_json, {"value": object()}), (lambda path, model: save_model(model, path), broken_model)],
    ids=["json", "model"],
)
def test_a_failed_write_leaves_the_old_file_whole(write, content, tmp_path):
    path = tmp_path / "file.keras"
    path.write_text("old")
    with pytest.raises(TypeError):
        write(path, content() if callable(content) else content)
    assert path.read_text() == "old"


def test_json_without_a_form_for_nan_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "result.json", {"test_loss": float("nan")})
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("content", ["[]", "null", "{"])
@pytest.mark.parametrize("name", ["config.json", "data.json"])
def test_a_damaged_file_is_named(name, content, tmp_path):
    Workdir(tmp_path / "run", {"a": 1}).make()
    (tmp_path / "run" / name).write_text(content)
    with pytest.raises(ValueError, match=f"{name}' is damaged .*; remove it"):
        Workdir(tmp_path / "run", {"a": 1}).check_data({})


@pytest.mark.parametrize(
    "name, content",
    [
        ("result.json", {}),
        ("result.json", {"steps": 2, "train_seconds": "long", "replicas": 1, "bad_images": []}),
        ("data.json", {"classes": ["cat"], "splits": {"train": 2}}),
        ("data.json", {"classes": ["cat"], "splits": {"train": 2}, "files": {}}),
        ("data.json", {"version": None, "classes": ["cat"], "splits": {"train": 2}, "files": {"a.png": 3}}),
    ],
)
def test_json_without_a_required_field_is_named(name, content, tmp_path):
    workdir = Workdir(tmp_path / "run", {"a": 1})
    workdir.make()
    write_json(tmp_path / "run" / name, content)
    with pytest.raises(ValueError, match=f"{name}' is damaged .*; remove it and start again"):
        workdir.check_data({"version": None, "classes": ["cat"], "splits": {"train": 2}, "files": {}})
        assert workdir.result


@pytest.mark.parametrize(
    "content", ["step,loss\n1,a", "loss\n1", "step,loss\n,1", "step\n1,2", "step\n\0", "\xff"], ids=ascii
)
def test_a_damaged_table_is_named(content, tmp_path):
    workdir = Workdir(tmp_path / "run", {})
    workdir.make()
    (tmp_path / "run" / "metrics.csv").write_bytes(content.encode("latin1"))
    with pytest.raises(ValueError, match="metrics.csv' is damaged .*; remove it and start again"):
        workdir.metrics()


def test_one_process_has_the_lock_and_a_killed_one_releases_it(tmp_path):
    workdir, other = Workdir(tmp_path, {}), Workdir(tmp_path, {})
    acquire = "import filelock, os, sys; filelock.FileLock(sys.argv[1]).acquire(); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", acquire, tmp_path / ".lock"])
    assert done.returncode == -signal.SIGKILL and (tmp_path / ".lock").exists()
    with workdir.locked(), workdir.locked():  # It is reentrant.
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


def test_a_run_that_was_started_meanwhile_is_not_overwritten(tmp_path):
    workdir = Workdir(tmp_path / "run", CONFIG)
    Workdir(tmp_path / "run", {**CONFIG, "model": "B/16"}).make()
    with pytest.raises(ValueError, match="another configuration"):
        workdir.make()
