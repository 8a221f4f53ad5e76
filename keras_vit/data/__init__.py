"""Images and labels: data sets, decoding, augmentation and batches, independent of the models."""

from keras_vit.data.augmentation_options import Augmentation as Augmentation
from keras_vit.lazy import lazy_names

# These names need TensorFlow, which other Keras backends do without.
LAZY = {
    "Dataset": "datasets",
    "MaskSamples": "masks",
    "Samples": "samples",
    "Texts": "pairs",
    "evaluation_batches": "batches",
    "load_dataset": "datasets",
    "masked_patch_batches": "masking",
    "pair_batches": "pairs",
    "random_order_batches": "masking",
    "training_batches": "batches",
    "view_augmentation": "views",
}
__getattr__, __dir__ = lazy_names(__name__, LAZY)
