"""Lazy imports, so that `import keras_vit` is fast, and imports of packages that only some features need."""

import importlib
import pkgutil
import sys
import types
from collections import UserDict

from keras_vit.messages import did_you_mean
from keras_vit.names_elsewhere import FUNCTION, instead


def lazy_names(package, names=()):
    """Return a package's `__getattr__`, which imports names at their first use, and `__dir__`.

    Public names are these names, and all that the package imports except modules.

    Args:
        package: Its `__name__`.
        names: dict from names to the submodules that define them, or to other modules with their whole
            names; None for a public submodule.

    Example:
        >>> __getattr__, __dir__ = lazy_names("keras_vit.training", {"train": "run"})
        >>> __getattr__("train").__module__
        'keras_vit.training.run'

    Source: PEP 562.
    """

    def __getattr__(name):
        if name not in names:
            hint = ""
            if not name.startswith("_"):  # which tools look for
                hint = instead(name, FUNCTION) or did_you_mean(name, __dir__())
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        source, root = names[name] or name, package.partition(".")[0]
        module = importlib.import_module(source if source.startswith(f"{root}.") else f"{package}.{source}")
        return getattr(module, name) if names[name] else module

    def __dir__():
        values = vars(sys.modules[package])
        return sorted({*names, *(name for name in values if _is_public(name, values[name], names))})

    return __getattr__, __dir__


def _is_public(name, value, names):
    if name.startswith("_"):
        return name.startswith("__")  # as `__doc__`
    return not isinstance(value, types.ModuleType) and value is not names and value is not lazy_names


class LazyModule(types.ModuleType):
    """A module that is imported when one of its names is first used.

    With it a file can use Keras or TensorFlow in some functions and be imported without them, as for exported
    models.

    Args:
        name: Its whole name.

    Example:
        >>> LazyModule("keras").ops.add(1, 2).shape
        TensorShape([])
    """

    def __getattr__(self, name):
        return getattr(importlib.import_module(self.__name__), name)


class LazyTable(UserDict):
    """A dict of instances, each of which is imported and made when it is first asked for.

    Args:
        classes: dict from keys to the whole names of the instances' classes.

    Example:
        >>> table = LazyTable({"integer": "builtins.int", "other": "missing.Other"})
        >>> table["integer"], [*table]
        (0, ['integer', 'other'])
    """

    def __getitem__(self, key):
        value = self.data[key]
        if isinstance(value, str):
            self.data[key] = value = pkgutil.resolve_name(value)()
        return value


def optional_package(name, feature, packages):
    """Import a package that only one feature requires.

    Args:
        name: Of the package.
        feature: What requires it, for the message.
        packages: All packages of the feature, which are installed together.

    Raises:
        ImportError: if it is missing; the message has the command that installs it.

    Example:
        >>> optional_package("onnx", "ONNX", ("onnx", "onnxruntime")).__name__
        'onnx'
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:  # The package is installed, but broken.
            raise
        message = f"{feature} requires {name}: pip install {' '.join(packages)}"
        raise ImportError(message, name=name) from None
