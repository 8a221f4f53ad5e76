"""The cache of shards: whole remote ones up to a number of bytes, and what has been read of any."""

import concurrent.futures
import contextlib
import dataclasses
import gzip
import hashlib
import json
import math
import os
import pathlib
import zlib

from filelock import FileLock

from keras_vit.data.remote_files import Page, described, download, file_name, is_url
from keras_vit.messages import redact_url
from keras_vit.progress import Progress
from keras_vit.writing import atomic_write, cache_folder, flush, temporary_folder

BOUND = "KERAS_VIT_SHARD_CACHE_GB"
GIGABYTES = 100
THREADS = 8  # that request or read shards
BLOCKS, BLOCK = 64, 4096  # and bytes of each, of which the digest of a large shard is
WHOLE = BLOCKS * BLOCK * 4  # bytes of a shard that is no large one
FORMAT = 3  # of what is stored; another number where sources read other values


@dataclasses.dataclass(frozen=True)
class Shard:
    """A version of a file. Its text has no credentials.

    Args:
        place: Its path or URL.
        size: The size in bytes.
        version: A text that differs between versions: of a local file its time of modification and its
            number in the file system.
    """

    place: str
    size: int
    version: str

    def __str__(self):
        return redact_url(self.place)

    def __repr__(self):
        return repr(str(self))

    @property
    def name(self):
        """The name of the file."""
        return file_name(self.place) if is_url(self.place) else os.path.basename(self.place)


def shards_at(places):
    """The `Shard` at each path or URL; None for one that is missing."""
    is_any_remote = any(map(is_url, places))
    if is_any_remote:
        _bound()  # refuses another text

    def shard(place):
        with contextlib.suppress(FileNotFoundError):
            if is_url(place):
                return Shard(place, *described(place))
            return Shard(place, *_state(os.stat(place))) if os.path.isfile(place) else None

    return [*_in_threads(shard, places, THREADS if is_any_remote else 1)]


def is_remote(shard):
    """Whether a shard is at a URL."""
    return isinstance(shard, Shard) and is_url(shard.place)


def _state(status):
    return status.st_size, f"{status.st_mtime_ns} {status.st_ino}"


def opened(shard):
    """Open a shard as a binary file; a remote one is fetched if the cache does not have it.

    After each download, the shards that were opened least recently are removed from the cache until it has
    at most $KERAS_VIT_SHARD_CACHE_GB (100) gigabytes. A file that is open stays readable.

    Args:
        shard: A `Shard`, or a path.

    Raises:
        OSError: if the file is missing, is another version, or cannot be read, in several attempts.

    Example:
        >>> (tmp / "a.tar").touch()
        >>> with opened(tmp / "a.tar") as file:
        ...     file.read()
        b''
    """
    if not is_remote(shard):
        return _opened_here(shard)
    path = _path(dataclasses.astuple(shard), ".shard")
    with contextlib.suppress(FileNotFoundError):
        return _used(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        with contextlib.suppress(FileNotFoundError):  # Another process or thread may have fetched it.
            return _used(path)
        if described(shard.place) != (shard.size, shard.version):
            raise _changed(shard)
        file = _fetched(shard.place, path, shard.size)
        _remove_old(path.parent)
        return file


def _opened_here(shard):
    file = open(getattr(shard, "place", shard), "rb")  # noqa: SIM115
    if isinstance(shard, Shard) and _state(os.fstat(file.fileno())) != (shard.size, shard.version):
        file.close()
        raise _changed(shard)
    return file


def _changed(shard):
    return OSError(f"{shard!r} has changed since the data set was loaded")


def folder_beside(shard, name):
    """The path of a shard's folder; of a remote one, a folder with a copy of a file beside it, if any."""
    if not is_remote(shard):
        return pathlib.Path(shard.place).parent
    url = f"{shard.place.rpartition('/')[0]}/{name}"
    path = _path(url, "") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _fetched(url, path).close()
    except (FileNotFoundError, PermissionError, Page):  # Some servers say nothing else of a missing file.
        path.unlink(missing_ok=True)
    return path.parent


def read_shards(shards, key, read):
    """What a function reads of each shard. It is stored, and not read again from an unchanged shard.

    Args:
        shards: A list of `Shard`.
        key: A JSON value that says what is read.
        read: A function from a shard to a JSON value.

    Yields:
        For each shard the JSON value, in which tuples are lists, and a digest of it and of the content.

    Example:
        >>> _ = (tmp / "a.tar").write_bytes(b"1234")
        >>> [value for value, digest in read_shards(shards_at([f"{tmp}/a.tar"]), "size", lambda of: of.size)]
        [4]
    """

    def value(shard):
        if is_remote(shard):
            address = shard.place
        else:  # The other time of a file is later if its time of modification was restored.
            address = os.path.abspath(shard.place), os.stat(shard.place).st_ctime_ns
        path = _path([FORMAT, address, shard.size, shard.version, key], ".index")
        with contextlib.suppress(OSError, EOFError, ValueError, TypeError, zlib.error):  # damaged or foreign
            name, *stored = json.loads(gzip.decompress(path.read_bytes()))
            if name == path.name:
                return stored
        text = json.dumps(read(shard))
        digest = hashlib.sha256(f"{_content_digest(shard)} {text}".encode()).hexdigest()
        content = f'["{path.name}", {text}, "{digest}"]'
        with contextlib.suppress(OSError, ValueError):  # Data are also read where there can be no cache.
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, gzip.compress(content.encode(), 1))
        return json.loads(text), digest

    values = _in_threads(value, shards, THREADS if any(map(is_remote, shards)) else 1)
    yield from Progress(values, "reading shards", total=len(shards), unit="shard")


def _content_digest(shard):
    """A digest of a file: of the whole content of a small one, and of blocks all over a large one."""
    digest = hashlib.sha256()
    with opened(shard) as file:
        if shard.size <= WHOLE:
            digest.update(file.read())
        else:
            for number in range(BLOCKS):
                file.seek(number * (shard.size - BLOCK) // (BLOCKS - 1))
                digest.update(file.read(BLOCK))
    return digest.hexdigest()


def _path(key, suffix):
    """The path in the cache for a JSON value."""
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    return cache_folder() / "shards" / f"{digest}{suffix}"


def _used(path):
    """A file of the cache, opened; its time says when."""
    os.utime(path)
    return open(path, "rb")


def _fetched(url, path, size=None):
    """Download a file to a path, where it appears complete or not at all, and open it."""
    with temporary_folder(path.parent) as folder:
        temporary = folder / path.name
        download(url, temporary, size)
        flush(temporary)
        file = temporary.open("rb")  # before it has a name, because other processes remove shards
        os.replace(temporary, path)
        return file


def _bound():
    """The largest number of bytes of the cache."""
    text = os.environ.get(BOUND, str(GIGABYTES))
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text) * 1e9
    raise ValueError(f"{BOUND} must be a number of gigabytes above 0; got {text!r}")


def _remove_old(folder):
    """Remove the shards that were used least recently until the rest, or the last, is within the bound."""
    stored, room = [], _bound()
    for path in folder.glob("*.shard"):
        with contextlib.suppress(FileNotFoundError):  # Other processes remove shards, too.
            status = path.stat()
            stored.append((status.st_mtime_ns, status.st_size, path))
    for number, (_, size, path) in enumerate(sorted(stored, reverse=True)):
        room -= size
        if room < 0 and number > 0:
            path.unlink(missing_ok=True)


def _in_threads(function, values, threads=THREADS):
    """The results of a function, in order; after an error no more values are begun."""
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    try:
        yield from pool.map(function, values)
    finally:
        pool.shutdown(cancel_futures=True)
