"""The kind of outputs of each task's exports."""

from keras_vit.export.class_map_outputs import ClassMapOutputs
from keras_vit.export.detection_outputs import DetectionOutputs
from keras_vit.export.row_outputs import RowOutputs

# By task; rows for the others.
OUTPUTS = {"segmentation": ClassMapOutputs, "detection": DetectionOutputs}


def outputs_of(description):
    """The outputs of an export, by its `Description`.

    >>> from keras_vit.export.description import describe
    >>> type(outputs_of(describe(model))).__name__
    'RowOutputs'
    """
    return OUTPUTS.get(description.task, RowOutputs)(description)
