"""A run's folder: its configuration, its data, its metrics and its results."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import pathlib
import socket
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from keras_vit.messages import listed
from keras_vit.types import Path
from keras_vit.writing import atomic_open, atomic_path, atomic_write

if TYPE_CHECKING:
    from keras_vit.training.run_config import RunConfig

RESULT_TYPES = {"steps": int, "train_seconds": (int, float), "replicas": int, "bad_images": list}


class Workdir:
    """The folder of one run.

    `config.json` is the run's configuration and `data.json` a fingerprint of its data; `data_files.parquet`
    has a row for each file of a folder. `metrics.csv` has a row for each checkpoint, `steps.csv` the loss and
    the learning rate in between, `tensorboard/` both for TensorBoard. `checkpoints/` has the newest two
    checkpoints and the best; a finished run adds `model.keras`, `figures/` and `result.json`, and without
    labels `pretrainer.keras`, the whole model that was trained. Files are written atomically. The attributes
    `path`, `model`, `pretrainer`, `checkpoints` and `figures` are their paths.

    Args:
        path: The folder; `make` creates it.
        config: The run's configuration, as JSON values.

    Raises:
        ValueError: if the folder contains a run of another configuration, with the fields that differ, or
            anything that is not a run.
    """

    def __init__(self, path: Path, config: RunConfig) -> None:
        self.path = pathlib.Path(path).expanduser()
        self.model = self.path / "model.keras"
        self.pretrainer = self.path / "pretrainer.keras"
        self.checkpoints = self.path / "checkpoints"
        self.figures = self.path / "figures"
        self._data = self.path / "data.json"
        self._data_files = self.path / "data_files.parquet"
        self.config = json.loads(json.dumps(config))  # as it is read from a file
        self._check()

    def _check(self):
        """Raise ValueError if the folder contains anything but this run."""
        file = self.path / "config.json"
        if file.exists():
            stored, config = _flattened(read_json(file)), _flattened(self.config)
            differing = [
                f"{name} (there {stored.get(name)!r}, asked {config.get(name)!r})"
                for name in sorted({*stored, *config})
                if stored.get(name) != config.get(name)
            ]
            if differing:
                raise ValueError(
                    f"{os.fspath(self.path)!r} holds a run of another configuration; it differs in "
                    f"{listed(differing)}; choose another --workdir"
                )
        elif self.path.is_file() or any(self.path.glob("[!.]*")):  # The lock is a hidden file.
            raise ValueError(
                f"{os.fspath(self.path)!r} exists and is no run of keras-vit; choose another folder"
            )

    @contextlib.contextmanager
    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes out of the folder, which is created if it is missing.

        The operating system releases the lock of a process that is killed.

        Raises:
            ValueError: if another process has the lock, with its id and host.
        """
        from filelock import FileLock, Timeout  # Its import takes long.

        self.path.mkdir(parents=True, exist_ok=True)
        lock, holder = FileLock(self.path / ".lock"), self.path / ".lock-holder"
        try:
            lock.acquire(blocking=False)
        except Timeout:
            process = holder.read_text() if holder.exists() else "another process"
            raise ValueError(
                f"{process} trains in {os.fspath(self.path)!r}; wait for its end, or choose another --workdir"
            ) from None
        except OSError as error:  # Some file systems have no locks.
            print(f"{os.fspath(self.path)!r} cannot be locked ({error}); do not start another run in it")
        try:
            holder.write_text(f"process {os.getpid()} on {socket.gethostname()}")
            yield
        finally:
            lock.release()

    def make(self) -> None:
        """Create the folder and write the configuration.

        Raises:
            ValueError: if another run has been started there meanwhile.
        """
        self._check()
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / "config.json", self.config)
        for folder in (self.checkpoints, self.figures):
            folder.mkdir(exist_ok=True)

    def record_data(self, data: dict[str, Any]) -> None:
        """Write `data.json` if there is none.

        Args:
            data: The `fingerprint` of the data set.
        """
        from keras_vit.data.fingerprint import files_summary, write_files  # It imports TensorFlow.

        if not self._data.exists():
            if data["files"].num_rows:
                write_files(self._data_files, data["files"])
            write_json(self._data, {**data, "files": files_summary(data["files"])}, indent=None)

    def check_data(self, data: dict[str, Any]) -> None:
        """Raise ValueError if the data are not those that were recorded, with the differences.

        Args:
            data: The `fingerprint` of the data set.
        """
        from keras_vit.data.fingerprint import differences, files_summary, read_files

        if not self._data.exists():
            return
        recorded = read_json(self._data, classes=list, splits=dict, files=dict)
        if recorded["files"] == files_summary(data["files"]):
            recorded["files"] = data["files"]
        else:
            try:
                recorded["files"] = read_files(self._data_files)
            except (OSError, ValueError) as error:
                raise _damaged(self._data_files, error) from None
        try:
            differing = differences(recorded, data)
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(self._data, repr(error)) from None
        if differing:
            raise ValueError(
                f"the data of the run in {os.fspath(self.path)!r} have changed: {'; '.join(differing)}; "
                "restore them, or choose another --workdir"
            )

    @property
    def result(self) -> dict[str, Any] | None:
        """The result of the finished run, or None."""
        file = self.path / "result.json"
        return read_json(file, **RESULT_TYPES) if file.exists() else None

    def write_result(self, result: dict[str, Any]) -> None:
        write_json(self.path / "result.json", result)

    def metrics(self) -> list[dict[str, float]]:
        """The rows of `metrics.csv`, as dicts of floats."""
        return _read_table(self.path / "metrics.csv")

    def steps(self) -> list[dict[str, float]]:
        """The rows of `steps.csv`: `step`, `loss` and `learning_rate`."""
        return _read_table(self.path / "steps.csv")

    def write_metrics(self, rows: Sequence[dict[str, float]]) -> None:
        _write_table(self.path / "metrics.csv", rows)

    def write_steps(self, rows: Sequence[dict[str, float]]) -> None:
        _write_table(self.path / "steps.csv", rows)


def stored_recipe(path):
    """The recipe in the config.json of a run's folder; an empty dict without one."""
    file = pathlib.Path(path).expanduser() / "config.json"
    return read_json(file).get("recipe", {}) if file.exists() else {}


def read_json(path, **types):
    """The object in a JSON file.

    Args:
        path: pathlib.Path of the file.
        **types: The types of values that it must have, by key.

    Raises:
        ValueError: if the file is damaged.
    """
    try:
        value = json.loads(path.read_text())
        if not isinstance(value, dict):
            raise ValueError(f"expected a JSON object; got {type(value).__name__}")
        for name, kind in types.items():
            if not isinstance(value.get(name), kind):
                raise ValueError(f"{name} is {value.get(name)!r}")
    except ValueError as error:
        raise _damaged(path, error) from None
    return value


def write_json(path, value, indent=2):
    atomic_write(path, json.dumps(value, indent=indent, allow_nan=False) + "\n")


def save_model(model, path):
    """`model.save`, atomically."""
    with atomic_path(path) as temporary:
        model.save(temporary)


def _damaged(path, error):
    return ValueError(f"{os.fspath(path)!r} is damaged ({error}); remove it and start again")


def _read_table(path):
    if not path.exists():
        return []
    try:
        with path.open(newline="") as file:
            rows = [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
        if not all("step" in row for row in rows):
            raise ValueError("a row without a step")
    except (ValueError, TypeError, csv.Error) as error:
        raise _damaged(path, error) from None
    return rows


def _write_table(path, rows):
    # Not every row has validation scores.
    columns = [*dict.fromkeys(name for row in rows for name in row)]
    with atomic_open(path) as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


def _flattened(config, prefix=""):
    """The values of nested dicts by a name such as "recipe.base_lr"."""
    flat = {}
    for name, value in config.items():
        name = prefix + name
        flat |= _flattened(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat
