import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow
import pytest
from made.damage import damaged
from made.disks import largest_file

from keras_vit.search import ImageIndex, locked, open_index
from keras_vit.search.vector_file import exact_nearest, normalized


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / f"{i}.png" for i in range(6)]
    for path in paths:
        path.write_bytes(b"image")
    return paths


def vectors_of(count, size=16, seed=0):
    return np.random.default_rng(seed).standard_normal((count, size)).astype("float32")


@pytest.fixture
def index(files, tmp_path):
    index = ImageIndex(tmp_path / "index", "model", "digest", 16)
    index.add(index.changed(files), vectors_of(6))
    index.save()
    return index


def test_the_most_similar_files_come_first_with_their_cosine(index, files, tmp_path):
    vectors, query = vectors_of(6), vectors_of(1, seed=1)[0]
    cosines = vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    order = np.argsort(-cosines)[:4]
    found = open_index(tmp_path / "index").query(query, top=4)
    assert [path for path, _ in found] == [str(files[i]) for i in order]
    np.testing.assert_allclose([score for _, score in found], cosines[order], atol=2e-3)
    assert len(index.query(query, top=99)) == 6


def test_new_changed_and_removed_files(index, files, tmp_path):
    again = ImageIndex(tmp_path / "index", "moved", "digest", 16)
    assert again.changed(files) == {} and again.model == "moved"
    files[2].write_bytes(b"another image")
    assert [*again.changed(files)] == [str(files[2])]
    replaced = vectors_of(1, seed=2)
    again.add(again.changed(files), replaced)
    again.remove([str(files[0])])
    again.save()
    found = open_index(tmp_path / "index").query(replaced[0], top=9)
    assert found[0] == (str(files[2]), pytest.approx(1, abs=1e-3))
    assert sorted(path for path, _ in found) == [str(path) for path in files[1:]]
    assert len([*(tmp_path / "index").iterdir()]) == 3, "the earlier rows are removed"


def test_a_path_that_is_not_utf8_is_refused_with_the_file(index, tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9.png")
    path.write_bytes(b"image")
    with pytest.raises(ValueError, match=r"expected paths in UTF-8; got '.*caf\\udce9.png': rename it"):
        index.changed([path])


def test_the_columns_of_images_change_without_their_vectors(files, tmp_path):
    index, paths = ImageIndex(tmp_path / "index", "model", "digest", 16), [*map(str, files)]
    index.add(index.changed(files), vectors_of(6), {"label": pyarrow.array(range(6)), "width": [8] * 6})
    before = np.array(index.vectors)
    index.set_columns(pyarrow.table({"path": [paths[4], paths[1]], "label": [7, 8], "texts": ["a", "b"]}))
    index.save()
    index = open_index(tmp_path / "index")
    assert index.changed(files) == {} and np.array_equal(index.vectors, before)
    columns = {name: index.rows[name].to_pylist() for name in ("path", "label", "width", "texts")}
    assert columns == {
        **{"path": paths, "label": [0, 8, 2, 3, 7, 5], "width": [8, None, 8, 8, None, 8]},
        "texts": [None, "b", None, None, "a", None],
    }


def test_an_empty_index_finds_nothing(tmp_path):
    index = ImageIndex(tmp_path / "index", "model", "digest", 4)
    index.save()
    assert open_index(tmp_path / "index").query(np.ones(4)) == []


@pytest.mark.parametrize("limit", [300, 1000], ids=["vectors", "rows"])
def test_a_full_disk_leaves_the_index_as_it_was(limit, index, tmp_path):
    """The vectors have 192 bytes before and 704 after, the rows about 1,600."""
    folder, expected = tmp_path / "index", index.query(np.ones(16))
    paths = [tmp_path / f"new{i}.png" for i in range(16)]
    for path in paths:
        path.write_bytes(b"image")
    again = open_index(folder)
    with largest_file(limit), pytest.raises(OSError, match="cannot be written"):
        again.add(again.changed(paths), vectors_of(16, seed=3))
        again.save()
    assert open_index(folder, check=True).query(np.ones(16)) == expected
    again = open_index(folder)
    again.add(again.changed(paths), vectors_of(16, seed=3))
    again.save()
    assert len(open_index(folder, check=True)) == 22


@pytest.mark.parametrize("stage", ["rows", "manifest"])
def test_a_write_that_fails_leaves_the_index_as_it_was(stage, index, files, tmp_path, monkeypatch):
    """After the rows, too, the index that `index.json` names is whole."""
    real, folder = os.replace, tmp_path / "index"

    def replace(source, target):
        if (os.path.basename(target) == "index.json") == (stage == "manifest"):
            raise OSError(28, "No space left on device")
        real(source, target)

    before = open_index(folder).query(np.ones(16))
    monkeypatch.setattr(os, "replace", replace)
    index.remove([str(files[0])])
    index.add({"new": (1, 1)}, np.ones((1, 16)))
    with pytest.raises(OSError, match="cannot be written: No space left"):
        index.save()
    monkeypatch.undo()
    assert open_index(folder).query(np.ones(16)) == before and len(before) == 6
    again = ImageIndex(folder, "model", "digest", 16)
    again.add({"other": (1, 1)}, -np.ones((1, 16)))
    again.save()
    assert len([*folder.iterdir()]) == 3, "what the failed write left is removed"
    assert open_index(folder).query(-np.ones(16), 1) == [("other", pytest.approx(1, abs=1e-3))]


def change(folder, **changes):
    manifest = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**manifest, **changes}))


def write(text):
    return lambda folder: (folder / "index.json").write_text(text)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda folder: (folder / "index.json").unlink(), "holds no index.json; make it with"),
        *((write(text), "is no whole index") for text in ("{", "[]", "[" * 100_000)),
        (lambda folder: change(folder, format="keras_vit search 2"), "search 2'; expected .* make it again"),
        (lambda folder: change(folder, size=3), "the sha256 of index.json is another"),
        (lambda folder: next(folder.glob("vectors*")).unlink(), "there is no vectors-"),
        (lambda folder: os.truncate(next(folder.glob("vectors*")), 100), "has 100 bytes; expected 192"),
        (lambda folder: os.truncate(next(folder.glob("rows*")), 100), "sha256 of rows-.* is another"),
    ],
    ids=["none", "json", "list", "deep", "format", "size", "no vectors", "cut off", "rows"],
)
def test_what_is_no_whole_index_is_refused(damage, message, index, tmp_path):
    damage(tmp_path / "index")
    with pytest.raises(ValueError, match=message):
        open_index(tmp_path / "index")


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_damaged_file_is_refused_or_finds_the_same(count, index, tmp_path, rng):
    folder = tmp_path / "index"
    expected = open_index(folder).query(np.ones(16), top=6)
    contents = {path: path.read_bytes() for path in folder.iterdir()}
    refused = 0
    for number in range(count):
        path = [*contents][number % len(contents)]
        path.write_bytes(damaged(contents[path], rng))
        try:
            found = open_index(folder).query(np.ones(16), top=6)
        except ValueError as error:
            assert "\n" not in str(error) and "is no whole index" in str(error)
            refused += 1
        else:
            assert found == expected
        path.write_bytes(contents[path])
    assert refused > 0.9 * count


def test_the_rows_of_removed_files_are_not_kept(tmp_path):
    index = ImageIndex(tmp_path / "index", "model", "digest", 16)
    vectors = vectors_of(3000)
    for start in range(0, 3000, 500):
        index.add({f"/{i}": (1, 1) for i in range(start, start + 500)}, vectors[start : start + 500])
    index.remove(f"/{i}" for i in range(3000) if i % 3)
    index.add({"/0": (2, 2)}, -vectors[:1])
    index.save()
    again = ImageIndex(tmp_path / "index", "model", "digest", 16)
    for number in (3, 999, 2997):
        assert again.query(vectors[number], top=1) == [(f"/{number}", pytest.approx(1, abs=1e-3))]
    assert again.query(-vectors[0], top=1)[0][0] == "/0" and len(again) == 1000
    again.build()
    assert len(again.vectors) == 1000 and open_index(again.folder).query(vectors[999], top=1)[0][0] == "/999"
    again.remove([*again.files])
    again.add({"/new": (1, 1)}, vectors[:1])
    assert again.query(vectors[0]) == [("/new", pytest.approx(1, abs=1e-3))]


def test_wrong_vectors_models_and_folders_are_refused(index, files, tmp_path):
    folder = tmp_path / "index"
    for digest, size in (("other", 16), ("digest", 8)):
        with pytest.raises(ValueError, match="holds vectors of model; expected an index of this model, with"):
            ImageIndex(folder, "model", digest, size)
    with pytest.raises(ValueError, match="holds no index.json; expected a new or empty folder"):
        ImageIndex(tmp_path, "model", "digest", 16)
    with pytest.raises(ValueError, match=r"expected vectors of the shape \(0, 16\); got \(2, 16\)"):
        index.add({}, np.ones((2, 16)))
    with pytest.raises(ValueError, match="expected finite vectors; got NaN or infinity"):
        index.add({"a": (1, 1)}, np.full((1, 16), np.nan))
    with pytest.raises(ValueError, match=r"expected a vector of the shape \(16,\); got \(1, 16\)"):
        index.query(np.ones((1, 16)))
    with pytest.raises(ValueError, match="expected a finite vector; got NaN or infinity"):
        index.query(np.full(16, np.nan))
    with pytest.raises(ValueError, match="top must be a positive int; got -1"):
        index.query(np.ones(16), top=-1)
    with locked(folder), pytest.raises(ValueError, match="another process changes"), locked(folder):
        pass
    with pytest.raises(KeyError), locked(tmp_path / "new"):
        raise KeyError
    assert not (tmp_path / "new").exists(), "nothing was saved"


@pytest.mark.slow
def test_a_query_of_100_000_vectors_costs_no_more_than_their_comparison_in_memory(tmp_path):
    vectors = vectors_of(100_000, 768)
    index = ImageIndex(tmp_path / "index", "model", "digest", 768)
    index.add({f"/{i}.png": (1, 1) for i in range(len(vectors))}, vectors)
    index.save()
    opened = open_index(tmp_path / "index")
    queries = vectors[::1000] + 0.3 * vectors_of(100, 768, seed=1)
    opened.query(queries[0])
    times, comparisons, best, array = [], [], [], normalized(vectors)
    for query in queries:
        start = time.process_time()
        best.append(opened.query(query, top=10)[0][0])
        times.append(time.process_time() - start)
        start = time.process_time()
        exact_nearest(array, normalized(query[np.newaxis]), 10)
        comparisons.append(time.process_time() - start)
    print(f"{np.median(times) * 1e3:.1f} ms, of which {np.median(comparisons) * 1e3:.1f} ms compare")
    assert best == [f"/{i}.png" for i in range(0, 100_000, 1000)]
    assert np.median(times) < 1.25 * np.median(comparisons)


WRITER = """
import sys, numpy as np
from keras_vit.search import ImageIndex
index = ImageIndex(sys.argv[1], "model", "digest", 64)
print("ready", flush=True)
rng = np.random.default_rng(0)
for i in range(10_000):
    index.add({f"/{i}-{j}.png": (1, 1) for j in range(50)}, rng.standard_normal((50, 64)))
    index.save()
"""


@pytest.mark.slow
def test_ten_kills_leave_a_whole_index_each_time(tmp_path):
    folder, counts = tmp_path / "index", [0]
    rng = np.random.default_rng(0)
    for _ in range(10):
        with subprocess.Popen([sys.executable, "-c", WRITER, folder], stdout=subprocess.PIPE) as writer:
            writer.stdout.readline()
            time.sleep(rng.uniform(0.3, 1.5))
            writer.send_signal(signal.SIGKILL)
        index = open_index(folder)
        assert len(index.query(np.ones(64), top=len(index))) == len(index) and len(index) % 50 == 0
        counts.append(len(index))
    assert max(counts) > 0


BUILDER = """
import sys
from keras_vit.search import open_index
index = open_index(sys.argv[1])
print("ready", flush=True)
index.build("hnsw")
"""


@pytest.mark.slow
def test_an_index_stays_as_it_was_when_the_build_of_an_engine_is_killed(tmp_path):
    folder, vectors = tmp_path / "index", vectors_of(30_000, 128)
    index = ImageIndex(folder, "model", "digest", 128)
    index.add({f"/{i}.png": (1, 1) for i in range(len(vectors))}, vectors)
    index.save()
    expected, killed = index.query(vectors[7]), 0
    manifest = (folder / "index.json").read_bytes()
    for delay in (0.2, 0.6, 1.2):
        with subprocess.Popen([sys.executable, "-c", BUILDER, folder], stdout=subprocess.PIPE) as builder:
            builder.stdout.readline()
            time.sleep(delay)
            killed += builder.poll() is None
            builder.send_signal(signal.SIGKILL)
        if (folder / "index.json").read_bytes() == manifest:
            opened = open_index(folder)
            assert opened.engine == "exact" and opened.query(vectors[7]) == expected
    assert killed >= 2
    (folder / "nearest-left").write_bytes(b"of a process that was killed")
    index = open_index(folder)
    index.build("hnsw")
    names = {path.name.partition("-")[0] for path in folder.iterdir()}
    assert names == {"index.json", "vectors", "rows", "nearest"} and len([*folder.iterdir()]) == 4
    assert open_index(folder).engine == "hnsw" and index.query(vectors[7]) == expected
