"""Objectives without labels, a file for each: the trained model, its batches, loss and scores."""

from keras_vit.training.objectives.dino import dino
from keras_vit.training.objectives.igpt import igpt
from keras_vit.training.objectives.mae import mae
from keras_vit.training.objectives.masked_patch import masked_patch
from keras_vit.training.objectives.objective import Pictures as Pictures
from keras_vit.training.objectives.objective import Pretraining as Pretraining

# Functions from a `RunConfig` to a `Pretraining`, by the names of `keras-vit pretrain --objective`.
OBJECTIVES = {"masked_patch": masked_patch, "mae": mae, "igpt": igpt, "dino": dino}
