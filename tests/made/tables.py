"""Tests of a behavior by a table, of which each row is cheap: one test, which reports each row that fails."""

import functools
import inspect

import pytest
from made.sampling import PARAMETERS


def by_table(names, rows, ids=None):
    """Make one test of a function and the rows of a table, as `parametrize` makes a test of each row.

    Args:
        names, rows, ids: As for `pytest.mark.parametrize`, without marks. Each row has a `tmp_path` and a
            `monkeypatch` of its own; other fixtures are shared.
    """
    names, rows = [name.strip() for name in names.split(",")], [*rows]
    titles = [*map(str, ids)] if ids and not callable(ids) else [str(row)[:200] for row in rows]
    assert rows, "a table without rows tests nothing"

    def decorate(test):
        parameters = inspect.signature(test).parameters

        @functools.wraps(test)
        def run(subtests, **fixtures):
            for number, (title, row) in enumerate(zip(titles, rows, strict=True)):
                with subtests.test(title), pytest.MonkeyPatch.context() as changes:
                    own = {"monkeypatch": changes}
                    if "tmp_path" in fixtures:
                        own["tmp_path"] = fixtures["tmp_path"] / str(number)
                        own["tmp_path"].mkdir()
                    own = {name: own[name] for name in own if name in parameters}
                    test(**_values(names, row), **{**fixtures, **own})

        fixtures = [value for name, value in parameters.items() if name not in (*names, "monkeypatch")]
        own = inspect.Parameter("subtests", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        run.__signature__ = inspect.Signature([own, *fixtures])
        return run

    return decorate


def _values(names, row):
    if isinstance(row, PARAMETERS):
        assert not row.marks, "a row of a table cannot be skipped or slow"
        row = row.values
    elif len(names) == 1:
        row = (row,)
    return dict(zip(names, row, strict=True))
