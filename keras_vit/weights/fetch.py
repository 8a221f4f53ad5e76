"""A source to a local file."""

import os
import pathlib


def fetch(source):
    """The local file that a source names.

    Args:
        source: A path.

    Returns:
        pathlib.Path of an existing file.

    Raises:
        ValueError: if there is no such file, or the source is an address rather than a path.
    """
    text = os.fspath(source)
    if "://" in text:
        raise ValueError(f"{text!r} is an address; download it and give the path of the local file")
    path = pathlib.Path(text).expanduser()
    if path.is_dir():
        raise ValueError(f"{text!r} is a folder; give the checkpoint file in it")
    if not path.is_file():
        raise ValueError(f"no such checkpoint file: {text!r}")
    return path
