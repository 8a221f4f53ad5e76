"""Checkpoints of a run: complete, verified by digest, with a fallback to the newest intact one."""

import json
import pathlib
import shutil

import keras
import numpy as np

from keras_vit.engine.sharding import whole
from keras_vit.weights.cache import file_sha256
from keras_vit.writing import atomic_path

KEPT = 2  # the number of newest checkpoints that are kept in addition to the best one


class Checkpoints:
    """A folder with a folder for each checkpoint, such as `step-00001200`.

    Each contains `values.npz`, the variables of the model and the optimizer with its moving averages, and
    `manifest.json`: the step, the metrics and the file's sha256. The folder is written atomically, so that a
    run that is killed at any moment leaves only complete ones. Random state is not stored: it is a function
    of the step.

    Args:
        path: An existing folder.
        best, largest: The metric whose largest (or smallest) value selects the checkpoint that is kept in
            addition to the newest ones.
    """

    def __init__(self, path, best="loss", largest=False):
        self.path = pathlib.Path(path)
        self.best = best
        self.largest = largest

    def save(self, model, metrics):
        """Write a checkpoint of the optimizer's step.

        Args:
            model: A compiled `keras.Model` whose optimizer is built.
            metrics: dict of numbers.

        Raises:
            ValueError: if a metric or a value is not finite; OSError if the checkpoint cannot be written. The
                other checkpoints are kept.
        """
        step = step_of(model)
        values = self.gather(model)
        check_finite(metrics | values, step)
        final = self._folder(step)
        if final.exists():  # It is damaged: the run resumed from an older one.
            shutil.rmtree(final)
        with atomic_path(final, overwrite=False) as folder:
            folder.mkdir()
            np.savez(folder / "values.npz", **values)
            manifest = {"step": step, "metrics": metrics, "sha256": file_sha256(folder / "values.npz")}
            (folder / "manifest.json").write_text(json.dumps(manifest, indent=2, allow_nan=False))
        self._remove_old()

    def gather(self, model):
        """The arrays of a checkpoint by name; processes that have parts of them all have to call this."""
        return {name: _storable(whole(variable)) for name, variable in _variables(model).items()}

    def newest(self, report=print):
        """The step of the newest intact checkpoint, or None; `report` gets a line for each damaged one."""
        for folder in self._folders()[::-1]:
            problem = _problem(folder)
            if problem is None:
                return _step(folder)
            report(f"{folder} is damaged ({problem}); going back to the checkpoint before it")
        return None

    def best_step(self):
        """The step of the best checkpoint that is kept, or None."""
        folder = self._best_folder()
        return folder and _step(folder)

    def restore(self, model, step):
        """Set the variables of the model and the optimizer to the values of a checkpoint.

        Raises:
            ValueError: if the checkpoint is damaged or of another model.
        """
        folder, variables = self._folder(step), _variables(model)
        if problem := _problem(folder):
            raise ValueError(f"{folder} is damaged ({problem}); without it, the run takes another checkpoint")
        with np.load(folder / "values.npz") as values:
            if differing := sorted({*values.files} ^ {*variables}):
                raise ValueError(f"{folder} is of another model; it differs in {', '.join(differing[:5])}")
            for name, variable in variables.items():
                value = values[name]
                if value.shape != tuple(variable.shape):
                    raise ValueError(f"{folder}: {name} must have shape {variable.shape}; got {value.shape}")
                variable.assign(value.astype(variable.dtype))

    def _folder(self, step):
        return self.path / f"step-{step:08d}"

    def _folders(self):
        return sorted(self.path.glob("step-*"))

    def _best_folder(self):
        scored = [(score, folder) for folder in self._folders() if (score := self._score(folder)) is not None]
        return max(scored)[1] if scored else None

    def _score(self, folder):
        try:
            value = _manifest(folder)["metrics"].get(self.best)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return value if value is None or self.largest else -value

    def _remove_old(self):
        kept = {*self._folders()[-KEPT:], self._best_folder()}
        for folder in {*self._folders()} - kept:
            shutil.rmtree(folder)


def check_finite(values, step):
    """Raise ValueError for NaN and infinity, which a diverged run computes.

    Args:
        values: dict of numbers and arrays.
        step: The step at which they were computed.

    Raises:
        ValueError: with the name of a value that is not finite.

    Example:
        >>> check_finite({"loss": 0.5, "head/bias": np.zeros(10)}, step=20)
    """
    for name, value in values.items():
        value = np.asarray(value)
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise ValueError(
                f"{name} is {value[~np.isfinite(value)].flat[0]} at step {step}: the run has diverged and "
                "stops; start another one with a lower base_lr, or look for wrong labels and images"
            )


def step_of(model):
    """The number of training steps, including those whose gradients overflowed in float16."""
    put_back(model)
    return int(model.optimizer._iterations.numpy())


def put_back(model):
    """Put the values of variables, which on JAX `fit` takes out of them, back between two steps.

    Keras does it itself at the end of an epoch and before an evaluation.
    """
    if keras.backend.backend() == "jax":
        model.jax_state_sync()


def _variables(model):
    """The variables that a checkpoint contains, by name."""
    optimizer = model.optimizer
    weights = [weight for weight in model.weights if getattr(weight, "in_checkpoints", True)]
    model_variables = {f"model/{i}/{v.path}": v for i, v in enumerate(weights)}
    return model_variables | {f"optimizer/{i}": v for i, v in enumerate(optimizer.variables)}


def _storable(value):
    """The array in a dtype that .npz files support: bfloat16 becomes float32, which is exact."""
    return value.astype("float32") if value.dtype.kind == "V" else value


def _step(folder):
    return int(folder.name.removeprefix("step-"))


def _manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


def _problem(folder):
    """Why a checkpoint's folder is damaged, or None."""
    try:
        manifest = _manifest(folder)
        if manifest["step"] != _step(folder):
            return f"its manifest is of step {manifest['step']}"
        if manifest["sha256"] != file_sha256(folder / "values.npz"):
            return "the sha256 of its values is another"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None
