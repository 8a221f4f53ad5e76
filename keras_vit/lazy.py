"""Lazy imports, so that `import keras_vit` is fast."""

import importlib
import sys


def lazy_names(package, names):
    """Return a package's `__getattr__` and `__dir__`, which import names at their first use.

    Args:
        package: Its `__name__`.
        names: dict from names to the submodules that define them; None for a submodule's own name.

    Example:
        >>> __getattr__, __dir__ = lazy_names("keras_vit.training", {"train": "run"})
        >>> __getattr__("train").__module__
        'keras_vit.training.run'

    Source: PEP 562.
    """

    def __getattr__(name):
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f"{package}.{names[name] or name}")
        return getattr(module, name) if names[name] else module

    def __dir__():
        return sorted({*vars(sys.modules[package]), *names})

    return __getattr__, __dir__
