"""Callbacks by name, which send the metrics of a run to logs of experiments, without a dependency."""

import ast
import functools
import importlib
import inspect
import re
import sys

import keras

from keras_vit.engine.fit_checks import RATE_CALLBACKS
from keras_vit.messages import did_you_mean, one_line
from keras_vit.training.checkpoints import put_back

FORM = "MODULE.NAME or MODULE.NAME:ARGUMENT=VALUE,…"
REFUSED = {  # what a run does itself
    keras.callbacks.EarlyStopping: "the recipe's patience ends a run early (--set patience=3)",
    **dict.fromkeys(RATE_CALLBACKS, "the learning rate of a run is its recipe's (--set decay=…)"),
}


class LogCallbacks(keras.callbacks.CallbackList):
    """Several callbacks as one, for which all calls of `fit` in a run are a single training.

    Args:
        callbacks: A list of Keras callbacks.

    Example:
        >>> logs = LogCallbacks([keras.callbacks.CSVLogger(str(tmp / "log.csv"))])
        >>> logs.close()
    """

    has_begun = False

    def on_train_begin(self, logs=None):
        if not self.has_begun:
            self.has_begun = True
            super().on_train_begin(logs)

    def on_train_end(self, logs=None):
        """Nothing: the next call of `fit` may continue the training."""

    def on_epoch_end(self, epoch, logs=None):
        put_back(self.model)  # They may read the learning rate.
        super().on_epoch_end(epoch, logs)

    def close(self):
        """End the training, if it has begun."""
        if self.has_begun:
            super().on_train_end()


def find_callback(source):
    """A function (name, config) that makes a callback for a run, of which nothing is made yet.

    Args:
        source: A Keras callback, which is returned by the function; or a text in the form `FORM`: the name of
            a class, or of a function that returns a callback, and its arguments. Values are Python literals,
            or else texts.

    Returns:
        A function of the run's name and its configuration, a dict of JSON values. Of a callback of wandb it
        begins a run with both, if none has begun.

    Raises:
        ValueError: for another form, a module or name that is missing, what is no callback, or arguments that
            it does not take. The function raises one with the reason if the callback cannot be made.

    Example:
        >>> make = find_callback(f"keras.callbacks.CSVLogger:filename={tmp / 'log.csv'},append=True")
        >>> make("run", {}).append
        True
        >>> find_callback("keras.callbacks.CSVLoger")
        Traceback (most recent call last):
        ValueError: keras.callbacks has no CSVLoger (did you mean 'CSVLogger'?)
    """
    if isinstance(source, keras.callbacks.Callback):
        _check(type(source))
        return lambda name, config: source
    path, arguments = _parsed(source)
    found = _named(path)
    if isinstance(found, type):
        _check(found)
    try:
        inspect.signature(found).bind(**arguments)
    except TypeError as error:
        raise ValueError(f"{path}{inspect.signature(found)}: {error}") from None
    return functools.partial(_make, path, found, arguments)


def _parsed(source):
    """The name in a text, and the arguments as a dict."""
    path, _, text = source.partition(":") if isinstance(source, str) else ("", "", "")
    pairs = re.split(r",(?=\w+=)", text) if text else []  # A value may have commas.
    if not re.fullmatch(r"\w+(\.\w+)+", path) or not all(re.match(r"\w+=", pair) for pair in pairs):
        raise ValueError(f"expected a callback as {FORM}; got {source!r}")
    arguments = {}
    for name, _, value in (pair.partition("=") for pair in pairs):
        try:
            arguments[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            arguments[name] = value
    return path, arguments


def _named(path):
    """What a dotted name stands for."""
    module, _, name = path.rpartition(".")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = error.name.partition(".")[0]
        if package in sys.modules:
            raise ValueError(f"{path}: no module {error.name}") from None
        raise ValueError(f"{path} needs the module {package}: pip install {package}") from None
    except Exception as error:  # of any class: the module is a program of others
        raise ValueError(f"{path}: {module} cannot be imported ({one_line(error)})") from None
    if not callable(getattr(found, name, None)):
        raise ValueError(f"{module} has no {name}{did_you_mean(name, dir(found))}")
    return getattr(found, name)


def _check(found):
    """Raise ValueError unless a class is of callbacks that a run can have."""
    if not issubclass(found, keras.callbacks.Callback):
        raise ValueError(f"expected a Keras callback, or a function that returns one; got {found.__name__}")
    for refused, instead in REFUSED.items():
        if issubclass(found, refused):
            raise ValueError(f"{found.__name__} does not fit a run: {instead}")


def _make(path, found, arguments, name, config):
    wandb = sys.modules.get("wandb")
    try:
        if path.startswith("wandb.") and wandb.run is None:
            wandb.init(name=name, config=config)  # Its callbacks need one.
        made = found(**arguments)
    except Exception as error:  # of any class, as above
        raise ValueError(f"{path} failed: {one_line(error) or type(error).__name__}") from None
    _check(type(made))
    return made
