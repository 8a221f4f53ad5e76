"""Disks that are full."""

import contextlib
import errno
import os
import resource
import sys


@contextlib.contextmanager
def largest_file(limit):
    """No file of this process can grow above so many bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def full_disk(folder, entries=0):
    """Under the folder Python can make so many entries, files and folders, and no more.

    Yields a list of those that it made, with those that it could not.
    """
    made = []
    _watched.append((os.path.join(os.path.realpath(folder), ""), entries, made))
    try:
        yield made
    finally:
        _watched.pop()


_watched = []


def _audit(event, arguments):
    """Audit hook (PEP 578): an exception prevents the operation."""
    if not _watched or event not in ("open", "os.mkdir", "os.rename"):
        return
    path = arguments[1 if event == "os.rename" else 0]
    if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
        return
    folder, entries, made = _watched[-1]
    if isinstance(path, int) or not os.path.abspath(os.fsdecode(path)).startswith(folder):
        return
    made.append(f"{event} {path}")
    if len(made) > entries:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fsdecode(path))


sys.addaudithook(_audit)
