"""Hostile archives: refused in one line, or read as the sound file, in a process with little memory."""

import functools

import numpy as np
import pytest
from made.archives import CANARY, CASES, sound

pytestmark = pytest.mark.slow
IDS = [f"{i}-{container}-{function.__name__}" for i, (function, container, _) in enumerate(CASES)]


def read(limited, folder, container, content):
    path = folder / f"model.{container}"
    path.write_bytes(content)
    function, *options = ("unpack",) if container == "tar.gz" else ("load", {})
    return limited.call(function, str(path), *options)


@pytest.fixture(scope="module")
def expected(limited, tmp_path_factory):
    """A function from a container to what reading its sound file returns."""

    @functools.cache
    def find(container):
        how, result = read(limited, tmp_path_factory.mktemp("sound"), container, sound(container))
        assert how == "accepted", result
        return result

    return find


@pytest.mark.parametrize("number", range(len(CASES)), ids=IDS)
def test_a_hostile_archive_is_refused_or_read_as_the_sound_one(number, limited, expected, tmp_path):
    function, container, allowed = CASES[number]
    how, result = read(limited, tmp_path, container, function(np.random.default_rng(number)))
    assert not CANARY.exists(), "reading the file ran code in it, or wrote outside of its folder"
    assert how == "refused" or (how == "accepted" and allowed != "refused"), result
    if how == "accepted" and allowed == "sound":
        assert result == expected(container)
    elif how == "accepted":
        assert np.isfinite(result["outputs"]).all()
