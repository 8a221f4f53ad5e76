"""Fills `<!-- options: VERB -->` in a page with what the parser of `keras-vit VERB` says of itself."""

import argparse
import re

import _keras_vit_cli


def on_page_markdown(markdown, **kwargs):
    return re.sub(r"<!-- options: ([\w ]+) -->", lambda match: options(*match[1].split()), markdown)


def options(*words):
    """The description of a verb and a table of what it takes.

    >>> print(options("quickstart"))
    Train on scanned digits, evaluate, draw, export, load back and compare.
    <BLANKLINE>
    | option | meaning |
    |---|---|
    | `--workdir` | folder of the run (default: runs/quickstart-N); an unfinished one is continued |
    """
    parser = _keras_vit_cli.parser()
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
            lines.append(f"| {_name(action)} | {_meaning(action)} |")
    return "\n".join(lines)


def _actions(parser, kind):
    return [action for action in parser._actions if isinstance(action, kind)]


def _name(action):
    name = action.option_strings[-1] if action.option_strings else action.metavar or action.dest
    return f"`{name}`" + (", needed" if action.required and action.option_strings else "")


def _meaning(action):
    choices = f" (one of {', '.join(map(str, action.choices))})" if action.choices else ""
    return (action.help or "").replace("|", "\\|") + choices
