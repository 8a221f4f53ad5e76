import json
import shutil

import keras
import numpy as np
import pytest

pytest.importorskip("usearch")  # requirements-dev.txt

from keras_vit.cli import search


@pytest.fixture
def folder(tmp_path):
    """Pictures of one colour each."""
    for name, color in {"red": (255, 0, 0), "green": (0, 255, 0), "dark red": (200, 0, 0)}.items():
        (tmp_path / "pictures").mkdir(exist_ok=True)
        image = np.full((8, 8, 3), color, "uint8")
        keras.utils.save_img(tmp_path / "pictures" / f"{name}.png", image, scale=False)
    return tmp_path / "pictures"


@pytest.fixture
def command(weights, folder, tmp_path):
    return ("search", "index", folder, "--model", weights, "--index", tmp_path / "index")


def query_of(keras_vit, folder, *arguments):
    done = keras_vit("search", "query", *arguments, "--index", folder.parent / "index", "--json")
    assert done.returncode == 0, done.stderr
    return [row["image"].rpartition("/")[2] for row in json.loads(done.stdout)["images"]]


def test_pictures_are_found_by_a_picture(command, folder, keras_vit, tmp_path):
    done = keras_vit(*command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["index", str(tmp_path / "index"), "model", str(command[4])] + (
        "images 3 added 3 removed 0".split()  # noqa: SIM905
    )
    assert query_of(keras_vit, folder, folder / "red.png") == ["red.png", "dark red.png", "green.png"]
    assert query_of(keras_vit, folder, folder / "dark red.png", "--top", 1) == ["dark red.png"]


def test_an_index_is_brought_up_to_date(command, folder, keras_vit):
    keras_vit(*command)
    shutil.copy(folder / "green.png", folder / "blue.png")
    (folder / "red.png").unlink()
    value = json.loads(keras_vit(*command, "--json").stdout)
    assert (value["images"], value["added"], value["removed"]) == (3, 1, 1)
    value = json.loads(keras_vit(*command, "--json").stdout)
    assert (value["images"], value["added"], value["removed"]) == (3, 0, 0)
    assert "red.png" not in query_of(keras_vit, folder, folder / "blue.png")


def test_a_run_that_was_stopped_continues(command, folder, keras_vit, monkeypatch):
    """By an image that cannot be read, here; what was computed before it is kept."""
    (folder / "zero.png").write_bytes(b"no image")
    monkeypatch.setattr(search, "BATCH", 1)
    done = keras_vit(*command)
    assert done.returncode == 2 and "not a readable image" in done.stderr
    value = json.loads(keras_vit(*command, "--json", "--on_bad_image", "skip").stdout)
    assert (value["images"], value["added"]) == (3, 0)
    assert value["bad_images"] == [str(folder / "zero.png")]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("missing.png",), "no such image file: missing.png"),
        (("a", "red", "car"), "has no text tower, so it searches by an image file only; got 'a red car'"),
        (("red.png", "--index", "none"), "'none' holds no index.json; make it with keras-vit search index"),
    ],
)
def test_a_query_that_finds_nothing_is_one_line(arguments, message, command, folder, keras_vit, monkeypatch):
    keras_vit(*command)
    monkeypatch.chdir(folder)
    done = keras_vit("search", "query", "--index", folder.parent / "index", *arguments)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def test_an_index_of_another_model_is_refused(command, folder, keras_vit, monkeypatch):
    keras_vit(*command)
    monkeypatch.setattr(search, "digest_of", lambda model: "another")
    done = keras_vit(*command)
    assert done.returncode == 2 and "expected an index of this model" in done.stderr
    done = keras_vit("search", "query", folder / "red.png", "--index", folder.parent / "index")
    assert done.returncode == 2 and "got another model" in done.stderr
