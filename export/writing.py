"""Files and folders that appear whole or not at all."""

import contextlib
import os
import pathlib
import re
import shutil
import tempfile
import time

from filelock import FileLock

from keras_vit.writing import PREFIX

LOCK = ".lock"
MINUTE, DAY = 60, 24 * 60 * 60  # in seconds
ENDINGS = (".tar.gz", ".tflite", ".onnx")  # what a free name keeps at its end


@contextlib.contextmanager
def new_path(path):
    """A temporary name beside `path` to write under; renamed to it at the end, removed on failure.

    Raises:
        ValueError: if `path` exists, by then or at the end; a free name is offered, the next version where
            it ends in a number.
        OSError: if it cannot be written, as on a full disk: in one line, whatever failed within.

    Example:
        >>> with new_path("served/1") as temporary:
        ...     _ = temporary.write_text("whole")
        >>> pathlib.Path("served/1").read_text()
        'whole'
    """
    path = pathlib.Path(path).expanduser()
    if path.name in ("", ".."):  # no name of its own to write under, as "." has none
        path = path.resolve()
    try:
        _check_new(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path.parent)
        folder = pathlib.Path(tempfile.mkdtemp(prefix=PREFIX, dir=path.parent))
        lock = FileLock(folder / LOCK)
        try:
            with contextlib.suppress(OSError):  # a file system without locks, where nothing is found stale
                lock.acquire(blocking=False)
            yield folder / path.name
            _check_new(path)  # a rename would replace a file that has appeared meanwhile
            (folder / path.name).rename(path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()
    except OSError as error:
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error  # of a `new_path` within
        reason = " ".join(str(cause).split())
        raise OSError(f"{os.fspath(path)!r} cannot be written: {reason}") from cause


def _remove_stale(parent):
    """Remove the temporary folders of killed processes, whose locks can be taken.

    A folder of the last minute stays, as it may not be locked yet. One without a lock, as version 0.1 made
    it, stays for a day.
    """
    for folder in parent.glob(f"{PREFIX}*/"):
        with contextlib.suppress(OSError):  # filelock's Timeout, too: an export is under way
            age = time.time() - folder.lstat().st_mtime
            if age > (MINUTE if (folder / LOCK).exists() else DAY) and not folder.is_symlink():
                with FileLock(folder / LOCK).acquire(blocking=False):
                    shutil.rmtree(folder, ignore_errors=True)


def _check_new(path):
    if os.path.lexists(path):
        raise ValueError(f"{os.fspath(path)!r} exists; {os.fspath(free_path(path))!r} is free")


def free_path(path):
    """The name after all that exist beside a path: version 4 after 3, export-2.tflite after export.tflite."""
    names = os.listdir(path.parent)
    if path.name.isdecimal():
        return path.with_name(str(max(int(name) for name in names if name.isdecimal()) + 1))
    ending = next(filter(path.name.endswith, ENDINGS), "")
    stem = path.name.removesuffix(ending)
    matches = (re.fullmatch(re.escape(stem) + r"-(\d+)" + re.escape(ending), name) for name in names)
    number = max((int(match[1]) for match in matches if match), default=1) + 1
    return path.parent / f"{stem}-{number}{ending}"
