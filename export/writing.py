"""Files and folders that appear whole or not at all."""

import contextlib
import os
import pathlib
import re
import shutil
import tempfile


@contextlib.contextmanager
def new_path(path):
    """A temporary name beside `path` to write under; renamed to it at the end, removed on failure.

    Raises:
        ValueError: if `path` exists; a free name is offered, the next version where it ends in a number.
        OSError: if nothing can be written there.

    Example:
        >>> with new_path("served/1") as temporary:
        ...     _ = temporary.write_text("whole")
        >>> pathlib.Path("served/1").read_text()
        'whole'
    """
    path = pathlib.Path(path).expanduser()
    if path.exists():
        raise ValueError(f"{os.fspath(path)!r} exists; {os.fspath(_free(path))!r} is free")
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix=".writing-", dir=path.parent))
    try:
        yield folder / path.name
        (folder / path.name).rename(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _free(path):
    """The name after all that there are: version 4 after 3, export-2.tflite after export.tflite."""
    if path.name.isdecimal():
        versions = [int(other.name) for other in path.parent.iterdir() if other.name.isdecimal()]
        return path.with_name(str(max(versions) + 1))
    numbers = [1]
    for other in path.parent.iterdir():
        match = re.fullmatch(re.escape(path.stem) + r"-(\d+)" + re.escape(path.suffix), other.name)
        numbers += [int(match[1])] if match else []
    return path.with_name(f"{path.stem}-{max(numbers) + 1}{path.suffix}")
