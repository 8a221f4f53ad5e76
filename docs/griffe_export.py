"""An extension of griffe: public import paths, `export/`, and the sections of our docstrings."""

import ast
import re

import griffe


class OurSource(griffe.Extension):
    """Lists names under their public paths and converts docstring sections to those of griffe."""

    def on_package(self, *, pkg, loader, **kwargs):
        if pkg.name != "keras_vit":
            return
        pkg.set_member("export", loader.load("export", submodules=True))
        found = [
            (package, name, pkg[path.removeprefix("keras_vit.")])
            for package in [pkg, *pkg.modules.values()]
            for name, path in imported(package)
        ]
        for package, name, thing in found:
            if not thing.is_module:  # A function hides the submodule of its name, as in Python.
                package.set_member(name, griffe.Alias(name, thing, parent=package))
                self.on_object(obj=thing)  # griffe does not visit objects of a hidden submodule.

    def on_object(self, *, obj, **kwargs):
        if obj.docstring:
            if obj.is_class and "{options}" in obj.docstring.value:
                fill_in_options(obj)
            obj.docstring.value = laid_out(obj.docstring.value)


def fill_in_options(cls):
    """Give a class the options' signature and descriptions, which `with_options` adds when Python runs."""
    import keras_vit
    from keras_vit.models.vit.schema import DEFAULTS, FRONT_ENDS, describe_options, options_of

    actual = getattr(keras_vit, cls.name)
    options = options_of(actual.schema)
    own = {name: field for name, field in options.items() if FRONT_ENDS.get(name) is actual} or options
    cls.docstring.value = cls.docstring.value.replace("{options}", describe_options(own))
    init = cls.members["__init__"]
    parameters = [
        griffe.Parameter(
            name,
            kind=griffe.ParameterKind.positional_or_keyword,
            default=repr(DEFAULTS[name]) if name in DEFAULTS else None,
        )
        for name in options
    ]
    others = [each for each in init.parameters if each.kind is not griffe.ParameterKind.var_positional]
    init.parameters = griffe.Parameters(others[0], *parameters, *others[1:])


def imported(package):
    """(name, path) of the names that a package imports from ours, eagerly or lazily."""
    if not package.is_init_module:
        return
    yield from ((name, path) for name, path in package.imports.items() if path.startswith("keras_vit."))
    if "LAZY" in package.members:
        for name, module in ast.literal_eval(str(package["LAZY"].value)).items():
            if module:
                within = "" if module.startswith("keras_vit.") else f"{package.path}."
                yield name, f"{within}{module}.{name}"


def laid_out(text):
    r"""A docstring with an `Examples:` section, and its sources, inputs and outputs in bold.

    >>> laid_out("Doubles.\n\nSource: arithmetic.")
    'Doubles.\n\n\n**Source:** arithmetic.'
    >>> laid_out("Doubles.\n\n>>> 1 + 1\n2")
    'Doubles.\n\nExamples:\n    >>> 1 + 1\n    2'
    """
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    text = re.sub(r"^Call arguments:$", "Args: Call arguments", text, flags=re.MULTILINE)
    text = re.sub(r"^(Source|(?:Input|Output)(?: shape)?):(?= )", r"\n**\1:**", text, flags=re.MULTILINE)
    # griffe would parse a description of a return value as a type.
    text = re.sub(r"^(Returns:\n +[^\n:]*`[^\n:]*): ", r"\1&#58; ", text, flags=re.MULTILINE)
    if "Examples:" not in text and (start := re.search(r"^>>> ", text, re.MULTILINE)):
        example = re.sub(r"^(?=.)", "    ", text[start.start() :], flags=re.MULTILINE)
        text = f"{text[: start.start()]}Examples:\n{example}"
    return text
