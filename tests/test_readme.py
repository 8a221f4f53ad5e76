"""The numbers and make commands of README. `test_docs.py` runs its blocks and checks its links."""

import pathlib
import re

from keras_vit.weights.catalogue import CATALOGUE, find

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_number_of_checkpoints_is_that_of_the_catalogue():
    assert re.findall(r"(\d+) published checkpoints", README) == [str(len(CATALOGUE))]
    names = re.findall(r'from_pretrained\("([\w.]+)"\)', README)
    assert names and all(find(name) for name in names)


def test_the_make_commands_are_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text()
    commands = re.findall(r"^make ([\w-]+)", README, re.MULTILINE)
    assert commands == ["quickstart", "test"]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in commands)


def test_readme_is_short():
    assert len(README.splitlines()) <= 200
