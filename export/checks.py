"""Checks of the files of every runtime: their names, their outputs, and the error for damaged files."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from keras_vit.lazy import LazyModule
from keras_vit.messages import one_line
from keras_vit.types import Path

keras = LazyModule("keras")
CALIBRATED = ("int8", "full_int8")  # precisions with ranges of activations, which images are needed for


def new_file(path: Path, suffix: str, what: str) -> pathlib.Path:
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


def check_backend(files: str, advice: str) -> None:
    """Raise ValueError on another backend than TensorFlow, on which these files are written.

    >>> check_backend("LiteRT files", "set KERAS_BACKEND=tensorflow")
    """
    if (backend := keras.backend.backend()) != "tensorflow":
        raise ValueError(f"{files} are written on the TensorFlow backend, not on {backend}: {advice}")


def check_calibration(precision: str, calibration: np.ndarray | Sequence[np.ndarray] | None) -> None:
    """Raise ValueError unless there are calibration images for these precisions, and for these alone.

    >>> check_calibration("int8", None)
    Traceback (most recent call last):
    ValueError: int8 is calibrated on images: give some, such as a data set with a train split
    """
    if precision in CALIBRATED and calibration is None:
        raise ValueError(
            f"{precision} is calibrated on images: give some, such as a data set with a train split"
        )
    if precision not in CALIBRATED and calibration is not None:
        raise ValueError(
            f"calibration is an option of {' and '.join(CALIBRATED)} only; got precision {precision!r}"
        )


def cosines(live: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """The cosine between the live model's and an export's output of each image; 0 where one has no length.

    >>> cosines(np.array([[3.0, 0.0], [0.0, 0.0]]), np.array([[4.0, 3.0], [1.0, 0.0]])).round(6).tolist()
    [0.8, 0.0]
    """
    live, outputs = (np.reshape(rows, (len(rows), -1)) for rows in (live, outputs))
    lengths = np.linalg.norm(live, axis=1) * np.linalg.norm(outputs, axis=1)
    return np.sum(live * outputs, axis=1) / np.maximum(lengths, 1e-12)


def check_finite(outputs: Mapping[str, np.ndarray], runtime: str) -> None:
    """Raise ValueError unless all outputs of a converted model, arrays by name, are finite.

    >>> check_finite({"logits": np.array([np.nan])}, "ONNX")
    Traceback (most recent call last):
    ValueError: the converted ONNX model computes NaN or infinite logits
    """
    broken = sorted(name for name, values in outputs.items() if not np.isfinite(values).all())
    if broken:
        raise ValueError(f"the converted {runtime} model computes NaN or infinite {', '.join(broken)}")


def damaged(path: Path, error: Exception | str) -> ValueError:
    """A ValueError for an exported file that cannot be opened."""
    return ValueError(f"{os.fspath(path)!r} is damaged, or cannot be opened here: {one_line(error)[:200]}")
