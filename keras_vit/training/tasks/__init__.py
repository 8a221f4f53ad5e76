"""The tasks that only runs have, a file for each: pairs of images and texts, and tasks without labels."""

from keras_vit.training.tasks.dino import DinoTask
from keras_vit.training.tasks.igpt import PixelTask
from keras_vit.training.tasks.image_text_pairs import Pairs as Pairs
from keras_vit.training.tasks.mae import ReconstructionTask
from keras_vit.training.tasks.masked_patch import MaskedPatchTask
from keras_vit.training.tasks.pretraining import Pictures as Pictures
from keras_vit.training.tasks.pretraining import Pretraining as Pretraining

# The tasks without labels, by the names of `keras-vit pretrain --objective`.
PRETRAINING = {
    "masked_patch": MaskedPatchTask,
    "mae": ReconstructionTask,
    "igpt": PixelTask,
    "dino": DinoTask,
}
