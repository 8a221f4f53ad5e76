# Written by `make stubs`.
from keras_vit.data.augmentation.crops import view_augmentation as view_augmentation
from keras_vit.data.augmentation.masking import masked_patch_batches as masked_patch_batches
from keras_vit.data.augmentation.masking import random_order_batches as random_order_batches
from keras_vit.data.augmentation.options import Augmentation as Augmentation
from keras_vit.data.batches import evaluation_batches as evaluation_batches
from keras_vit.data.batches import training_batches as training_batches
from keras_vit.data.datasets import Dataset as Dataset
from keras_vit.data.datasets import load_dataset as load_dataset
from keras_vit.data.samples import Samples as Samples
from keras_vit.data.texts import Texts as Texts
from keras_vit.tasks.image_text.samples import pair_batches as pair_batches
from keras_vit.tasks.segmentation.samples import MaskSamples as MaskSamples
