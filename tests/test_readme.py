"""What README says is run: its Python, its commands, its numbers."""

import pathlib
import pickle
import re
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from PIL import Image

from keras_vit.variants import cost
from keras_vit.weights.catalogue import CATALOGUE

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
VERBS = [line for _, block in BLOCKS for line in block.splitlines() if line.startswith("keras-vit ")]

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="trains and exports")


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder with the files that README speaks of: a checkpoint, a photo, images by class."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "tests/golden/token.npz", "ViT-B_16.npz")
    rng = np.random.default_rng(0)
    for name in ("photo.jpg", *(f"flowers/{kind}/{i}.png" for kind in ("rose", "tulip") for i in range(12))):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40, 50, 3), "uint8")).save(path)
    return tmp_path


# In a process of its own, as a reader's: TensorFlow's collectives keep what other tests made of them.
PYTHON = """
import pathlib, pickle
import numpy as np

rng = np.random.default_rng(0)
images, labels = rng.integers(0, 256, (16, 50, 70, 3), "uint8"), rng.integers(0, 10, 16)
for block in pickle.loads(pathlib.Path("blocks").read_bytes()):
    names = {"images": images, "labels": labels}
    exec(compile(block, "README.md", "exec"), names)
    if "maps" in names:
        assert names["maps"].shape == (1, 6, 8)
        assert names["dense"]["tokens"].shape == (1, 6, 8, 24)
"""


def test_the_python_runs_from_top_to_bottom(elsewhere):
    blocks = [block for language, block in BLOCKS if language == "python"]
    assert len(blocks) == 7
    (elsewhere / "blocks").write_bytes(pickle.dumps(blocks))
    done = subprocess.run([sys.executable, "-c", PYTHON], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (elsewhere / "export/saved_model/1/saved_model.pb").exists()
    assert (elsewhere / "export/model_dynamic_int8.tflite").exists()


# One process for all of them, which saves the imports.
COMMANDS = """
import shlex, sys
import keras_vit_cli

for command in sys.argv[1:]:
    print(command)
    assert keras_vit_cli.main(shlex.split(command)[1:]) == 0, command
"""


def test_the_commands_run_in_their_order(elsewhere):
    assert len(VERBS) == 8
    done = subprocess.run([sys.executable, "-c", COMMANDS, *VERBS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "rose" in done.stdout.rpartition(VERBS[-1])[2]
    assert (elsewhere / "vit_folder" / "config.json").exists()


def test_the_catalogue_has_as_many_rows_as_said():
    assert re.findall(r"(\d+) published checkpoints", README) == [str(len(CATALOGUE))]
    names = re.findall(r'from_pretrained\("(\w+)"\)', README)
    assert names and all(name in CATALOGUE for name in names)


def test_the_make_commands_are_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text()
    commands = re.findall(r"^make ([\w-]+)", README, re.MULTILINE)
    assert commands == ["quickstart", "test"]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in commands)


def test_the_table_of_variants_says_what_they_cost():
    rows = re.findall(r"^\| ([\w+]+/\d+) \| ([\d.]+) \| ([\d.]+) \|$", README, re.MULTILINE)
    assert len(rows) == 7
    for variant, parameters, flops in rows:
        found = cost(variant)
        assert (parameters, flops) == (
            f"{found['parameters'] / 1e6:.1f}",
            f"{found['flops'] / 1e9:.1f}",
        )


def test_the_linked_files_exist_and_readme_is_short():
    assert all((ROOT / path).exists() for path in re.findall(r"\]\(([\w/.]+)\)", README))
    assert len(README.splitlines()) <= 230
