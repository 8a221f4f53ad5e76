"""A run's folder: what it is a run of, how far it has come, and what came out."""

import contextlib
import csv
import functools
import json
import os
import pathlib
import socket

from keras_vit.writing import atomic_open, atomic_path, atomic_write


class Workdir:
    """A folder that holds one run.

    `config.json` says what the run is, and `data.json` what its data were. `metrics.csv` has a row for each
    checkpoint, `steps.csv` the loss and the learning rate in between, `tensorboard/` both for TensorBoard.
    `checkpoints/` has the last two states and the best; `model.keras`, `figures/` and `result.json` are there
    when it is finished. Files appear whole: they are written under another name first.

    Args:
        path: The folder; `make` makes it.
        config: What the run is a run of, as JSON values.
        before: Values of fields that a configuration lacks if an earlier version has stored it: what runs did
            before there were these fields.

    Raises:
        ValueError: if the folder holds a run of another configuration, with the fields that differ,
            or something that is no run.
    """

    def __init__(self, path, config, before=None):
        self.path = pathlib.Path(path)
        self.config = json.loads(json.dumps(config))  # as it will be read back
        self._before = json.loads(json.dumps(before or {}))
        self._check()

    def _check(self):
        """Refuse a folder that holds something else."""
        file = self.path / "config.json"
        if file.exists():
            _compare(file, read_json(file), self.config, self._before)
        elif self.path.exists() and not (self.path.is_dir() and _is_empty(self.path)):
            raise ValueError(
                f"{os.fspath(self.path)!r} exists and is no run of keras-vit; choose another folder"
            )

    @functools.cached_property
    def _lock(self):
        from filelock import FileLock  # takes long to import

        return FileLock(self.path / ".lock")

    @contextlib.contextmanager
    def locked(self):
        """Within, no other process can enter `locked` of this folder, which is made where it is missing.

        The lock goes with the process, however that ends.

        Raises:
            ValueError: if another process is within, with its number and host.
        """
        from filelock import Timeout

        self.path.mkdir(parents=True, exist_ok=True)
        holder = self.path / ".lock-holder"
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            other = holder.read_text() if holder.exists() else "another process"
            raise ValueError(
                f"{other} trains in {os.fspath(self.path)!r}; wait for its end, or choose another --workdir"
            ) from None
        except OSError as error:  # a file system without locks
            print(f"{os.fspath(self.path)!r} cannot be locked ({error}); start no other run in it")
        try:
            holder.write_text(f"process {os.getpid()} on {socket.gethostname()}")
            yield
        finally:
            self._lock.release()

    def make(self):
        """Make the folder, so that the run in it can be found again.

        Raises:
            ValueError: if it holds another run by now.
        """
        self._check()
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / "config.json", self.config)
        for folder in (self.checkpoints, self.figures):
            folder.mkdir(exist_ok=True)

    def record_data(self, found):
        """Write `data.json` if there is none: the data of a run that begins, or that version 0.1 began.

        Args:
            found: The `fingerprint` of the data set.
        """
        if not self._data.exists():
            write_json(self._data, found, indent=None)

    def check_data(self, found):
        """Refuse other data than those that were recorded, if any were.

        Args:
            found: The `fingerprint` of the data set.

        Raises:
            ValueError: if they differ, with the differences.
        """
        # `import keras_vit` is without TensorFlow, which this imports.
        from keras_vit.data.fingerprint import differences

        if not self._data.exists():
            return
        before = read_json(self._data, classes=list, splits=dict, files=dict)
        try:
            differing = differences(before, found)
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(self._data, repr(error)) from None
        if differing:
            raise ValueError(
                f"the data of the run in {os.fspath(self.path)!r} have changed: {'; '.join(differing)}; "
                "restore them, or choose another --workdir"
            )

    @property
    def _data(self):
        return self.path / "data.json"

    @property
    def checkpoints(self):
        return self.path / "checkpoints"

    @property
    def model(self):
        return self.path / "model.keras"

    @property
    def figures(self):
        return self.path / "figures"

    @property
    def result(self):
        """What the finished run wrote, or None."""
        file = self.path / "result.json"
        kinds = {"steps": int, "train_seconds": (int, float), "replicas": int, "bad_images": list}
        return read_json(file, **kinds) if file.exists() else None

    def write_result(self, result):
        write_json(self.path / "result.json", result)

    def metrics(self):
        """The rows of `metrics.csv`, numbers as numbers."""
        return _read_table(self.path / "metrics.csv")

    def steps(self):
        """The rows of `steps.csv`: `step`, `loss` and `learning_rate`."""
        return _read_table(self.path / "steps.csv")

    def write_metrics(self, rows):
        _write_table(self.path / "metrics.csv", rows)

    def write_steps(self, rows):
        _write_table(self.path / "steps.csv", rows)


def read_json(path, **kinds):
    """The object in a JSON file.

    Args:
        path: pathlib.Path of the file.
        **kinds: The classes of values that it must hold, by their keys.

    Raises:
        ValueError: if there is something else in it.
    """
    try:
        value = json.loads(path.read_text())
        if not isinstance(value, dict):
            raise ValueError(f"wanted a JSON object; got {type(value).__name__}")
        for name, kind in kinds.items():
            if not isinstance(value.get(name), kind):
                raise ValueError(f"{name} is {value.get(name)!r}")
    except ValueError as error:
        raise _damaged(path, error) from None
    return value


def _damaged(path, error):
    return ValueError(f"{os.fspath(path)!r} is damaged ({error}); remove it and start again")


def write_json(path, value, indent=2):
    atomic_write(path, json.dumps(value, indent=indent, allow_nan=False) + "\n")


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
    with atomic_open(path) as file:
        columns = {name: None for row in rows for name in row}  # not all rows have been evaluated
        writer = csv.DictWriter(file, list(columns), restval="")
        writer.writeheader()
        writer.writerows(rows)


def save_model(model, path):
    """`model.save` that never leaves a half-written file under the final name."""
    with atomic_path(path) as temporary:
        model.save(temporary)


def _is_empty(folder):
    """Whether there is nothing in a folder but hidden files, such as the lock."""
    return all(path.name.startswith(".") for path in folder.iterdir())


def _compare(file, stored, config, before):
    stored, config, before = (dict(_flat(c)) for c in (stored, config, before))
    stored = {name: value for name, value in before.items() if name in config} | stored
    differing = [
        f"{name} (there {stored.get(name)!r}, asked {config.get(name)!r})"
        for name in sorted({*stored, *config})
        if stored.get(name) != config.get(name)
    ]
    if differing:
        raise ValueError(
            f"{os.fspath(file.parent)!r} holds a run of another configuration; it differs in "
            f"{', '.join(differing)}; choose another --workdir"
        )


def _flat(config, prefix=""):
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
