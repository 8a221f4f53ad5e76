"""Types of arguments and results, for annotations."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias


class Array(Protocol):
    """A NumPy array, or a tensor of a Keras backend."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any: ...


class Picture(Protocol):
    """An image of Pillow."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


# A tensor of the Keras backend, symbolic or not; most functions also take a NumPy array for it.
Tensor: TypeAlias = Any
ArrayOrTensor: TypeAlias = Any  # an array returns an array, and a tensor a tensor
Shape: TypeAlias = tuple[int | None, ...]
Path: TypeAlias = str | os.PathLike[str]
# (height, width) in pixels, or one int for both; None for a side of any length.
Size: TypeAlias = int | Sequence[int | None]
# One image or several: arrays (…, height, width, channels), paths or URLs, and lists of them.
Images: TypeAlias = Array | Picture | Path | Sequence[Array | Picture | Path]
# Names of classes, or a dict from names to texts that describe them.
Labels: TypeAlias = Sequence[str] | Mapping[str, str | Sequence[str]]
