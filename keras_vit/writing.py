"""The cache, and atomic writes: a file or folder appears complete under its final name, or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import pathlib
import shutil
import tempfile
import time

from keras_vit.messages import one_line

PREFIX = ".writing-"  # of the names of temporary folders
DAY = 24 * 60 * 60  # seconds; an older temporary folder is that of a killed process
# They stay last in the name that `free_path` suggests.
SUFFIXES = (".tar.gz", ".keras", ".tflite", ".onnx", ".xml", ".bin")


def cache_folder() -> pathlib.Path:
    """Folder of downloads, and of what is computed of data.

    Returns:
        pathlib.Path: $KERAS_VIT_CACHE, else $XDG_CACHE_HOME/keras_vit, else ~/.cache/keras_vit. It
        need not exist.

    Example:
        >>> cache_folder().is_absolute()
        True
    """
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = pathlib.Path(os.environ.get("KERAS_VIT_CACHE") or pathlib.Path(caches, "keras_vit"))
    return folder.expanduser().absolute()


@contextlib.contextmanager
def atomic_path(path, overwrite=True):
    """Yield a temporary path for a file or folder that is renamed to `path` on success.

    The temporary path is in a new folder next to `path`, which nothing else uses, and which is removed at the
    end. Those of killed processes are removed after a day.

    Args:
        path: Final path. With `overwrite`, a link keeps its target, and a device or pipe, such as
            /dev/stdout, is written directly.
        overwrite: True: write a file, which may replace another, into an existing folder. False: write a new
            file or folder; missing parents are created.

    Raises:
        ValueError: with `overwrite`, as `check_writable`; without it, if `path` exists before or after the
            write. The message then suggests `free_path(path)`.
        OSError: if it cannot be written, for instance on a full disk. The message is one line with `path`.

    >>> with atomic_path("complete.txt") as temporary:
    ...     _ = temporary.write_text("all of it")
    >>> pathlib.Path("complete.txt").read_text()
    'all of it'
    """
    if overwrite:
        check_writable(path)
        final = pathlib.Path(path).expanduser().resolve()
        if _is_device(final):
            with named_errors(path):
                yield final
            return
    else:
        final = pathlib.Path(os.path.abspath(pathlib.Path(path).expanduser()))
        _check_new(final)
        final.parent.mkdir(parents=True, exist_ok=True)
    with named_errors(path), temporary_folder(final.parent) as folder:
        temporary = folder / final.name
        yield temporary
        flush(temporary)
        if not overwrite:
            _check_new(final)
        os.replace(temporary, final)


@contextlib.contextmanager
def atomic_open(path, mode="w"):
    """Open a file for an atomic write: UTF-8 text with "\\n" line endings, or bytes ("wb").

    Names of files in the text that are not UTF-8 keep their bytes.

    >>> with atomic_open("complete.csv") as file:
    ...     _ = file.write("image,class")
    >>> pathlib.Path("complete.csv").read_text()
    'image,class'
    """
    text = {} if "b" in mode else {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
    with atomic_path(path) as temporary, open(temporary, mode, **text) as file:
        yield file


def atomic_write(path, content):
    """Write a str or bytes to a file atomically.

    >>> atomic_write("complete.bin", b"all of it")
    """
    with atomic_open(path, "w" if isinstance(content, str) else "wb") as file:
        file.write(content)


def check_writable(path):
    """Raise ValueError if a file cannot be written at this path.

    >>> check_writable("found.json")
    >>> check_writable("missing/found.json")
    Traceback (most recent call last):
    ValueError: 'missing/found.json' cannot be written: there is no folder 'missing'
    """
    text, path = os.fspath(path), pathlib.Path(path).expanduser()
    folder = path.resolve().parent
    if path.is_dir():
        problem = "it is a folder"
    elif not folder.is_dir():
        problem = f"there is no folder {str(path.parent)!r}"
    elif path.exists() and not os.access(path, os.W_OK):
        problem = "it is read-only"
    elif not _is_device(path) and not os.access(folder, os.W_OK | os.X_OK):
        problem = f"the folder {str(path.parent)!r} is read-only"
    else:
        return
    raise ValueError(f"{text!r} cannot be written: {problem}")


def file_sha256(path):
    """The SHA-256 of a file in hexadecimal digits.

    >>> pathlib.Path("empty").touch()
    >>> file_sha256("empty")[:8]
    'e3b0c442'
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def free_path(path):
    """A free name: version 4 if 3 is the largest, export-2.tflite if there is only export.tflite."""
    if path.name.isdecimal():
        return path.with_name(str(max(int(n) for n in os.listdir(path.parent) if n.isdecimal()) + 1))
    suffix = next(filter(path.name.endswith, SUFFIXES), "")
    stem = path.name.removesuffix(suffix)
    candidates = (path.with_name(f"{stem}-{number}{suffix}") for number in itertools.count(2))
    return next(candidate for candidate in candidates if not os.path.lexists(candidate))


def _check_new(path):
    if os.path.lexists(path):
        raise ValueError(f"{os.fspath(path)!r} exists; {os.fspath(free_path(path))!r} is free")


@contextlib.contextmanager
def named_errors(path):
    """Name `path` in OSErrors about a temporary path or none; errors about other files pass unchanged."""
    try:
        yield
    except OSError as error:
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error  # of a nested write
        about_another_file = cause.filename is not None and PREFIX not in str(cause.filename)
        if about_another_file or isinstance(error, BrokenPipeError):
            raise
        reason = cause.strerror or one_line(cause)
        raise OSError(f"{os.fspath(path)!r} cannot be written: {reason}") from cause


@contextlib.contextmanager
def temporary_folder(parent):
    """Yield a new folder, which is removed at the end, or after a day if the process is killed."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # Another process may remove it.
            if time.time() - folder.lstat().st_mtime > DAY:
                shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent, ignore_cleanup_errors=True) as folder:
        yield pathlib.Path(folder)


def flush(path):
    """Flush a file, or all files of a folder, to the disk: a crash after the rename must not empty them."""
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file():
            with open(file, "rb") as opened:
                os.fsync(opened.fileno())


def _is_device(path):
    return path.exists() and not path.is_file()


@contextlib.contextmanager
def exclusive(lock):
    """A context with whether no other process has a file as its lock; none gets it meanwhile.

    The operating system releases the lock of a process that is killed.

    >>> with exclusive(tmp / "lock") as first, exclusive(tmp / "lock") as second:
    ...     first, second
    (True, False)
    """
    import filelock  # Its import takes long.

    try:
        with filelock.FileLock(lock, timeout=0, is_singleton=False):
            yield True
    except filelock.Timeout:
        yield False
