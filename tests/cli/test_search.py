import shutil

import keras
import numpy as np
import pytest

pytest.importorskip("usearch")  # requirements-dev.txt

from keras_vit.cli import image_vectors
from keras_vit.search import open_index

pytestmark = pytest.mark.usefixtures("eager")


def pictures(folder):
    """Pictures of one color each, in a new folder."""
    folder.mkdir()
    for name, color in {"red": (255, 0, 0), "green": (0, 255, 0), "dark red": (200, 0, 0)}.items():
        keras.utils.save_img(folder / f"{name}.png", np.full((8, 8, 3), color, "uint8"), scale=False)
    return folder


def command(weights, folder):
    return ("search", "index", folder, "--model", weights, "--index", folder.parent / "index")


@pytest.fixture
def folder(tmp_path):
    return pictures(tmp_path / "pictures")


@pytest.fixture(scope="module")
def indexed(tmp_path_factory, weights, keras_vit):
    """A folder with an index, and what the command printed."""
    folder = pictures(tmp_path_factory.mktemp("search") / "pictures")
    return folder, keras_vit(*command(weights, folder))


def query_of(json_of, folder, query):
    found = json_of("search", "query", query, "--index", folder.parent / "index")
    return [row["image"].rpartition("/")[2] for row in found["images"]]


def test_pictures_are_found_by_a_picture(indexed, weights, json_of):
    folder, done = indexed
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    counts = {"images": "3", "added": "3", "removed": "0"}
    assert rows == {"index": str(folder.parent / "index"), "model": str(weights), **counts}
    assert query_of(json_of, folder, folder / "red.png") == ["red.png", "dark red.png", "green.png"]


def test_an_index_is_brought_up_to_date(weights, folder, json_of):
    def counts():
        value = json_of(*command(weights, folder))
        return value["images"], value["added"], value["removed"]

    assert counts() == (3, 3, 0)
    shutil.copy(folder / "green.png", folder / "blue.png")
    (folder / "red.png").unlink()
    assert counts() == (3, 1, 1)
    assert counts() == (3, 0, 0)
    found = [path.rpartition("/")[2] for path in open_index(folder.parent / "index").files]
    assert sorted(found) == ["blue.png", "dark red.png", "green.png"]


def test_a_run_that_was_stopped_continues(weights, folder, json_of, refused, monkeypatch):
    """By an image that cannot be read, here; what was computed before it is kept."""
    (folder / "zero.png").write_bytes(b"no image")
    monkeypatch.setattr(image_vectors, "BATCH", 1)
    refused(command(weights, folder), "not a readable image")
    value = json_of(*command(weights, folder), "--on_bad_image", "skip")
    assert (value["images"], value["added"]) == (3, 0)
    assert value["bad_images"] == [str(folder / "zero.png")]


def test_changed_and_removed_pictures_are_not_found(weights, folder, keras_vit, json_of):
    keras_vit(*command(weights, folder))
    shutil.copy(folder / "red.png", folder.parent / "query.png")
    (folder / "red.png").unlink()
    (folder / "green.png").write_bytes(b"no image")
    done = keras_vit("search", "query", folder.parent / "query.png", "--index", folder.parent / "index")
    assert "left out, since they have changed: " in done.stderr and "index them again" in done.stderr
    assert query_of(json_of, folder, folder.parent / "query.png") == ["dark red.png"]
    assert json_of(*command(weights, folder), "--on_bad_image", "skip")["images"] == 1
    files = open_index(folder.parent / "index").files
    assert [path.rpartition("/")[2] for path in files] == ["dark red.png"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("missing.png",), "no such image file: missing.png"),
        (("a", "red", "car"), "has no text tower, so it searches by an image file only; got 'a red car'"),
    ],
)
def test_a_query_that_finds_nothing_is_one_line(arguments, message, indexed, refused, monkeypatch):
    folder, _ = indexed
    monkeypatch.chdir(folder)
    refused(("search", "query", "--index", folder.parent / "index", *arguments), message)


def test_an_index_of_another_model_is_refused(indexed, weights, refused, monkeypatch):
    folder, _ = indexed
    monkeypatch.setattr("keras_vit.embeddings.model_digest.model_digest", lambda model: "another")
    refused(command(weights, folder), "expected an index of this model")
    refused(("search", "query", folder / "red.png", "--index", folder.parent / "index"), "got another model")
