import shutil

import keras
import numpy as np
import pytest

from keras_vit.cli import image_batches
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


def names_of(rows):
    return [row["image"].rpartition("/")[2] for row in rows]


def query_of(json_of, folder, query):
    return names_of(json_of("search", "query", query, "--index", folder.parent / "index")["images"])


def test_pictures_are_found_by_a_picture(indexed, weights, json_of):
    folder, done = indexed
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    counts = {"images": "3", "engine": "exact", "added": "3", "removed": "0"}
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
    monkeypatch.setattr(image_batches, "BATCH", 1)
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


def test_other_pictures_take_the_place_of_those_that_are_gone(weights, folder, json_of, keras_vit):
    shutil.copy(folder / "green.png", folder.parent / "query.png")
    json_of(*command(weights, folder))
    (folder / "green.png").unlink()
    query = ("search", "query", folder.parent / "query.png", "--index", folder.parent / "index")
    found = json_of(*query, "--top", "2")["images"]
    assert {*names_of(found)} == {"red.png", "dark red.png"}
    for path in folder.iterdir():
        path.unlink()
    done = keras_vit(*query, "--top", "1")
    assert done.stdout == "no images\n" and done.stderr.count(".png") == 3


def test_a_picture_that_has_changed_is_no_duplicate(weights, folder, json_of, keras_vit):
    for name in ("again.png", "once more.png"):
        shutil.copy(folder / "red.png", folder / name)
    json_of(*command(weights, folder))
    shutil.copy(folder / "green.png", folder / "red.png")
    duplicates = ("search", "duplicates", "--index", folder.parent / "index", "--threshold", "0.9999")
    (group,) = json_of(*duplicates)["groups"]
    assert names_of(group) == ["again.png", "once more.png"]
    (folder / "again.png").unlink()
    done = keras_vit(*duplicates)
    assert done.stdout == "no images that are nearly equal\n"
    assert f"left out, since they have changed: {folder}/again.png, {folder}/red.png; index" in done.stderr


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
    monkeypatch.setattr("keras_vit.weights.model_digest.model_digest", lambda model: "another")
    refused(command(weights, folder), "expected an index of this model")
    refused(("search", "query", folder / "red.png", "--index", folder.parent / "index"), "got another model")


@pytest.fixture(scope="module")
def embedded(tmp_path_factory, weights, keras_vit):
    """Embeddings of pictures, two of them equal and one that cannot be read."""
    folder = pictures(tmp_path_factory.mktemp("embedded") / "pictures")
    shutil.copy(folder / "red.png", folder / "red again.png")
    (folder / "zero.png").write_bytes(b"no image")
    keras_vit(
        "embed", "--model", weights, "--data", f"folder:{folder}", "--output", folder.parent / "vectors"
    )
    return folder


@pytest.mark.slow
def test_an_index_of_embeddings_is_as_one_of_pictures(embedded, indexed, json_of):
    folder, index = embedded, embedded.parent / "index"
    command = ("search", "index", "--embeddings", folder.parent / "vectors", "--index", index)
    counts = [json_of(*command) for _ in range(2)]
    assert [(of["images"], of["added"], of["removed"], of["unreadable"]) for of in counts] == [
        *((4, 4, 0, 1), (4, 0, 0, 1))
    ]
    query = indexed[0] / "dark red.png"
    found = json_of("search", "query", query, "--index", index, "--where", "path~again|dark|green")
    assert names_of(found["images"]) == ["dark red.png", "red again.png", "green.png"]
    expected = json_of("search", "query", query, "--index", indexed[0].parent / "index")["images"]
    scores = {row["image"].rpartition("/")[2]: row["similarity"] for row in expected}
    assert [row["similarity"] for row in found["images"][::2]] == pytest.approx(
        [scores["dark red.png"], scores["green.png"]], abs=2e-3
    )


@pytest.mark.slow
def test_embeddings_of_a_later_state_replace_those_before(embedded, weights, tmp_path, keras_vit, json_of):
    index, later = tmp_path / "index", tmp_path / "later"
    json_of("search", "index", "--embeddings", embedded.parent / "vectors", "--index", index)
    shutil.copytree(embedded, tmp_path / "pictures")
    keras_vit("embed", "--model", weights, "--data", f"folder:{tmp_path}/pictures", "--output", later)
    found = json_of("search", "index", "--embeddings", later, "--index", index)
    assert (found["images"], found["added"], found["removed"]) == (4, 4, 4), "their paths are others"
    assert all(path.startswith(str(tmp_path / "pictures")) for path in open_index(index).files)


def test_duplicates_are_listed(embedded, tmp_path, keras_vit, json_of):
    index = tmp_path / "index"
    json_of("search", "index", "--embeddings", embedded.parent / "vectors", "--index", index)
    groups = json_of("search", "duplicates", "--index", index, "--threshold", "0.9999")["groups"]
    assert [sorted(names_of(group)) for group in groups] == [["red again.png", "red.png"]]
    done = keras_vit("search", "duplicates", "--index", index, "--where", "path~green")
    assert done.stdout == "no images that are nearly equal\n"


@pytest.mark.parametrize(
    "options, message",
    [
        ((), "expected --model and images, or --embeddings"),
        (("--embeddings", "VECTORS", "--model", "x"), "--embeddings has its images and model"),
        (("--embeddings", "VECTORS", "--sha256", "00"), "expected --model with --sha256; got none"),
        (("--embeddings", "none"), "'none' holds no plan.json; make it with keras-vit embed"),
        (("--embeddings", "VECTORS", "--embeddings", "VECTORS"), "has an image that was there before"),
        (("--embeddings", "VECTORS", "--engine", "ivf"), "--engine must be one of 'exact', 'hnsw', 'ivf_pq'"),
        (("--embeddings", "VECTORS", "--engine", "ivf_pq"), "ivf_pq needs 9,984 images or more; got 4"),
    ],
)
def test_an_index_that_is_not_possible_is_refused(options, message, embedded, refused, tmp_path):
    options = [embedded.parent / "vectors" if option == "VECTORS" else option for option in options]
    refused(("search", "index", "--index", tmp_path / "index", *options), message)
    with pytest.raises(ValueError, match="holds no index.json"):
        open_index(tmp_path / "index")


def test_a_condition_on_no_column_is_refused(indexed, refused):
    folder, _ = indexed
    command = ("search", "query", folder / "red.png", "--index", folder.parent / "index")
    refused((*command, "--where", "size=3"), "no column 'size'; the index has path, bytes, time")
