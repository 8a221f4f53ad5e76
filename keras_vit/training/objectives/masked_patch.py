"""Masked patch prediction of the paper: the content of corrupted patches."""

import keras

from keras_vit import data
from keras_vit.models.masked_patch import MaskedPatchPredictor
from keras_vit.tasks.losses import MEAN
from keras_vit.training.objectives.objective import Pretraining


def masked_patch(config):
    """Masked patch prediction of the configuration's `target`.

    Source: Dosovitskiy et al. 2021, appendix B.1.2.
    """
    if config.target == "pixels":
        name, loss = "pixels", keras.losses.MeanSquaredError(reduction=MEAN)
    else:
        name, loss = "colors", keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=MEAN)
    return Pretraining(
        name=name,
        loss=lambda recipe: loss,
        metrics=lambda outputs: [],
        validation_metric="loss",
        higher_is_better=False,
        model=lambda encoder: MaskedPatchPredictor(encoder, config.target),
        batches=_batches,
    )


def _batches(batches, model, **part):
    return data.masked_patch_batches(batches, model.patch_targets, **part)
