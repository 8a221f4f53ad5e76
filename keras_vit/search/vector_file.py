"""Vectors in a file that only grows, and exact search in it."""

import os
import zlib

import numpy as np

from keras_vit.lazy import optional_package
from keras_vit.writing import named_errors

CHUNK = 2**16  # rows that are compared at a time


class VectorFile:
    """Vectors of length 1 as float16, one behind the other in a file.

    Args:
        path: Of the file.
        size: The length of a vector.
        count: The number of vectors in the file; what follows is from a process that was interrupted.
        checksum: The CRC-32 of these vectors.

    Example:
        >>> from keras_vit.search.vector_file import VectorFile
        >>> file = VectorFile(tmp / "vectors", size=2)
        >>> file.append(np.array([[3.0, 4.0]]))
        >>> file.array()
        memmap([[0.6, 0.8]], dtype=float16)
    """

    def __init__(self, path, size, count=0, checksum=0):
        self.path, self.size, self.count, self.checksum = path, size, count, checksum
        self._array = None

    @property
    def length(self):
        """Of the vectors in bytes."""
        return 2 * self.size * self.count

    def append(self, vectors):
        """Write an array (vectors, size) to the end of the file.

        Raises:
            OSError: if the file cannot be written.
        """
        content = normalized(vectors).tobytes()
        with named_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab") as file:
                file.truncate(self.length)
                file.write(content)
        self.count += len(vectors)
        self.checksum = zlib.crc32(content, self.checksum)
        self._array = None

    def array(self):
        """All vectors, (count, size), which are read from the file when they are used."""
        if not self.count:
            return np.zeros((0, self.size), "float16")
        if self._array is None:  # Its pages stay mapped for the next query.
            self._array = np.memmap(self.path, "float16", "r", shape=(self.count, self.size))
        return self._array

    def check(self, contents=True):
        """Raise ValueError if the file is shorter, or with `contents` has another checksum."""
        if self.count and (length := os.path.getsize(self.path)) < self.length:
            raise ValueError(f"{self.path.name} has {length} bytes; expected {self.length}")
        checksum = 0
        for start in range(0, self.count if contents else 0, CHUNK):
            checksum = zlib.crc32(self.array()[start : start + CHUNK], checksum)
        if contents and checksum != self.checksum:
            raise ValueError(f"the checksum of {self.path.name} is another")


def normalized(vectors):
    """Vectors divided by their lengths, as float16.

    >>> normalized(np.array([[3.0, 4.0]])).tolist()
    [[0.60009765625, 0.7998046875]]
    """
    vectors = np.asarray(vectors, "float32")
    return (vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)).astype("float16")


def exact_nearest(vectors, queries, count, rows=None):
    """The vectors with the largest cosine, of all or of some rows.

    Args:
        vectors: float16 (vectors, size).
        queries: float16 (queries, size).
        count: The number of vectors for each query.
        rows: Ascending row numbers of those that are compared; None: all.

    Returns:
        (rows, cosines rounded to 6 digits), each (queries, count), the most similar first. With fewer vectors
        than `count` the arrays have fewer columns.

    Raises:
        ImportError: if usearch is missing, with the command that installs it.

    Example:
        >>> from keras_vit.search.vector_file import exact_nearest
        >>> vectors = np.array([[1, 0], [0, 1], [0.6, 0.8]], "float16")
        >>> exact_nearest(vectors, vectors[1:2], 2)[0].tolist()
        [[1, 2]]
    """
    usearch = optional_package("usearch.index", "an image index", ("usearch",))
    total = len(vectors) if rows is None else len(rows)
    nearest = np.zeros((len(queries), 0), "int64"), np.zeros((len(queries), 0), "float32")
    for start in range(0, total, CHUNK):
        chunk = slice(start, min(start + CHUNK, total))
        chunk_vectors = vectors[chunk if rows is None else rows[chunk]]
        matches = usearch.search(
            chunk_vectors, queries, min(count, len(chunk_vectors)), usearch.MetricKind.Cos, exact=True
        )
        keys = np.asarray(matches.keys, "int64").reshape(len(queries), -1) + start
        cosines = (1 - np.asarray(matches.distances).reshape(keys.shape)).round(6)
        nearest = best(
            np.hstack([nearest[0], keys if rows is None else rows[keys]]), [nearest[1], cosines], count
        )
    return nearest


def best(rows, cosines, count):
    """Of each query the `count` rows with the largest cosines, and these."""
    cosines = np.hstack(cosines)
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(rows, order, 1), np.take_along_axis(cosines, order, 1)
