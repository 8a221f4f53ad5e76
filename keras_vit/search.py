"""An index of images on disk, searched by vectors."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import secrets
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager

import filelock
import numpy as np

from keras_vit.lazy import optional_package
from keras_vit.messages import one_line, printable
from keras_vit.types import Path
from keras_vit.writing import atomic_open, atomic_write

FORMAT = "keras_vit search 2"
MANIFEST, LOCK = "index.json", "index.lock"
ROWS = 1024  # of vectors for which there is memory at first


class ImageIndex:
    """Vectors of image files, and the files whose vectors are closest to another vector.

    The vectors are in a NumPy file in the folder, as float16, and the paths in `index.json`, which also holds
    the sha256 of both. They are written under new names before `index.json` is renamed to its own, so an
    index that is cut off while it is written is as before, or absent. One process at a time can change an
    index, which others read meanwhile. A query compares all vectors.

    Args:
        folder: The folder of the index, or of a new one, which `save` makes.
        model: What made the vectors, in words.
        digest: Digest of that model. An index with another one is refused.
        size: Length of the vectors.

    Attributes:
        files: dict from paths to (row of the vector, bytes of the file, its time of change in nanoseconds).

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
        self.files, self._count = {}, 0  # of rows, some perhaps of files that were removed
        if (self.folder / MANIFEST).exists():
            known = open_index(folder, view=False)
            if (known.digest, known.size) != (digest, size):
                raise ValueError(
                    f"{os.fspath(folder)!r} holds vectors of {known.model}; expected an index of this model, "
                    "with the same weights, options, preprocessing and tokenizer"
                )
            vars(self).update({**vars(known), "model": self.model})
        elif self.folder.exists() and any(file.name != LOCK for file in self.folder.iterdir()):
            raise ValueError(f"{os.fspath(folder)!r} holds no {MANIFEST}; expected a new or empty folder")
        else:
            self._vectors = np.zeros((0, size), "float16")

    def __len__(self):
        return len(self.files)

    def changed(self, paths: Iterable[Path]) -> dict[str, tuple[int, float]]:
        """The files that are not in the index as they are now: dict from absolute paths to (bytes, time)."""
        stale = {}
        for path in map(os.path.abspath, paths):
            status = os.stat(path)
            state = (status.st_size, status.st_mtime_ns)
            if path not in self.files or tuple(self.files[path][1:]) != state:
                stale[path] = state
        return stale

    def add(self, states: Mapping[str, tuple[int, float]], vectors: np.ndarray) -> None:
        """Add the vectors of files, or replace them.

        Args:
            states: As `changed` returns it, or some of its items.
            vectors: An array (files, size), none of them 0.

        Raises:
            ValueError: for another number or length of vectors, or NaN or infinity in them.
        """
        vectors = np.asarray(vectors, "float32")
        if vectors.shape != (len(states), self.size):
            raise ValueError(f"expected vectors of the shape {(len(states), self.size)}; got {vectors.shape}")
        if not np.isfinite(vectors).all():
            raise ValueError("expected finite vectors; got NaN or infinity")
        start, self._count = self._count, self._count + len(states)
        if self._count > len(self._vectors):
            more = max(ROWS, 2 * self._count) - len(self._vectors)
            self._vectors = np.concatenate([self._vectors, np.zeros((more, self.size), "float16")])
        self._vectors[start : self._count] = _normalized(vectors)
        for row, (path, state) in enumerate(states.items(), start):
            self.files[path] = (row, *state)

    def remove(self, paths: Iterable[Path]) -> None:
        """Remove files from the index."""
        for path in list(paths):
            del self.files[path]

    def query(self, vector: np.ndarray, top: int = 10) -> list[tuple[str, float]]:
        """The files with the most similar vectors.

        Args:
            vector: An array of `size` numbers.
            top: Number of files.

        Returns:
            List of (path, cosine of the angle), the most similar first.

        Raises:
            ValueError: for another length of the vector.
            ImportError: if usearch is missing, with the command that installs it.
        """
        vector = np.asarray(vector, "float32")
        if vector.shape != (self.size,):
            raise ValueError(f"expected a vector of the shape {(self.size,)}; got {vector.shape}")
        usearch = optional_package("usearch.index", "an image index", ("usearch",))
        if not self.files:
            return []
        self._remove_unused_rows()
        vectors, vector = self._vectors[: self._count], _normalized(vector[np.newaxis])[0]
        matches = usearch.search(vectors, vector, min(top, len(self)), usearch.MetricKind.Cos, exact=True)
        paths = [*self.files]
        return [(paths[row], 1 - distance) for row, distance in zip(matches.keys, matches.distances.tolist())]

    def save(self) -> None:
        """Write the index: the vectors under a new name, then `index.json`, which names them."""
        self._remove_unused_rows()
        self.folder.mkdir(parents=True, exist_ok=True)
        vectors = self.folder / f"vectors-{secrets.token_hex(8)}.npy"
        with atomic_open(vectors, "wb") as file:
            np.save(file, self._vectors[: self._count])
        manifest = {
            "format": FORMAT,
            **{"model": self.model, "digest": self.digest, "size": self.size},
            **{"vectors": vectors.name, "vectors_sha256": _file_sha256(vectors)},
            "files": self.files,
        }
        manifest["sha256"] = _sha256(manifest)
        atomic_write(self.folder / MANIFEST, json.dumps(manifest) + "\n")
        for file in self.folder.glob("vectors-*"):
            if file != vectors:
                file.unlink()

    def _remove_unused_rows(self):
        """Give the files the first rows, in their order."""
        if len(self.files) < self._count:
            rows = [row for row, *_ in self.files.values()]
            self._vectors, self._count = self._vectors[rows], len(rows)
            states = (state for _, *state in self.files.values())
            self.files = {path: (row, *state) for row, (path, state) in enumerate(zip(self.files, states))}


def open_index(folder: Path, view: bool = True) -> ImageIndex:
    """Open an index.

    Args:
        folder: Its folder.
        view: Whether the vectors stay on the disk, to be read as queries need them; then the index cannot be
            changed.

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
            return _open(path, view)
        except FileNotFoundError as error:
            problem = f"there is no {os.path.basename(error.filename)}"
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as error:
            problem = printable(one_line(error))
            break
    raise ValueError(f"{os.fspath(folder)!r} is no whole index: {problem}")


def _open(path, view):
    manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    if manifest.get("format") != FORMAT:
        raise ValueError(f"its format is {manifest.get('format')!r}; expected {FORMAT!r}: make it again")
    if manifest.pop("sha256", None) != _sha256(manifest):
        raise ValueError(f"the sha256 of {MANIFEST} is another")
    vectors = path / os.path.basename(manifest["vectors"])
    if _file_sha256(vectors) != manifest["vectors_sha256"]:
        raise ValueError(f"the sha256 of {vectors.name} is another")
    index = object.__new__(ImageIndex)
    index.folder, index._count = path, len(manifest["files"])
    index.model, index.digest, index.size = (manifest[name] for name in ("model", "digest", "size"))
    index.files = {file: tuple(state) for file, state in manifest["files"].items()}
    index._vectors = np.load(vectors, mmap_mode="r" if view else None, allow_pickle=False)
    if index._vectors.shape != (index._count, index.size) or index._vectors.dtype != np.float16:
        raise ValueError(f"{vectors.name} holds no {index._count} vectors of {index.size} numbers")
    return index


def _normalized(vectors):
    norms = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return (vectors / norms).astype("float16")


def _sha256(manifest):
    return hashlib.sha256(json.dumps(manifest).encode()).hexdigest()


def _file_sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
        with filelock.FileLock(lock, timeout=0):
            yield
    except filelock.Timeout:
        raise ValueError(f"another process changes {os.fspath(folder)!r}") from None
    finally:
        if not (folder / MANIFEST).exists():  # Nothing was saved.
            lock.unlink(missing_ok=True)
            if is_new and not any(folder.iterdir()):
                folder.rmdir()
