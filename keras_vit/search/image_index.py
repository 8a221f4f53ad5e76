"""An index of images on disk, searched by vectors."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np
import pyarrow
import pyarrow.parquet
from pyarrow import compute

from keras_vit.messages import did_you_mean, one_line, printable
from keras_vit.rules import check_utf8, integer
from keras_vit.search.approximate import ENGINES, EXACT_ROWS
from keras_vit.search.conditions import matching
from keras_vit.search.vector_file import VectorFile, best, exact_nearest, normalized
from keras_vit.types import Path
from keras_vit.writing import atomic_path, atomic_write, exclusive, file_sha256, named_errors

FORMAT = "keras_vit search 3"
MANIFEST, LOCK = "index.json", "index.lock"
FILES = ("vectors-", "rows-", "nearest-")  # the beginnings of their names
STATE = {"path": pyarrow.string(), "bytes": pyarrow.int64(), "time": pyarrow.int64()}  # columns of each index
CANDIDATES = 100  # of an engine for a query, at least, of which the exact cosines are computed
RECALL_QUERIES, RECALL_AT = 100, 10


class ImageIndex:
    """Vectors of images, and the images whose vectors are closest to another vector.

    The vectors are in a file that grows, as float16; the paths, with further columns, in a Parquet file; and
    above 100,000 images a third file has the engine of approximate search. `index.json` names them and has
    their digests. It is renamed to its own name when the others are written, so an index that is cut off
    while it is written is as before, or absent. One process at a time can change an index, which others read
    meanwhile.

    Args:
        folder: The folder of the index, or of a new one, which is created with the first vectors.
        model: What made the vectors, in words.
        digest: Digest of that model. An index with another one is refused.
        size: Length of the vectors.

    Attributes:
        files: dict from paths to (row, bytes of the file, its time of change in nanoseconds); the latter are
            None where they are unknown.
        engine: The engine of approximate search, "exact", "hnsw" or "ivf_pq".
        recall: The fraction of the 10 nearest images of exact search that the engine finds; None for
            "exact".

    Raises:
        ValueError: if the folder holds something else, or an index of another model.

    Example:
        >>> keras.utils.save_img(tmp / "a.png", np.zeros((8, 8, 3)))
        >>> keras.utils.save_img(tmp / "b.png", np.ones((8, 8, 3)))
        >>> index = ImageIndex(tmp / "index", "model.keras", digest="", size=2)
        >>> index.add(index.changed([tmp / "a.png", tmp / "b.png"]), np.array([[1.0, 0.0], [0.0, 1.0]]))
        >>> index.save()
        >>> [(os.path.basename(path), score) for path, score in open_index(tmp / "index").query([0.0, 2.0])]
        [('b.png', 1.0), ('a.png', 0.0)]
    """

    def __init__(self, folder: Path, model: str, digest: str, size: int) -> None:
        self.folder = pathlib.Path(folder).expanduser()
        self.model, self.digest, self.size = os.fspath(model), digest, size
        if (self.folder / MANIFEST).exists():
            known = open_index(folder, check=True)
            if (known.digest, known.size) != (digest, size):
                raise ValueError(
                    f"{os.fspath(folder)!r} holds vectors of {known.model}; expected an index of this model, "
                    "with the same weights, options, preprocessing and tokenizer"
                )
            vars(self).update({**vars(known), "model": self.model})
            return
        if self.folder.exists() and any(
            file.name != LOCK and not file.name.startswith(FILES) for file in self.folder.iterdir()
        ):
            raise ValueError(f"{os.fspath(folder)!r} holds no {MANIFEST}; expected a new or empty folder")
        self._begin(())

    def _begin(self, rows, removed=(), vectors=None, engine="exact", nearest=None):
        self._rows, self._files = list(rows), None
        self._removed = np.asarray(removed, bool)
        self._vectors = vectors or VectorFile(self._new_path("vectors"), self.size)
        self.engine, self._nearest, self._search = engine, nearest, None

    def __len__(self):
        return len(self._removed) - int(np.count_nonzero(self._removed))

    @property
    def recall(self) -> float | None:
        return self._nearest and self._nearest["recall_at_10"]

    @property
    def rows(self) -> pyarrow.Table:
        """The table of all rows, also of removed images."""
        if len(self._rows) != 1:
            empty = pyarrow.table({name: pyarrow.array([], type) for name, type in STATE.items()})
            self._rows = [pyarrow.concat_tables([empty, *self._rows], promote_options="default")]
        return self._rows[0]

    @property
    def files(self) -> dict[str, tuple[int, int | None, int | None]]:
        if self._files is None:
            present = np.flatnonzero(~self._removed)
            columns = (self.rows[name].take(present).to_pylist() for name in STATE)
            self._files = {path: (row, *of) for path, *of, row in zip(*columns, present.tolist())}
        return self._files

    def changed(self, paths: Iterable[Path]) -> dict[str, tuple[int, float]]:
        """The files that are not in the index as they are now: dict from absolute paths to (bytes, time).

        Raises:
            ValueError: for a path that is not UTF-8.
        """
        stale = {}
        for path in map(os.path.abspath, paths):
            state = _state(path)
            if path not in self.files or tuple(self.files[path][1:]) != state:
                stale[path] = state
        check_utf8(stale)
        return stale

    def is_stale(self, path: str) -> bool:
        """Whether the file of an image of the index is gone or has changed; False if its state is unknown."""
        _, *state = self.files[path] if self._files is not None else self._file(path)
        return _has_changed(path, *state)

    def stale_rows(self, conditions: Sequence[str] = ()) -> np.ndarray:
        """Those of `used_rows` whose images are stale, as of `is_stale`."""
        rows = self.used_rows(conditions)
        states = zip(*(self.rows[name].take(rows).to_pylist() for name in STATE))
        return rows[np.array([_has_changed(*state) for state in states], bool)]

    def _file(self, path):
        """As `files[path]`; for a few paths of many it takes less time than to make `files`."""
        rows = np.flatnonzero(compute.equal(self.rows["path"], path).to_numpy())
        [row] = rows[~self._removed[rows]].tolist()
        _, *state = (self.rows[name][row].as_py() for name in STATE)
        return row, *state

    @property
    def vectors(self) -> np.ndarray:
        """The vectors of all rows, float16 (rows, size), of length 1, on the disk."""
        return self._vectors.array()

    def used_rows(self, conditions: Sequence[str] = ()) -> np.ndarray:
        """The ascending numbers of the rows of images that meet conditions, as of `query`."""
        is_used = ~self._removed
        return np.flatnonzero(is_used & matching(self.rows, conditions) if conditions else is_used)

    def add(
        self,
        states: Mapping[str, tuple[int | None, float | None]],
        vectors: np.ndarray,
        columns: Mapping[str, pyarrow.Array] | None = None,
    ) -> None:
        """Add the vectors of images, or replace them.

        Args:
            states: As `changed` returns it, or some of its items; (None, None) where they are unknown.
            vectors: An array (images, size), none of them 0.
            columns: Further values of the images by name, which conditions of queries compare.

        Raises:
            ValueError: for another number or length of vectors, or NaN or infinity in them.
            OSError: if they cannot be written.
        """
        vectors = np.asarray(vectors, "float32")
        if vectors.shape != (len(states), self.size):
            raise ValueError(f"expected vectors of the shape {(len(states), self.size)}; got {vectors.shape}")
        if not np.isfinite(vectors).all():
            raise ValueError("expected finite vectors; got NaN or infinity")
        if not states:
            return
        self.remove(path for path in states if path in self.files)
        values = ([*states], *map(list, zip(*states.values())))
        states_of_files = {name: pyarrow.array(of, type) for (name, type), of in zip(STATE.items(), values)}
        table = pyarrow.table({**(columns or {}), **states_of_files})
        self._vectors.append(vectors)
        first = len(self._removed)
        self._rows.append(table)
        self._removed = np.concatenate([self._removed, np.zeros(len(states), bool)])
        self.files.update({path: (row, *of) for row, (path, of) in enumerate(states.items(), first)})

    def set_columns(self, table: pyarrow.Table) -> None:
        """Replace the further columns of images, whose vectors stay.

        Args:
            table: The `path` of each image, and columns as for `add`. Columns that it lacks become null.
        """
        rows = np.array([self.files[path][0] for path in table["path"].to_pylist()], int)
        columns = dict(zip(table.column_names, table.columns))
        table = pyarrow.table({**columns, **{name: self.rows[name].take(rows) for name in STATE}})
        positions = np.arange(len(self._removed))
        positions[rows] = len(positions) + np.arange(len(rows))
        both = pyarrow.concat_tables([self.rows, table], promote_options="default")
        self._rows = [both.take(positions)]

    def remove(self, paths: Iterable[str]) -> None:
        """Remove images from the index."""
        for path in list(paths):
            self._removed[self.files.pop(path)[0]] = True

    def query(
        self, vector: np.ndarray, top: int = 10, conditions: Sequence[str] = ()
    ) -> list[tuple[str, float]]:
        """The images with the most similar vectors.

        Args:
            vector: An array of `size` numbers.
            top: Number of images.
            conditions: Such as "label=3", of `conditions.matching`, that the images meet.

        Returns:
            List of (path, cosine of the angle, rounded to 6 digits), the most similar first.

        Raises:
            ValueError: for another length of the vector, NaN or infinity in it, another number of images, or
                a condition on a column that is not in the index.
            ImportError: if a package is missing, with the command that installs it.
        """
        vector = np.asarray(vector, "float32")
        if vector.shape != (self.size,):
            raise ValueError(f"expected a vector of the shape {(self.size,)}; got {vector.shape}")
        if not np.isfinite(vector).all():
            raise ValueError("expected a finite vector; got NaN or infinity")
        integer(at_least=1).check("top", top)
        (rows,), (cosines,) = self.nearest(vector[np.newaxis], top, conditions)
        return [*zip(self.rows["path"].take(rows).to_pylist(), cosines.astype("float64").round(6).tolist())]

    def nearest(
        self, queries: np.ndarray, count: int, conditions: Sequence[str] = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        """The rows with the most similar vectors.

        All vectors are compared where there are at most 100,000 that meet the conditions.

        Args:
            queries: An array (queries, size).
            count: Number of rows for each query.
            conditions: As for `query`.

        Returns:
            (rows, cosines), each (queries, count or the number of images), the most similar first.
        """
        used, queries, vectors = self.used_rows(conditions), normalized(queries), self.vectors
        covered = self._nearest["rows"] if self._nearest else 0
        if not covered or len(used) <= EXACT_ROWS:
            return exact_nearest(vectors, queries, count, None if len(used) == len(vectors) else used)
        is_used = np.zeros(len(vectors), bool)
        is_used[used] = True
        first = self._approximate(queries, count, is_used)
        tail = used[np.searchsorted(used, covered) :]
        more = exact_nearest(vectors, queries, count, tail)
        return best(np.hstack([first[0], more[0]]), [first[1], more[1]], count)

    def _approximate(self, queries, count, is_used):
        """As `nearest`, of the rows that the engine has."""
        covered, vectors = self._nearest["rows"], self.vectors
        if self._search is None:
            self._search = ENGINES[self.engine].open(self.folder / self._nearest["file"])
        total = int(np.count_nonzero(is_used[:covered]))
        count = min(count, total)
        wanted = max(CANDIDATES, 10 * count) * covered // max(total, 1)
        while wanted < covered // 4:
            candidates = self._search(queries, wanted)
            fits = (candidates >= 0) & is_used[np.maximum(candidates, 0)]
            if (fits.sum(axis=1) >= count).all():
                exact = [
                    exact_nearest(vectors, query[np.newaxis], count, np.sort(rows[fit]))
                    for query, rows, fit in zip(queries, candidates, fits)
                ]
                return tuple(map(np.vstack, zip(*exact)))
            wanted *= 4
        return exact_nearest(vectors, queries, count, np.flatnonzero(is_used[:covered]))

    def build(self, engine: str | None = None) -> None:
        """Bring the engine of approximate search up to date, measure its recall, and save the index.

        Vectors that are new are added to it. It is built again where another one is chosen, or more than half
        of its vectors were removed.

        Args:
            engine: "exact", "hnsw" or "ivf_pq". None: the one that the index has, and for more than 100,000
                images "hnsw" in place of "exact".

        Raises:
            ValueError: for another engine, or too few images for it.
            ImportError: if a package is missing, with the command that installs it.
        """
        if engine is not None and engine not in ENGINES:
            raise ValueError(f"unknown engine {engine!r}{did_you_mean(engine, ENGINES)}")
        if 2 * len(self) < len(self._removed):
            self._compact()
        if engine is None:
            engine = "hnsw" if self.engine == "exact" and len(self) > EXACT_ROWS else self.engine
        known = self._nearest if engine == self.engine else None
        if known and known["rows"] == len(self._removed):
            return self.save()
        nearest = None
        if ENGINES[engine] is not None and len(self):
            path = self._new_path("nearest")
            with named_errors(path):
                try:
                    ENGINES[engine].build(self.vectors, path, known and self.folder / known["file"])
                except RuntimeError as error:  # of usearch and FAISS
                    raise OSError(one_line(error)) from error
            nearest = {"file": path.name, "rows": len(self._removed)}
        self.engine, self._nearest, self._search = engine, nearest, None
        if nearest:
            nearest["recall_at_10"] = self._recall()
        self.save()

    def _recall(self):
        """The mean fraction of the nearest rows that the engine finds, of some of the index's own vectors."""
        used = self.used_rows()
        rows = np.random.default_rng(0).choice(used, min(RECALL_QUERIES, len(used)), replace=False)
        queries, count = np.asarray(self.vectors[rows]), RECALL_AT + 1  # with the query itself
        exact, _ = exact_nearest(self.vectors, queries, count, used)
        approximate, _ = self._approximate(queries, count, ~self._removed)
        shares = []
        for row, *of in zip(rows, exact, approximate):
            expected, got = ({*each.tolist()} - {int(row)} for each in of)
            shares.append(len(expected & got) / max(len(expected), 1))
        return round(float(np.mean(shares)), 4)

    def save(self) -> None:
        """Write the rows under a new name, then `index.json`, which names them and the vectors."""
        self.folder.mkdir(parents=True, exist_ok=True)
        rows = self._new_path("rows")
        with atomic_path(rows) as temporary:
            table = self.rows.append_column("removed", pyarrow.array(self._removed))
            pyarrow.parquet.write_table(table, temporary, compression="zstd")
        if self._vectors.count:
            with named_errors(self._vectors.path), open(self._vectors.path, "rb") as file:
                os.fsync(file.fileno())
        manifest = {
            "format": FORMAT,
            **{"model": self.model, "digest": self.digest, "size": self.size},
            **{"images": len(self), "rows": rows.name, "rows_sha256": file_sha256(rows)},
            **{"vectors": self._vectors.path.name, "count": self._vectors.count},
            **{"vectors_crc32": self._vectors.checksum, "engine": self.engine, "nearest": self._nearest},
        }
        manifest["sha256"] = _sha256(manifest)
        atomic_write(self.folder / MANIFEST, json.dumps(manifest, indent=2) + "\n")
        named = {rows.name, self._vectors.path.name, (self._nearest or {}).get("file")}
        for file in self.folder.iterdir():
            if file.name.startswith(FILES) and file.name not in named:
                file.unlink()

    def _compact(self):
        """Copy the images that are present to new files, without an engine."""
        used, vectors = np.flatnonzero(~self._removed), self._vectors
        self._begin([self.rows.take(used)], np.zeros(len(used), bool), engine=self.engine)
        for start in range(0, len(used), 2**16):
            self._vectors.append(vectors.array()[used[start : start + 2**16]])

    def _new_path(self, kind):
        return self.folder / f"{kind}-{secrets.token_hex(8)}"


def _state(path):
    """(bytes, time of change in nanoseconds) of a file."""
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _has_changed(path, size, time):
    """Whether a file is gone, or has another state than before, unless that is unknown."""
    return size is not None and (not os.path.exists(path) or (size, time) != _state(path))


def open_index(folder: Path, check: bool = False) -> ImageIndex:
    """Open an index.

    Args:
        folder: Its folder.
        check: Whether to compare the checksum of the vectors also where an engine searches them; otherwise
            only their number is compared then, so that they need not be read.

    Returns:
        ImageIndex.

    Raises:
        ValueError: if there is none, or it is damaged.
    """
    path = pathlib.Path(folder).expanduser()
    if not (path / MANIFEST).is_file():
        raise ValueError(f"{os.fspath(folder)!r} holds no {MANIFEST}; make it with keras-vit search index")
    for _ in range(3):  # Another process may replace it meanwhile.
        try:
            return _open(path, check)
        except FileNotFoundError as error:
            problem = f"there is no {os.path.basename(error.filename)}"
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as error:
            problem = printable(one_line(error))
            break
    raise ValueError(f"{os.fspath(folder)!r} is no whole index: {problem}")


def _open(path, check):
    manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    if not isinstance(manifest, dict):
        raise ValueError(f"{MANIFEST} holds a {type(manifest).__name__}; expected an object")
    if manifest.get("format") != FORMAT:
        raise ValueError(f"its format is {manifest.get('format')!r}; expected {FORMAT!r}: make it again")
    if manifest.pop("sha256", None) != _sha256(manifest):
        raise ValueError(f"the sha256 of {MANIFEST} is another")
    rows = path / os.path.basename(manifest["rows"])
    if file_sha256(rows) != manifest["rows_sha256"]:
        raise ValueError(f"the sha256 of {rows.name} is another")
    table = pyarrow.parquet.read_table(rows)
    index = object.__new__(ImageIndex)
    index.folder = path
    index.model, index.digest, index.size = (manifest[name] for name in ("model", "digest", "size"))
    nearest, name = manifest["nearest"], os.path.basename(manifest["vectors"])
    vectors = VectorFile(path / name, index.size, manifest["count"], manifest["vectors_crc32"])
    vectors.check(contents=check or nearest is None)
    if nearest:
        os.stat(path / nearest["file"])
    removed = table["removed"].to_numpy()
    index._begin([table.drop_columns(["removed"])], removed, vectors, manifest["engine"], nearest)
    return index


def _sha256(manifest):
    return hashlib.sha256(json.dumps(manifest).encode()).hexdigest()


@contextlib.contextmanager
def locked(folder: Path) -> AbstractContextManager[None]:
    """A context in which no other process changes an index.

    Raises:
        ValueError: if one does so now.
    """
    folder = pathlib.Path(folder).expanduser()
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / LOCK
    try:
        with exclusive(lock) as is_free:
            if not is_free:
                raise ValueError(f"another process changes {os.fspath(folder)!r}")
            yield
    finally:
        if not (folder / MANIFEST).exists():  # Nothing was saved.
            lock.unlink(missing_ok=True)
            if is_new and not any(folder.iterdir()):
                folder.rmdir()
