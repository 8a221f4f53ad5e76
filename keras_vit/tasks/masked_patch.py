"""Masked patch prediction: the targets are the patches of the images themselves, so there are no labels."""

import keras

from keras_vit.tasks.losses import MEAN
from keras_vit.tasks.task import Objective


def _no_metrics(outputs):
    return []


COLORS = Objective(
    name="colors",
    loss=lambda recipe: keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=MEAN),
    metrics=_no_metrics,
    validation_metric="loss",
    higher_is_better=False,
)
PIXELS = Objective(
    name="pixels",
    loss=lambda recipe: keras.losses.MeanSquaredError(reduction=MEAN),
    metrics=_no_metrics,
    validation_metric="loss",
    higher_is_better=False,
)


def masked_patch_objective(target):
    """The objective for a `target` of `MaskedPatchPredictor`."""
    return PIXELS if target == "pixels" else COLORS
