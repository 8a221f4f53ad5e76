"""Approximate search of many vectors: the engines that an index can use."""

import numpy as np

from keras_vit.lazy import optional_package
from keras_vit.progress import Progress

EXACT_ROWS = 100_000  # up to which all vectors are compared
CHUNK = 2**13  # vectors added at a time
CELLS_READ = 32  # of an inverted file, for each query
SAMPLES_PER_CELL = 64  # of the vectors that the cells are fitted to
CODES = 256  # of a byte of a vector's code
FEWEST = 39 * CODES  # vectors to which FAISS fits so many codes


class Hnsw:
    """A graph of near vectors by usearch, with the vectors in it as float16.

    A query reads the parts of the file that it visits.

    Source: Malkov and Yashunin 2016 (arXiv 1603.09320).
    """

    @staticmethod
    def build(vectors, path, earlier=None):
        """Write a graph.

        Args:
            vectors: float16 (vectors, size), of length 1.
            path: Of the new file.
            earlier: The path of a graph of the first vectors; None for none.
        """
        usearch = _usearch()
        if earlier is None:
            graph = usearch.Index(ndim=vectors.shape[1], metric="cos", dtype="f16")
        else:
            graph = usearch.Index.restore(str(earlier))
        for chunk in _chunks(len(graph), len(vectors)):
            graph.add(np.arange(chunk.start, chunk.stop), vectors[chunk])
        graph.save(str(path))

    @staticmethod
    def open(path):
        """A function from queries, float16 (queries, size), and a count, to rows (queries, count).

        The rows are the nearest first, and negative where fewer are found.
        """
        graph = _usearch().Index.restore(str(path), view=True)

        def rows(queries, count):
            matches = graph.search(queries, min(count, len(graph)), exact=False)
            keys = np.asarray(matches.keys, "int64").reshape(len(queries), -1)
            counts = np.asarray(getattr(matches, "counts", len(matches.keys))).reshape(-1, 1)
            return np.where(np.arange(keys.shape[1]) < counts, keys, -1)

        return rows


class IvfPq:
    """An inverted file of compressed vectors by FAISS, for more vectors than fit into memory.

    Each vector is coded in at most 64 bytes. To build it takes memory for all codes; a query reads the cells
    nearest to it from the disk.

    Source: Jégou et al. 2011, "Product quantization for nearest neighbor search".
    """

    @staticmethod
    def build(vectors, path, earlier=None):
        """See `Hnsw`."""
        faiss = _faiss()
        file = _fitted(vectors) if earlier is None else faiss.read_index(str(earlier))
        for chunk in _chunks(file.ntotal, len(vectors)):
            file.add(vectors[chunk].astype("float32"))
        faiss.write_index(file, str(path))

    @staticmethod
    def open(path):
        """See `Hnsw`."""
        faiss = _faiss()
        file = faiss.read_index(str(path), faiss.IO_FLAG_MMAP)
        file.nprobe = min(CELLS_READ, file.nlist)
        return lambda queries, count: file.search(queries.astype("float32"), min(count, file.ntotal))[1]


# Engines by name; None: all vectors are compared.
ENGINES = {"exact": None, "hnsw": Hnsw, "ivf_pq": IvfPq}


def _fitted(vectors):
    """An inverted file without vectors, whose cells and codes are fitted to some of these."""
    faiss = _faiss()
    count, size = vectors.shape
    if count < FEWEST:
        raise ValueError(f"the engine ivf_pq needs {FEWEST:,} images or more; got {count:,}")
    cells = 2 ** round(np.log2(np.sqrt(count)))
    code_bytes = max(n for n in range(1, min(size, 64) + 1) if size % n == 0)
    metric = faiss.METRIC_INNER_PRODUCT
    file = faiss.IndexIVFPQ(faiss.IndexFlatIP(size), size, cells, code_bytes, 8, metric)
    samples = min(count, max(SAMPLES_PER_CELL * cells, FEWEST))
    rows = np.random.default_rng(0).choice(count, samples, replace=False)
    file.train(vectors[np.sort(rows)].astype("float32"))
    return file


def _chunks(start, stop):
    with Progress(None, "building", total=stop - start, unit="image") as bar:
        for first in range(start, stop, CHUNK):
            chunk = slice(first, min(first + CHUNK, stop))
            yield chunk
            bar.update(chunk.stop - chunk.start)


def _usearch():
    return optional_package("usearch.index", "an image index", ("usearch",))


def _faiss():
    return optional_package("faiss", "the engine ivf_pq", ("faiss-cpu",))
