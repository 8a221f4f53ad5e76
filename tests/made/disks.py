"""Disks that are full."""

import contextlib
import resource


@contextlib.contextmanager
def largest_file(limit):
    """No file of this process can grow above so many bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
