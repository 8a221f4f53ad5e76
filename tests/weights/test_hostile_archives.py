"""Hostile archives: refused in one line, or read as the sound file, in a process with little memory."""

import functools

import numpy as np
import pytest
from made.archives import CANARY, CASES, at, sound

pytestmark = pytest.mark.slow
IDS = [f"{number}-{kind.__name__}" for number, (kind, _) in enumerate(CASES)]


def read(limited, path):
    arguments = (str(path),) if path.name.endswith(".tar.gz") else (str(path), {})
    return limited.call("unpack" if path.name.endswith(".tar.gz") else "load", *arguments)


@pytest.fixture(scope="module")
def expected(limited, tmp_path_factory):
    """The function from a container to what its sound file gives."""

    @functools.cache
    def find(container):
        how, what = read(limited, at(tmp_path_factory.mktemp("sound"), container, sound(container)))
        assert how == "accepted", what
        return what

    return find


@pytest.mark.parametrize("number", range(len(CASES)), ids=IDS)
def test_an_archive_is_refused_or_is_what_it_was(number, limited, expected, tmp_path):
    kind, wanted = CASES[number]
    path = kind(np.random.default_rng(number), tmp_path)
    how, what = read(limited, path)
    assert not CANARY.exists(), "reading the file ran code in it, or wrote outside of its folder"
    assert how == "refused" or (how == "accepted" and wanted != "refused"), what
    if how == "accepted" and wanted == "sound":
        assert what == expected(path.name.partition(".")[2])
    elif how == "accepted":
        assert np.isfinite(what["outputs"]).all()
