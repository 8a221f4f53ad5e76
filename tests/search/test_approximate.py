import json

import numpy as np
import pyarrow
import pytest
from made.sampling import some

from keras_vit.search import ImageIndex, image_index, open_index

COUNT, SIZE = 12_000, 16


def clustered(count, seed=0):
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(0).standard_normal((300, SIZE))
    return centers[rng.integers(0, 300, count)] + 0.3 * rng.standard_normal((count, SIZE))


def states(names):
    return dict.fromkeys(names, (None, None))


@pytest.fixture(autouse=True)
def few_exact_rows(monkeypatch):
    monkeypatch.setattr(image_index, "EXACT_ROWS", 500)


@pytest.fixture(scope="module")
def vectors():
    return clustered(COUNT)


@pytest.fixture(scope="module", params=some(["hnsw", "ivf_pq"], 2))
def folder(request, vectors, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param) / "index"
    index = ImageIndex(folder, "model", "digest", SIZE)
    columns = {"label": pyarrow.array(np.arange(COUNT) % 10)}
    index.add(states(f"/{i}" for i in range(COUNT)), vectors, columns)
    index.build(request.param)
    return folder


@pytest.fixture
def copied(folder, tmp_path):
    """A copy that a test changes."""
    (tmp_path / "index").mkdir()
    for file in folder.iterdir():
        (tmp_path / "index" / file.name).write_bytes(file.read_bytes())
    return tmp_path / "index"


def exact(vectors, queries, count):
    """The nearest rows, by another computation."""
    vectors, queries = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (vectors, queries))
    return np.argsort(-queries @ vectors.T, axis=1)[:, :count]


@pytest.mark.slow
def test_the_record_has_the_recall_of_independent_queries(folder, vectors):
    index, queries = open_index(folder), clustered(50, seed=1)
    found, cosines = index.nearest(queries, 10)
    recall = np.mean([len({*a} & {*b}) / 10 for a, b in zip(found, exact(vectors, queries, 10))])
    assert index.recall == json.loads((folder / "index.json").read_text())["nearest"]["recall_at_10"]
    assert recall > 0.9 and index.recall > 0.9 and (np.diff(cosines) <= 0).all()


def test_conditions_hold_for_all_that_is_found(folder, vectors):
    """Of few images that fit all are compared; of many more candidates are taken."""
    query = vectors[3]
    for condition, fits in (("label=3", lambda i: i % 10 == 3), ("label!=3", lambda i: i % 10 != 3)):
        rows = [int(path[1:]) for path, _ in open_index(folder).query(query, 30, [condition])]
        fitting = np.flatnonzero(fits(np.arange(COUNT)))
        expected = fitting[exact(vectors[fitting], query[np.newaxis], 30)[0]]
        assert len(rows) == 30 and all(map(fits, rows)) and len({*rows} & {*expected.tolist()}) >= 27


def test_what_is_added_and_removed_later_is_found_and_not_found(copied, vectors):
    new = clustered(700, seed=2)
    index = ImageIndex(copied, "model", "digest", SIZE)
    index.add(states(f"/new {i}" for i in range(700)), new)
    index.remove(["/0"])
    for step in (index.save, index.build):  # The engine has the new vectors after `build`.
        step()
        opened = open_index(copied)
        assert opened.query(new[5], 1) == [("/new 5", pytest.approx(1, abs=1e-3))]
        assert opened.query(vectors[0], 1)[0][0] != "/0" and len(opened) == COUNT + 699
        assert opened._nearest["rows"] == (COUNT if step == index.save else COUNT + 700)
    assert opened.engine == index.engine and opened.recall > 0.9


def test_an_engine_is_built_again_without_the_half_that_was_removed(copied, vectors):
    index = ImageIndex(copied, "model", "digest", SIZE)
    index.remove([f"/{i}" for i in range(COUNT) if i % 8 >= 1][:1200])
    index.remove([f"/{i}" for i in range(2000, 7000)])
    engine = index.engine
    index.build("exact" if engine == "ivf_pq" else None)  # ivf_pq needs more than what remains
    assert index.engine == ("exact" if engine == "ivf_pq" else "hnsw") and len(index.vectors) == len(index)
    assert open_index(copied).query(vectors[COUNT - 1], 1)[0][0] == f"/{COUNT - 1}"


def test_without_a_choice_many_images_have_a_graph(tmp_path):
    index = ImageIndex(tmp_path / "index", "model", "digest", SIZE)
    index.add(states(map(str, range(600))), clustered(600))
    index.build()
    assert index.engine == "hnsw" and index.recall > 0.98


def test_a_choice_that_is_not_possible_changes_nothing(tmp_path):
    index = ImageIndex(tmp_path / "index", "model", "digest", SIZE)
    index.add(states(map(str, range(20))), clustered(20))
    index.build()
    with pytest.raises(ValueError, match="unknown engine 'hnws' .did you mean 'hnsw'"):
        index.build("hnws")
    with pytest.raises(ValueError, match="ivf_pq needs 9,984 images or more; got 20"):
        index.build("ivf_pq")
    assert open_index(tmp_path / "index").engine == index.engine == "exact"


def test_a_damaged_engine_is_refused(copied):
    (file,) = copied.glob("nearest-*")
    file.unlink()
    with pytest.raises(ValueError, match="is no whole index: there is no nearest-"):
        open_index(copied)
