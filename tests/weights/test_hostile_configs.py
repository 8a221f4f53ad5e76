"""Configurations with one field replaced are refused in one line, or the model has the value."""

import functools

import numpy as np
import pytest
from made.configurations import DOCUMENTS, VALUES, document, drawn

pytestmark = pytest.mark.slow
CASES = {name: 40 if name == "run" else 90 for name in DOCUMENTS}


def same(value, given):
    """Whether two JSON values are equal: 8 equals [8, 8] and 8.0, but not true."""
    if isinstance(value, list):
        given = given if isinstance(given, list) else [given] * len(value)
        return len(value) == len(given) and all(map(same, value, given))
    return value == given and isinstance(value, bool) == isinstance(given, bool)


def read(limited, name, folder, text):
    found = document(name)
    arguments = [str(found.write(folder, text))] + [{}] * (found.read == "load")
    return limited.call(found.read, *arguments)


@pytest.fixture(scope="module")
def expected(limited, tmp_path_factory):
    """A function from a document's name to the result of its valid form with an unknown field."""

    @functools.cache
    def find(name):
        text = document(name).changed("", "unknown", 1)
        how, what = read(limited, name, tmp_path_factory.mktemp("valid"), text)
        assert how == "accepted", what
        return what

    return find


@pytest.mark.parametrize("name, number", [(name, i) for name, count in CASES.items() for i in range(count)])
def test_a_configuration_is_honoured_or_refused(name, number, limited, expected, tmp_path):
    part, field, value = drawn(name, number)
    how, what = read(limited, name, tmp_path, document(name).changed(part, field, VALUES[value]))
    about = f"{part} {field} {value}: {str(what)[:2000]}"
    assert how in ("accepted", "refused"), about
    if how == "accepted":
        outputs = expected(name)["outputs"]
        assert np.isfinite(what["outputs"]).all() and np.shape(what["outputs"]) == np.shape(outputs), about
        if {"unknown", *document(name).unread} & {field, f"{part}.{field}"}:
            assert what["outputs"] == outputs, about
        elif VALUES[value] and value != "missing" and field not in document(name).folded:
            # null and zero may mean the default, or what the arrays determine.
            found = document(name).value_in(what["config"], part, field)
            assert same(found, VALUES[value]), f"{part} {field} {value}: the model has {str(found)[:200]}"
