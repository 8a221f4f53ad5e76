"""Checkpoints of a run: whole, checked, and the newest sound one found again."""

import hashlib
import json
import pathlib
import shutil

import numpy as np

from keras_vit.writing import atomic_path

KEPT = 2  # the newest, beside the best


class Checkpoints:
    """A folder with a folder for each checkpoint, `step-00001200`.

    Each holds `values.npz`, the values of the model and the optimizer with the moving averages in it, and
    `manifest.json`: the step, the metrics and the file's sha256. The folder is written atomically, so that a
    run that is killed at any moment leaves complete ones only. Random state is not stored: it is a function
    of the step.

    Args:
        path: The folder, which must be there before `save`.
        best, largest: The metric whose largest (or smallest) value says which checkpoint is kept beside
            the newest two.
    """

    def __init__(self, path, best="loss", largest=False):
        self.path = pathlib.Path(path)
        self.best = best
        self.largest = largest

    def save(self, model, metrics):
        """Write the model's state as the checkpoint of the optimizer's step.

        Args:
            model: A compiled `keras.Model` whose optimizer is built.
            metrics: dict of what is known of it, numbers by name.

        Raises:
            ValueError: if a metric or a value is not finite; OSError if the checkpoint cannot be written. The
                other checkpoints stay as they are.
        """
        step, values = step_of(model), {name: _storable(v) for name, v in _variables(model).items()}
        check_finite(metrics | values, step)
        final = self.path / f"step-{step:08d}"
        if final.exists():  # It is damaged: the run resumed from an older one.
            shutil.rmtree(final)
        with atomic_path(final, overwrite=False) as folder:
            folder.mkdir()
            np.savez(folder / "values.npz", **values)
            manifest = {"step": step, "metrics": metrics, "sha256": _sha256(folder / "values.npz")}
            (folder / "manifest.json").write_text(json.dumps(manifest, indent=2, allow_nan=False))
        self._remove_old()

    def newest(self, report=print):
        """The step of the newest sound checkpoint, or None; `report` is told of those that are not."""
        for folder in self._folders()[::-1]:
            problem = _problem(folder)
            if problem is None:
                return _step(folder)
            report(f"{folder} is damaged ({problem}); going back to the checkpoint before it")
        return None

    def best_step(self):
        """The step of the best checkpoint that is kept, or None."""
        folder = self._best_folder(self._folders())
        return folder and _step(folder)

    def restore(self, model, step):
        """Set the model's and the optimizer's values to those of a checkpoint.

        Raises:
            ValueError: if the checkpoint is of another model.
        """
        folder = self.path / f"step-{step:08d}"
        variables = _variables(model)
        with np.load(folder / "values.npz") as values:
            if set(values.files) != set(variables):
                differing = sorted(set(values.files) ^ set(variables))
                raise ValueError(f"{folder} is of another model; it differs in {', '.join(differing[:5])}")
            for name, variable in variables.items():
                value = values[name]
                if value.shape != tuple(variable.shape):
                    raise ValueError(f"{folder}: {name} has shape {value.shape}, wanted {variable.shape}")
                variable.assign(value.astype(variable.dtype) if value.dtype != variable.dtype else value)

    def bytes_of(self, model):
        """How large a checkpoint of this model is."""
        return sum(int(np.prod(v.shape)) * max(_itemsize(v), 2) for v in _variables(model).values())

    def _folders(self):
        return sorted(self.path.glob("step-*"))

    def _best_folder(self, folders):
        scored = [(score, folder) for folder in folders if (score := self._score(folder)) is not None]
        return max(scored)[1] if scored else None

    def _score(self, folder):
        try:
            value = _manifest(folder)["metrics"].get(self.best)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return value if value is None or self.largest else -value

    def _remove_old(self):
        folders = self._folders()
        kept = {*folders[-KEPT:], self._best_folder(folders)}
        for folder in folders:
            if folder not in kept:
                shutil.rmtree(folder)


def check_finite(values, step):
    """Refuse NaN and infinity, which a run that has diverged computes.

    Args:
        values: dict of numbers and arrays by name.
        step: The step that they were computed at.

    Raises:
        ValueError: if a value is not finite, with its name.

    Example:
        >>> check_finite({"loss": 0.5, "head/bias": np.zeros(10)}, step=20)
    """
    for name, value in values.items():
        value = np.asarray(value)
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise ValueError(
                f"{name} is {value[~np.isfinite(value)].flat[0]} at step {step}, so the run has diverged and "
                "stops; start another one with a lower base_lr, or look for wrong labels and images"
            )


def step_of(model):
    """How many steps the model has been trained, those included that overflowed in float16."""
    return int(model.optimizer._iterations.numpy())


def _variables(model):
    """The variables that make up the state of a run, by name."""
    optimizer = model.optimizer
    model_variables = {f"model/{i}/{v.path}": v for i, v in enumerate(model.weights)}
    return model_variables | {f"optimizer/{i}": v for i, v in enumerate(optimizer.variables)}


def _storable(variable):
    """A NumPy array of a type that an .npz file knows: bfloat16 becomes float32, exactly."""
    value = np.asarray(variable.numpy())
    return value.astype("float32") if value.dtype.kind == "V" or value.dtype.name == "bfloat16" else value


def _itemsize(variable):
    return {"bfloat16": 4, "float16": 2, "float64": 8, "int64": 8}.get(variable.dtype, 4)


def _sha256(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _step(folder):
    return int(folder.name.removeprefix("step-"))


def _manifest(folder):
    """The manifest of a checkpoint; ValueError if it holds NaN or infinity, which version 0.1 could write."""

    def refuse(constant):
        raise ValueError(f"it holds {constant}")

    return json.loads((folder / "manifest.json").read_text(), parse_constant=refuse)


def _problem(folder):
    """What is wrong with a checkpoint's folder, or None."""
    try:
        manifest = _manifest(folder)
        if manifest["step"] != _step(folder):
            return f"its manifest is of step {manifest['step']}"
        if manifest["sha256"] != _sha256(folder / "values.npz"):
            return "its values are not what was written"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None
