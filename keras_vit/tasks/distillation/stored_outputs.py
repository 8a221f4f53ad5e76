"""The outputs of a teacher that were computed before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

PREFIX = "embeddings:"  # of a teacher's source: the outputs are in a folder of embeddings


class StoredOutputs:
    """A teacher of a `DistillationModel` without a model: a vector for each image, computed before.

    Args:
        num_classes: Numbers in a vector.
        class_names: Names of these classes, or None.
        digest: A digest of what computed them, by which a resumed run knows its teacher.
        read: A function from a split of a `Dataset`, or a part of one, to an array (samples, num_classes);
            None if the outputs are passed to the model, as in the example.

    Example:
        >>> student = keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3, num_classes=5)
        >>> distillation = keras_vit.DistillationModel(student, [StoredOutputs(5)])
        >>> inputs = {"images": np.zeros((1, 32, 32, 3)), "teacher_1_outputs": np.ones((1, 5))}
        >>> distillation(inputs)[:, 1].numpy().tolist()
        [[1.0, 1.0, 1.0, 1.0, 1.0]]
    """

    is_classifier = True

    def __init__(
        self,
        num_classes: int,
        class_names: Sequence[str] | None = None,
        digest: str | None = None,
        read: Callable[[Any], np.ndarray] | None = None,
    ) -> None:
        self.num_classes, self.class_names = num_classes, class_names
        self.digest, self._read, self._known = digest, read, []

    @property
    def output_shape(self) -> tuple[None, int]:
        return None, self.num_classes

    def rows(self, samples: Any) -> np.ndarray:
        """The outputs for some samples, which are read once.

        Args:
            samples: A split of a `Dataset`, or a part of one.

        Returns:
            An array (samples, num_classes).
        """
        for known, rows in self._known:
            if known is samples:
                return rows
        rows = self._read(samples)
        self._known.append((samples, rows))
        return rows


def is_stored(source):
    """Whether the source of a teacher has its outputs instead of the model.

    >>> is_stored("embeddings:runs/outputs"), is_stored("runs/teacher")
    (True, False)
    """
    return source.startswith(PREFIX)


def open_outputs(source):
    """The `StoredOutputs` of a source.

    Raises:
        ValueError: if they cannot be read.
    """
    from keras_vit.tasks.distillation.teacher_rows import teacher_in  # needs the packages of embeddings

    return teacher_in(source.removeprefix(PREFIX))
