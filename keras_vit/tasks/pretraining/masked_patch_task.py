"""Masked patch prediction of the paper: the content of corrupted patches."""

import keras

from keras_vit import data
from keras_vit.losses import MEAN
from keras_vit.tasks.pretraining.masked_patch_predictor import MaskedPatchPredictor
from keras_vit.tasks.pretraining.pictures import Pretraining


class MaskedPatchTask(Pretraining):
    """Masked patch prediction of the configuration's `target`.

    Source: Dosovitskiy et al. 2021, appendix B.1.2.
    """

    name = "masked_patch"
    recipe_fields = ("pretrainer", "target")

    def loss(self, recipe, model):
        if self.config.target == "pixels":
            return keras.losses.MeanSquaredError(reduction=MEAN)
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=MEAN)

    def model(self, encoder):
        return MaskedPatchPredictor(encoder, self.config.target)

    def batches(self, batches, model, source, **place):
        return data.masked_patch_batches(batches, model.patch_targets, **place)
