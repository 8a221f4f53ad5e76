"""Puts a table of the classes and functions before each page of the reference, as a hook of MkDocs."""

import importlib
import inspect
import pathlib
import re

ENTRY = re.compile(r"^::: ([\w.]+)\n(?:    options:\n(?:      .+\n)*)?", re.MULTILINE)
HEADING = re.compile(r"^ +heading: (.+)$", re.MULTILINE)


def on_page_markdown(markdown, page, **kwargs):
    if pathlib.PurePosixPath(page.file.src_uri).parent.name != "api":
        return markdown
    first = ENTRY.search(markdown)
    return markdown[: first.start()] + summary(markdown) + "\n" + markdown[first.start() :]


def summary(markdown):
    """A table of the entries of a page: a link to each, and the first sentence of its docstring.

    >>> print(summary("::: keras_vit.variants.cost\\n"))
    | name | what it is |
    |---|---|
    | [`cost`](#keras_vit.variants.cost) | The number of tokens, parameters and operations of a variant. |
    <BLANKLINE>
    """
    rows = ["| name | what it is |", "|---|---|"]
    for entry in ENTRY.finditer(markdown):
        thing, heading = named(entry[1]), HEADING.search(entry[0])
        if not inspect.ismodule(thing):
            name = heading[1] if heading else entry[1].rpartition(".")[2]
            rows.append(f"| [`{name}`](#{entry[1]}) | {first_sentence(thing)} |")
    return "\n".join(rows) + "\n"


def named(path):
    """The object that a dotted path names."""
    package, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(package), name, None)
    return importlib.import_module(path) if found is None else found


def first_sentence(thing):
    """The first paragraph of a docstring up to its first period, in one line.

    >>> first_sentence(summary)
    'A table of the entries of a page: a link to each, and the first sentence of its docstring.'
    """
    paragraph = " ".join(inspect.getdoc(thing).partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", paragraph)[0].replace("|", "\\|")
