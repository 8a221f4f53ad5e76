"""Recall, memory and time of the engines of search; writes SEARCH.md."""

import datetime
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from machine import peak_memory, processor, versions
from report import table

from keras_vit.search import ImageIndex, open_index
from keras_vit.search.approximate import ENGINES, FEWEST

COUNTS = 10_000, 100_000, 1_000_000
SIZE, LATENT = 384, 32  # of the vectors, and of the space that they lie close to
CHUNK, QUERIES = 50_000, 100
IMPORTED = peak_memory()
COLUMNS = "engine", "recall@10", "build s", "build MiB", "on disk MiB", "query ms", "query MiB"


def main():
    sections = []
    for count in COUNTS:
        with tempfile.TemporaryDirectory() as folder:
            _in_process(f"write({folder!r}, {count})")
            rows = [measured(folder, engine) for engine in ENGINES if count >= FEWEST or engine != "ivf_pq"]
        sections.append(f"## {count:,} vectors\n\n{table(COLUMNS, rows)}")
    text = _page(sections)
    print(text)
    pathlib.Path(__file__).with_name("SEARCH.md").write_text(text)


def vectors(count, first=0):
    """Vectors in chunks, close to a subspace."""
    directions = np.random.default_rng(0).standard_normal((LATENT, SIZE)).astype("float32")
    for start in range(first, first + count, CHUNK):
        rng = np.random.default_rng(start + 1)
        rows = min(CHUNK, first + count - start)
        latent = rng.standard_normal((rows, LATENT)).astype("float32")
        yield latent @ directions + rng.standard_normal((rows, SIZE)).astype("float32")


def write(folder, count):
    """Write an index without an engine."""
    index = ImageIndex(pathlib.Path(folder, "index"), "random", "", SIZE)
    for chunk in vectors(count):
        index.add({f"{len(index) + n}.jpg": (None, None) for n in range(len(chunk))}, chunk)
    index.save()
    print("written")


def measured(folder, engine):
    """A row of the table: an engine is built in one process, and searches in another."""
    recall, seconds, built = _in_process(f"build({folder!r}, {engine!r})")
    size = sum(file.stat().st_size for file in pathlib.Path(folder, "index").iterdir()) / 2**20
    milliseconds, peak = _in_process(f"query({folder!r})")
    return engine, recall, seconds, built, f"{size:,.0f}", milliseconds, peak


def build(folder, engine):
    """Print the recall, the seconds and the peak memory in MiB of building an engine."""
    index = open_index(pathlib.Path(folder, "index"))
    start = time.perf_counter()
    index.build(engine)
    seconds = time.perf_counter() - start
    recall = 1 if index.recall is None else index.recall
    print(f"{recall:.3f} {seconds:,.1f} {peak_memory() - IMPORTED:,}")


def query(folder):
    """Print the median milliseconds of a query and the peak memory in MiB."""
    index = open_index(pathlib.Path(folder, "index"))
    (queries,) = vectors(QUERIES, first=2 * COUNTS[-1])
    times = []
    for vector in queries:
        start = time.perf_counter()
        index.query(vector)
        times.append(time.perf_counter() - start)
    print(f"{1000 * statistics.median(times):.1f} {peak_memory() - IMPORTED:,}")


def _in_process(call):
    """The words of the last line that a function of this module prints, in a new process."""
    program = [sys.executable, "-c", f"import search; search.{call}"]
    folder = pathlib.Path(__file__).parent
    output = subprocess.run(program, capture_output=True, text=True, check=True, cwd=folder)
    return output.stdout.splitlines()[-1].split()


def _page(sections):
    found = versions(("keras_vit", "usearch", "faiss", "numpy"))
    software = ", ".join(f"{name} {version}" for name, version in found.items())
    return "\n\n".join(
        [
            "# Engines of search",
            f"`python benchmarks/search.py`, {datetime.date.today()}: "
            f"{software}, {processor()}, {os.cpu_count()} cores.",
            f"Random vectors of {SIZE} numbers close to a space of {LATENT} dimensions. Recall is the "
            "fraction of the ten nearest images that an engine finds. Each is built in one process and "
            f"queried {QUERIES} times in another. Their peak memory is that above the imports, and has pages "
            "of files that the system can drop. Times are of the clock, of a query the median. On the disk "
            "are the vectors, the rows and the engine. A query of at most 100,000 vectors compares all of "
            "them with any engine.",
            *sections,
            "",
        ]
    )


if __name__ == "__main__":
    main()
