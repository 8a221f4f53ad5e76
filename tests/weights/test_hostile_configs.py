"""Configurations with one field replaced: refused in one line, or the model is what they say."""

import functools

import numpy as np
import pytest
from made.configurations import DOCUMENTS, VALUES, document, drawn

pytestmark = pytest.mark.slow
CASES = {name: 40 if name == "run" else 90 for name in DOCUMENTS}


def same(said, given):
    """Whether two JSON values say the same: 8 is [8, 8], and 8.0, but not true."""
    if isinstance(said, list):
        given = given if isinstance(given, list) else [given] * len(said)
        return len(said) == len(given) and all(map(same, said, given))
    return said == given and isinstance(said, bool) == isinstance(given, bool)


def read(limited, name, folder, text):
    found = document(name)
    arguments = [str(found.write(folder, text))] + [{}] * (found.read == "load")
    return limited.call(found.read, *arguments)


@pytest.fixture(scope="module")
def expected(limited, tmp_path_factory):
    """The function from a document to what the sound one gives, with a field besides that there is not."""

    @functools.cache
    def find(name):
        text = document(name).changed("", "unknown", 1)
        how, what = read(limited, name, tmp_path_factory.mktemp("sound"), text)
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
            # Nothing, which null and zero may stand for, is what is usual, or what the arrays tell.
            said = document(name).said_of(what["config"], part, field)
            assert same(said, VALUES[value]), f"{part} {field} {value}: the model has {str(said)[:200]}"
