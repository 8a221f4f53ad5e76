"""Refusals: the manual's tables of wrong inputs with their messages, and calls that raise them."""

import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).parents[2] / "docs"


def tables(page):
    """The messages of each table of a page by the first cell of their row."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.findall(r"^\| wrong \| message \|\n\|[-| ]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [dict(row.strip("| ").split(" | ") for row in rows.splitlines()) for rows in found]


def assert_is(message, expected):
    """Assert that a message is the one of a table; "…" stands for any text."""
    pattern = ".*".join(re.escape(part.strip(" ")) for part in expected.split("…"))
    assert re.fullmatch(pattern, message), (expected, message)


def refused(call, path, *patterns, **options):
    """Assert that a call for a path raises ValueError of one line that names it and matches the patterns."""
    with pytest.raises(ValueError) as caught:
        call(path, **options)
    message = str(caught.value)
    assert type(caught.value) is ValueError and message.isprintable() and path.name in message, message
    for pattern in patterns:
        assert re.search(pattern, message), message


def in_turn(*damages):
    """A function that damages a folder in several ways."""
    return lambda root: [damage(root) for damage in damages]
