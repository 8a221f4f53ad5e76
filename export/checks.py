"""Checks of the files of every runtime: their names, their outputs, and the error for damaged files."""

import os
import pathlib

import numpy as np

from keras_vit.messages import one_line


def new_file(path, suffix, what):
    """The path of a file to write.

    Args:
        path: As the user names it.
        suffix: That it must have.
        what: The file in words, such as "an ONNX file".

    Returns:
        pathlib.Path.

    Raises:
        ValueError: for another suffix.

    Example:
        >>> new_file("vit.onnx", ".onnx", "an ONNX file").name
        'vit.onnx'
    """
    path = pathlib.Path(path).expanduser()
    if path.suffix != suffix:
        raise ValueError(f"the name of {what} must end in {suffix}; got {os.fspath(path)!r}")
    return path


def check_finite(outputs, runtime):
    """Raise ValueError unless all outputs of a converted model, arrays by name, are finite.

    >>> check_finite({"logits": np.array([np.nan])}, "ONNX")
    Traceback (most recent call last):
    ValueError: the converted ONNX model computes NaN or infinite logits
    """
    broken = sorted(name for name, values in outputs.items() if not np.isfinite(values).all())
    if broken:
        raise ValueError(f"the converted {runtime} model computes NaN or infinite {', '.join(broken)}")


def damaged(path, error):
    """A ValueError for an exported file that cannot be opened."""
    return ValueError(f"{os.fspath(path)!r} is damaged, or cannot be opened here: {one_line(error)[:200]}")
