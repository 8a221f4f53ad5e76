"""An index of images on disk, searched by vectors."""

import contextlib
import json
import os
import pathlib
import secrets

import filelock
import numpy as np

from keras_vit.lazy import optional_package
from keras_vit.writing import atomic_path, atomic_write

FORMAT = "keras_vit search 1"
MANIFEST, LOCK = "index.json", "index.lock"
EXACT = 100_000  # Of so many vectors, each is compared; in larger indices, those that a graph leads to.
EXPANSION = 256  # vectors that the search of the graph keeps; usearch's 64 miss more


class ImageIndex:
    """Vectors of image files, and the files whose vectors are closest to another vector.

    The vectors are in a file of usearch in the folder, as float16, and the paths in `index.json`. Both are
    written under new names before `index.json` is renamed to its own, so an index that is cut off while it is
    written is as before, or absent. One process at a time can change an index, which others read meanwhile.

    Args:
        folder: The folder of the index, or of a new one, which `save` makes.
        model: What made the vectors, in words.
        digest: Digest of the weights of that model. An index with another one is refused.
        size: Length of the vectors.

    Attributes:
        files: dict from paths to (key of the vector, bytes of the file, its time of change in nanoseconds).

    Raises:
        ValueError: if the folder holds something else, or an index of another model.
        ImportError: if usearch is missing, with the command that installs it.

    Example:
        >>> keras.utils.save_img(tmp / "a.png", np.zeros((8, 8, 3)))
        >>> keras.utils.save_img(tmp / "b.png", np.ones((8, 8, 3)))
        >>> index = ImageIndex(tmp / "index", "model.keras", digest="", size=2)
        >>> index.add(index.changed([tmp / "a.png", tmp / "b.png"]), np.array([[1.0, 0.0], [0.0, 1.0]]))
        >>> index.save()
        >>> [(os.path.basename(path), score) for path, score in open_index(tmp / "index").query([0.0, 2.0])]
        [('b.png', 1.0), ('a.png', 0.0)]
    """

    def __init__(self, folder, model, digest, size):
        self.folder = pathlib.Path(folder).expanduser()
        self.model, self.digest, self.size = os.fspath(model), digest, size
        self.files, self._paths, self._next = {}, {}, 0
        if (self.folder / MANIFEST).exists():
            known = open_index(folder, view=False)
            if (known.digest, known.size) != (digest, size):
                raise ValueError(
                    f"{os.fspath(folder)!r} holds vectors of {known.model}; expected an index of this model"
                )
            vars(self).update({**vars(known), "model": self.model})
        elif self.folder.exists() and any(file.name != LOCK for file in self.folder.iterdir()):
            raise ValueError(f"{os.fspath(folder)!r} holds no {MANIFEST}; expected a new or empty folder")
        else:
            self._vectors = _usearch().Index(ndim=size, metric="cos", dtype="f16")

    def __len__(self):
        return len(self.files)

    def changed(self, paths):
        """The files that are not in the index as they are now: dict from absolute paths to (bytes, time)."""
        found = {}
        for path in map(os.path.abspath, paths):
            status = os.stat(path)
            state = (status.st_size, status.st_mtime_ns)
            if path not in self.files or tuple(self.files[path][1:]) != state:
                found[path] = state
        return found

    def add(self, states, vectors):
        """Add the vectors of files, or replace them.

        Args:
            states: As `changed` returns it, or some of its items.
            vectors: An array (files, size), none of them 0.

        Raises:
            ValueError: for another number or length of vectors.
        """
        vectors = np.asarray(vectors, "float32")
        if vectors.shape != (len(states), self.size):
            raise ValueError(f"expected vectors of the shape {(len(states), self.size)}; got {vectors.shape}")
        self.remove(path for path in states if path in self.files)
        keys = range(self._next, self._next + len(states))
        self._next += len(states)
        if len(states):
            norms = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
            self._vectors.add(np.array(keys, "uint64"), vectors / norms)
        for key, (path, state) in zip(keys, states.items()):
            self.files[path], self._paths[key] = (key, *state), path

    def remove(self, paths):
        """Remove files from the index."""
        for path in list(paths):
            key = self.files.pop(path)[0]
            del self._paths[key]
            self._vectors.remove(key)

    def query(self, vector, top=10):
        """The files with the most similar vectors.

        Args:
            vector: An array of `size` numbers.
            top: Number of files.

        Returns:
            List of (path, cosine of the angle), the most similar first.
        """
        vector = np.asarray(vector, "float32")
        if vector.shape != (self.size,):
            raise ValueError(f"expected a vector of the shape {(self.size,)}; got {vector.shape}")
        vector = vector / max(np.linalg.norm(vector), 1e-12)
        if not self.files:
            return []
        self._vectors.expansion_search = EXPANSION
        found = self._vectors.search(vector, min(top, len(self)), exact=len(self) <= EXACT)
        pairs = zip(map(int, found.keys), found.distances.tolist())
        # An interrupt may have come between a vector and its path.
        return [(self._paths[key], 1 - distance) for key, distance in pairs if key in self._paths]

    def save(self):
        """Write the index: the vectors under a new name, then `index.json`, which names them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        vectors = self.folder / f"vectors-{secrets.token_hex(8)}.usearch"
        with atomic_path(vectors) as temporary:
            self._vectors.save(os.fspath(temporary))
        manifest = {
            "format": FORMAT,
            **{"model": self.model, "digest": self.digest, "size": self.size},
            **{"vectors": vectors.name, "bytes": vectors.stat().st_size, "next": self._next},
            "files": self.files,
        }
        atomic_write(self.folder / MANIFEST, json.dumps(manifest) + "\n")
        for file in self.folder.glob("vectors-*.usearch"):
            if file != vectors:
                file.unlink()


def open_index(folder, view=True):
    """Open an index.

    Args:
        folder: Its folder.
        view: Whether the vectors stay on the disk, to be read as queries need them; then the index cannot be
            changed.

    Returns:
        ImageIndex.

    Raises:
        ValueError: if there is none, or it is damaged.
        ImportError: as `ImageIndex`.
    """
    path, library = pathlib.Path(folder).expanduser(), _usearch()
    if not (path / MANIFEST).is_file():
        raise ValueError(f"{os.fspath(folder)!r} holds no {MANIFEST}; make it with keras-vit search index")
    for attempt in (1, 2, 3):  # Another process may replace it meanwhile.
        try:
            found = json.loads((path / MANIFEST).read_text())
            if found.get("format") != FORMAT:
                raise ValueError(f"its format is {found.get('format')!r}; expected {FORMAT!r}")
            vectors = path / os.path.basename(found["vectors"])
            if vectors.stat().st_size != found["bytes"]:
                raise ValueError(f"{vectors.name} is not whole")
            index = object.__new__(ImageIndex)
            index.folder, index._next = path, found["next"]
            index.model, index.digest, index.size = (found[name] for name in ("model", "digest", "size"))
            index.files = {file: tuple(state) for file, state in found["files"].items()}
            index._paths = {state[0]: file for file, state in index.files.items()}
            index._vectors = library.Index.restore(os.fspath(vectors), view=view)
            if index._vectors is None or index._vectors.ndim != index.size:
                raise ValueError(f"{vectors.name} holds no vectors of {index.size} numbers")
            return index
        except FileNotFoundError as error:
            problem = f"there is no {os.path.basename(error.filename)}"
            if attempt == 3:
                raise ValueError(f"{os.fspath(folder)!r} is no whole index: {problem}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise ValueError(f"{os.fspath(folder)!r} is no whole index: {error}") from None


@contextlib.contextmanager
def locked(folder):
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


def _usearch():
    return optional_package("usearch.index", "an image index", ("usearch",))
