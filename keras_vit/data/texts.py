"""The texts that describe the classes or the images of a data set."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Texts:
    """The texts that describe the classes or the images of a data set.

    Args:
        wordings: The texts of each label, by split: tuples of tuples of str. A label is the index of a class
            or, in a data set without classes, of an image in its split.
        preprocessing: `TextPreprocessing`; None for that of the model that is trained.
    """

    wordings: dict[str, tuple[tuple[str, ...], ...]]
    preprocessing: Any = None
