"""Images and labels: data sets, decoding, augmentation, batches. Knows nothing of the models."""

from keras_vit.data.augmentation import Augmentation as Augmentation
from keras_vit.data.batches import evaluation_batches as evaluation_batches
from keras_vit.data.batches import training_batches as training_batches
from keras_vit.data.datasets import Dataset as Dataset
from keras_vit.data.datasets import load_dataset as load_dataset
from keras_vit.data.masking import masked_patch_batches as masked_patch_batches
from keras_vit.data.samples import Samples as Samples
