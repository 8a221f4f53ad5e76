"""Rows in a file beside the output of a long command, which continues from them after an interruption."""

import contextlib
import hashlib
import json
import os
import pathlib

from keras_vit.writing import exclusive, file_sha256, named_errors

FORMAT = "keras_vit rows 1"


class Journal:
    """Rows in JSON lines, after a line with what they are rows of.

    A last line that was cut off is removed.

    Args:
        path: Of the file, which may exist.
        origin: dict of JSON values on which the rows depend.

    Attributes:
        count: The number of rows in the file.

    Raises:
        ValueError: if the file is of another origin, or is no journal.
        OSError: if the file cannot be written.

    Example:
        >>> from keras_vit.cli.journal import Journal
        >>> first = Journal(tmp / "rows", {"model": "a"})
        >>> [*first.recorded(iter([{"image": 1}, {"image": 2}]))]
        [{'image': 1}, {'image': 2}]
        >>> second = Journal(tmp / "rows", {"model": "a"})
        >>> second.count, [*second.recorded(iter([{"image": 3}]))]
        (2, [{'image': 1}, {'image': 2}, {'image': 3}])
    """

    def __init__(self, path, origin):
        self.path, self.count, origin = pathlib.Path(path), 0, {"format": FORMAT, **origin}
        if self.path.exists():
            with open(self.path, "rb") as file:
                self._check(file.readline(), origin)
                length = file.tell()
                for line in file:
                    if line.endswith(b"\n"):
                        length += len(line)
                        self.count += 1
            os.truncate(self.path, length)
        else:
            with named_errors(self.path), open(self.path, "xb") as file:
                file.write(_line(origin))

    def rows(self):
        """The rows in the file."""
        with open(self.path, encoding="utf-8") as file:
            next(file)
            yield from map(json.loads, file)

    def recorded(self, rows):
        """The rows in the file, and then others, each of which is written before it is yielded."""
        yield from self.rows()
        with named_errors(self.path), open(self.path, "ab", buffering=0) as file:
            for row in rows:
                file.write(_line(row))
                self.count += 1
                yield row

    def _check(self, line, origin):
        try:
            known = json.loads(line)
            if known["format"] != FORMAT:
                raise ValueError
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"{os.fspath(self.path)!r} holds no rows of an interrupted command; remove it"
            ) from None
        if changed := [name for name in origin if known.get(name) != origin[name]]:
            raise ValueError(
                f"{os.fspath(self.path)!r} was begun with another {changed[0]}; remove it to begin again"
            )


def _line(row):
    return json.dumps(row, allow_nan=False).encode() + b"\n"


@contextlib.contextmanager
def only_process(path):
    """A context in which no other process writes a file.

    Raises:
        ValueError: if one does so now.
    """
    lock = pathlib.Path(f"{path}.lock")
    with exclusive(lock) as is_free:
        if not is_free:
            raise ValueError(f"another process writes {os.fspath(path)!r}")
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def content_digest(source):
    """A digest of the file or of all files of a folder at a path; any other value unchanged.

    >>> content_digest("hf://org/model")
    'hf://org/model'
    """
    if source is None or not os.path.exists(source):
        return source
    root, digest = pathlib.Path(source), hashlib.sha256()
    for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
        if path.is_file():
            digest.update(file_sha256(path).encode())
    return digest.hexdigest()
