"""Modules that add kinds of models to a layout; their names begin with that of the layout."""

import importlib
import pathlib
import pkgutil


def extensions(prefix):
    """The modules whose names begin with a prefix, in the order of their names.

    >>> [module.__name__.rpartition(".")[2] for module in extensions("big_")]
    ['big_vision']
    """
    names = (module.name for module in pkgutil.iter_modules([pathlib.Path(__file__).parent]))
    return [importlib.import_module(f"{__package__}.{name}") for name in names if name.startswith(prefix)]


def merged(modules, name):
    """The items of a dict of this name in all modules that have one."""
    return {key: value for module in modules for key, value in getattr(module, name, {}).items()}


def joined(modules, name):
    """A pattern of what any module's pattern of this name matches."""
    return "|".join(getattr(module, name) for module in modules if hasattr(module, name)) or "(?!)"
