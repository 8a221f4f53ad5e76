"""Masked patch prediction: the targets are the patches of the images themselves, so there are no labels."""

import keras

from keras_vit.tasks.losses import MEAN
from keras_vit.tasks.task import Objective


def _objective(name, loss):
    return Objective(
        name=name,
        loss=lambda recipe: loss,
        metrics=lambda outputs: [],
        validation_metric="loss",
        higher_is_better=False,
    )


COLORS = _objective("colors", keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=MEAN))
PIXELS = _objective("pixels", keras.losses.MeanSquaredError(reduction=MEAN))


def masked_patch_objective(target):
    """The objective for a `target` of `MaskedPatchPredictor`."""
    return PIXELS if target == "pixels" else COLORS
