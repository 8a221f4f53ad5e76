"""Stubs for type checkers and editors: what packages import lazily, and the options of models.

`python tests/made/stubs.py` writes them; a test compares them with the code.
"""

import ast
import importlib
import inspect
import pathlib

ROOT = pathlib.Path(__file__).parents[2]
# The packages that import some names when they are first used.
PACKAGES = (
    *("keras_vit", "keras_vit.data", "keras_vit.evaluation", "keras_vit.export", "keras_vit.inspection"),
    *("keras_vit.training", "keras_vit.weights"),
)
OPTIONS = "keras_vit/models/vit/option_types.pyi"
WRITTEN = "# Written by `make stubs`."
# What the constructor accepts where it stores another type.
ACCEPTED = {
    "tuple[int | None, int | None]": "int | Sequence[int | None]",
    "tuple[int, int]": "int | Sequence[int]",
    "tuple[int, int] | None": "int | Sequence[int] | None",
    "tuple[int, ...] | None": "Sequence[int] | None",
    "int | tuple[int, ...] | None": "int | Sequence[int] | None",
    "dict[str, Any] | None": "str | dict[str, Any] | None",
    "Preprocessing": "Preprocessing | dict[str, Any] | None",
    "tuple[str, ...] | None": "Sequence[str] | str | None",
}


def files():
    """dict from the paths of all stubs to their contents."""
    paths = {package: package.replace("keras_vit.export", "export").replace(".", "/") for package in PACKAGES}
    stubs = {f"{paths[package]}/__init__.pyi": of_package(package) for package in PACKAGES}
    return stubs | {OPTIONS: of_options()}


def of_package(name):
    """The stub of a package: all of its public names, from the modules that define them."""
    package = importlib.import_module(name)
    modules, names = [], []
    eager = ast.parse(inspect.getsource(package)).body
    sources = [
        source
        for node in eager
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        for source in _imported(node.module, alias.name)
    ]
    for attribute, source in sources + [*package.LAZY.items()]:
        if source is None or source == name:
            modules.append(f"from . import {attribute} as {attribute}\n")
        elif attribute != "lazy_names":
            source = source if source.startswith("keras_vit.") else f"{name}.{source}"
            names.append(f"from {source} import {attribute} as {attribute}\n")
    version = "\n__version__: str\n" if name == "keras_vit" else ""
    return f"{WRITTEN}\n{''.join(sorted({*modules}))}{''.join(sorted(names))}{version}"


def _imported(module, name):
    """(name, the module that defines it) of what `from module import name` imports."""
    if name != "*":
        return [(name, module)]
    found = importlib.import_module(module)
    return [(name, getattr(found, name).__module__) for name in found.__all__]


def of_options():
    """The stub of `option_types`: the arguments of constructors and loading, and the attributes of models."""
    import keras_vit
    from keras_vit.models.vit.schema import FRONT_ENDS, OPTIONS, options_of

    loading = inspect.signature(keras_vit.from_pretrained).parameters
    loading = {
        name: p.annotation for name, p in loading.items() if p.kind is p.KEYWORD_ONLY and name != "kind"
    }
    attributes = {name: field.type for name, field in OPTIONS.items()}
    options = {name: ACCEPTED.get(words, words) for name, words in attributes.items()}
    shared = {name: words for name, words in options.items() if name not in loading}
    loaded = {name: words for name, words in options.items() if name in loading}
    sizes = {"image_size", "num_classes"}
    dtype, of_models = {"dtype": "str | keras.DTypePolicy | None"}, {"name": "str", "trainable": "bool"}
    in_variant = {name: words for name, words in loaded.items() if name not in sizes}
    total = "TypedDict, total=False"
    classes = [
        _class(
            f"_Options({total})",
            "The options that constructors and `from_pretrained` share.",
            shared,
        ),
        _class(
            "ViTOptions(_Options, total=False)", "Of the constructors of transformers.", loaded | of_models
        ),
        _class("VariantOptions(_Options, total=False)", "Of `from_variant`.", in_variant | of_models | dtype),
        _class("LoadOptions(_Options, total=False)", "Of `from_pretrained`.", loading | dtype),
    ]
    base = ""
    for cls in (keras_vit.VisionTransformer, keras_vit.PackedVisionTransformer, keras_vit.PixelTransformer):
        own = {name: words for name, words in attributes.items() if name in options_of(cls.schema)}
        if base:
            own = {name: words for name, words in own.items() if FRONT_ENDS.get(name) is cls}
        name = cls.schema.__name__.replace("Config", "Attributes")
        classes.append(_class(f"{name}{base}", f"Of a `{cls.__name__}`.", own))
        base = "(ViTAttributes)"
    imports = """from collections.abc import Sequence
from typing import Any, TypedDict

import keras

from keras_vit.preprocessing import Preprocessing
from keras_vit.types import Path, Size
"""
    return f"{WRITTEN}\n{imports}\n" + "\n".join(classes)


def _class(head, doc, types):
    fields = "".join(f"    {name}: {words}\n" for name, words in types.items())
    return f'class {head}:\n    """{doc}"""\n\n{fields}'


if __name__ == "__main__":
    for path, text in files().items():
        (ROOT / path).write_text(text)
