"""The outputs of exports: a class for each kind, in a file of its own."""

from keras_vit.export.outputs.class_maps import ClassMapOutputs
from keras_vit.export.outputs.depth import DepthOutputs
from keras_vit.export.outputs.detections import DetectionOutputs
from keras_vit.export.outputs.rows import RowOutputs

# By task; rows for the others.
OUTPUTS = {outputs.task: outputs for outputs in (ClassMapOutputs, DetectionOutputs, DepthOutputs)}
# The same by the kind of a model around a `VisionTransformer`.
AROUND = {outputs.kind: outputs for outputs in OUTPUTS.values()}


def outputs_of(description):
    """The outputs of an export, by its `Description`.

    >>> from keras_vit.export.description import describe
    >>> type(outputs_of(describe(model))).__name__
    'RowOutputs'
    """
    return OUTPUTS.get(description.task, RowOutputs)(description)
