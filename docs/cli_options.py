"""Fills the option tables into docs/cli*.md, and the repository's URL into the pages of the built manual.

`python docs/cli_options.py` writes a table of the parser's options between `<!-- options: SUBCOMMAND -->` and
`<!-- end -->`. Links to files outside `docs/` become links to the repository, whose URL is in setup.py.
"""

import argparse
import importlib
import os
import pathlib
import re

from _keras_vit_cli import without_keras

DOCS = pathlib.Path(__file__).parent
REPOSITORY = re.search(r'url="(.+?)"', (DOCS.parent / "setup.py").read_text())[1]


def on_config(config):
    # With repo_url, every page would query GitHub for the number of stars.
    config.nav.append({"Repository": REPOSITORY})


def on_page_markdown(markdown, page, **kwargs):
    return linked(markdown, (DOCS / page.file.src_uri).parent)


def linked(markdown, folder):
    """A page's text, with links to files outside `docs/` to the repository.

    >>> linked("[a](../setup.py) [b](cli.md)", DOCS) == f"[a]({REPOSITORY}/blob/main/setup.py) [b](cli.md)"
    True
    """

    def link(match):
        path = os.path.relpath(folder / match[1], DOCS.parent)
        return match[0] if path.startswith("docs") else f"]({REPOSITORY}/blob/main/{path})"

    return re.sub(r"\]\((\.\./[\w./-]+)\)", link, markdown)


def filled(markdown):
    """A page's text with the tables of the present options.

    >>> filled("<!-- options: quickstart -->\\n\\nan old table\\n\\n<!-- end -->").splitlines()[2]
    'Train on scanned digits, evaluate, draw, export, load back and compare.'
    """
    return re.sub(
        r"(<!-- options: ([\w ]+) -->\n).*?(<!-- end -->)",
        lambda match: f"{match[1]}\n{options(*match[2].split())}\n\n{match[3]}",
        markdown,
        flags=re.DOTALL,
    )


def options(*words):
    """The description of a subcommand and a table of its options.

    >>> print(options("quickstart"))
    Train on scanned digits, evaluate, draw, export, load back and compare.
    <BLANKLINE>
    | option | meaning |
    |---|---|
    | `--workdir` | folder of the run (default: runs/quickstart-N); an unfinished one is continued |
    | `--config` | YAML or JSON of these options and their values, which the command line changes |
    """
    with without_keras():
        module = importlib.import_module("keras_vit.cli.parser")
        parser = module.parser()
    for word in words:
        parser = _actions(parser, argparse._SubParsersAction)[0].choices[word]
    lines = [
        f"{parser.description[0].upper()}{parser.description[1:]}.",
        "",
        "| option | meaning |",
        "|---|---|",
    ]
    for action in _actions(parser, argparse.Action):
        if action.help != argparse.SUPPRESS and "--help" not in " ".join(action.option_strings):
            lines.append(f"| {_name(action)} | {_meaning(action, module.help_text)} |")
    return "\n".join(lines)


def _actions(parser, kind):
    return [action for action in parser._actions if isinstance(action, kind)]


def _name(action):
    name = action.option_strings[-1] if action.option_strings else action.metavar or action.dest
    return f"`{name}`" + (", required" if action.required and action.option_strings else "")


def _meaning(action, help_text):
    """The help text of an option, in which Markdown finds no cells and no links.

    >>> _meaning(argparse.Action((), "", help="tfds:NAME[/CONFIG] | digits"), lambda action: action.help)
    'tfds:NAME\\\\[/CONFIG] \\\\| digits'
    """
    choices = f" (one of {', '.join(map(str, action.choices))})" if action.choices else ""
    return re.sub(r"([|\[])", r"\\\1", help_text(action) or "") + choices


if __name__ == "__main__":
    for page in DOCS.glob("cli*.md"):
        page.write_text(filled(page.read_text()))
