"""Images and labels: data sets, decoding, augmentation and batches, independent of the models."""

from keras_vit.data.augmentation.options import Augmentation as Augmentation
from keras_vit.lazy import lazy_names

# These names need TensorFlow, which other Keras backends do without.
LAZY = {
    "Dataset": "datasets",
    "MaskSamples": "keras_vit.tasks.segmentation.samples",
    "Samples": "samples",
    "Texts": "texts",
    "evaluation_batches": "batches",
    "load_dataset": "datasets",
    "masked_patch_batches": "augmentation.masking",
    "pair_batches": "keras_vit.tasks.image_text.samples",
    "random_order_batches": "augmentation.masking",
    "training_batches": "batches",
    "view_augmentation": "augmentation.crops",
}
__getattr__, __dir__ = lazy_names(__name__, LAZY)
