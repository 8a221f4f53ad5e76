"""How the reference reads our source: where `keras_vit.export` is, and how our docstrings are laid out."""

import re

import griffe


class OurSource(griffe.Extension):
    """Puts `export/` where it is once installed, and our sections into words that griffe knows."""

    def on_package(self, *, pkg, loader, **kwargs):
        if pkg.name == "keras_vit":
            pkg.set_member("export", loader.load("export", submodules=True))

    def on_object(self, *, obj, **kwargs):
        if obj.docstring:
            obj.docstring.value = laid_out(obj.docstring.value)


def laid_out(text):
    r"""A docstring with its examples under `Examples:` and its sources, inputs and outputs in bold.

    >>> laid_out("Doubles.\n\nSource: arithmetic.")
    'Doubles.\n\n\n**Source:** arithmetic.'
    >>> laid_out("Doubles.\n\n>>> 1 + 1\n2")
    'Doubles.\n\nExamples:\n    >>> 1 + 1\n    2'
    """
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    text = re.sub(r"^Call arguments:$", "Args: Call arguments", text, flags=re.MULTILINE)
    text = re.sub(r"^(Source|(?:Input|Output)(?: shape)?):(?= )", r"\n**\1:**", text, flags=re.MULTILINE)
    # A return value in words, which griffe would take for a type and print as code.
    text = re.sub(r"^(Returns:\n +[^\n:]*`[^\n:]*): ", r"\1&#58; ", text, flags=re.MULTILINE)
    if "Examples:" not in text and (start := re.search(r"^>>> ", text, re.MULTILINE)):
        example = re.sub(r"^(?=.)", "    ", text[start.start() :], flags=re.MULTILINE)
        text = f"{text[: start.start()]}Examples:\n{example}"
    return text
