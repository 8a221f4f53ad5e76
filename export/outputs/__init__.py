"""The outputs of exports: rows of numbers, and what the tasks with other outputs override."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from keras_vit.export.outputs.rows import RowOutputs
from keras_vit.tasks import export_outputs

if TYPE_CHECKING:
    from keras_vit.export.description import Description


def outputs_of(description: Description) -> RowOutputs:
    """The outputs of an export, by its `Description`.

    >>> from keras_vit.export.description import describe
    >>> type(outputs_of(describe(model))).__name__
    'RowOutputs'
    """
    return export_outputs().get(description.task, RowOutputs)(description)


@functools.cache
def outputs_around() -> dict[str, type[RowOutputs]]:
    """The classes of outputs of models around a `VisionTransformer`, by the kinds of these models."""
    return {outputs.kind: outputs for outputs in export_outputs().values()}
