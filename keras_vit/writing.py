"""Files that appear whole or not at all."""

import contextlib
import os
import pathlib
import uuid

PREFIX = ".writing-"  # of the names of temporary files


def check_target(path):
    """Raise ValueError if no file can be written under this name, before its contents are computed.

    >>> check_target("found.json")
    >>> check_target("missing/found.json")
    Traceback (most recent call last):
    ValueError: 'missing/found.json' cannot be written: there is no folder 'missing'
    """
    given, path = os.fspath(path), pathlib.Path(path).expanduser()
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
    raise ValueError(f"{given!r} cannot be written: {problem}")


@contextlib.contextmanager
def named_errors(path):
    """Name `path` in errors of writing it under a temporary path, on one line.

    Raises:
        OSError: for an OSError of a temporary path or of none; others stay as they are.
    """
    try:
        yield
    except OSError as error:
        is_of_another = error.filename is not None and PREFIX not in str(error.filename)
        if is_of_another or isinstance(error, BrokenPipeError):
            raise
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error  # of a path within
        reason = cause.strerror or " ".join(str(cause).split())
        raise OSError(f"{os.fspath(path)!r} cannot be written: {reason}") from error


@contextlib.contextmanager
def whole_path(path):
    """A temporary path to write a file to, which then replaces what is at `path`, or is removed on an error.

    A link keeps pointing where it does. A device or pipe, such as /dev/stdout, is written directly.

    Raises:
        ValueError: as `check_target`.
        OSError: if the file cannot be written, as on a full disk, in one line that names it.

    >>> with whole_path("whole.txt") as unfinished:
    ...     _ = unfinished.write_text("all of it")
    >>> pathlib.Path("whole.txt").read_text()
    'all of it'
    """
    check_target(path)
    final = pathlib.Path(path).expanduser().resolve()
    renamed = not _is_device(final)
    unfinished = temporary_beside(final) if renamed else final
    try:
        with named_errors(path):
            yield unfinished
            if renamed:
                unfinished.replace(final)
    finally:
        if renamed:
            unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_file(path, mode="w"):
    """As `whole_path`, with the file opened: for UTF-8 text with "\\n" at line ends, or bytes ("wb").

    >>> with whole_file("whole.csv") as file:
    ...     _ = file.write("image,class")
    >>> pathlib.Path("whole.csv").read_text()
    'image,class'
    """
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    with whole_path(path) as unfinished, open(unfinished, mode, **text) as file:
        yield file


def write_whole(path, content):
    """Write a str or bytes by `whole_file`.

    >>> write_whole("whole.bin", b"all of it")
    """
    with whole_file(path, "w" if isinstance(content, str) else "wb") as file:
        file.write(content)


def temporary_beside(path):
    """A new temporary path in the folder of a file, with its suffix."""
    return path.with_name(f"{PREFIX}{uuid.uuid4().hex}{path.suffix}")


def _is_device(path):
    return path.exists() and not path.is_file()
