"""Masks, PNG files beside the images."""

import numpy as np

from keras_vit.data.column_types import IMAGE, ColumnForm, is_image
from keras_vit.data.label_storage import LabelStorage, Meaning
from keras_vit.data.sources.tfds_masks import KNOWN_MASKS
from keras_vit.labels import label_kind
from keras_vit.lazy import LazyModule
from keras_vit.preprocessing.image_files import image_bytes
from keras_vit.tasks.segmentation.folder import read_named_classes
from keras_vit.tasks.segmentation.samples import MaskReader, MaskSamples

tfds = LazyModule("tensorflow_datasets")


class Masks(LabelStorage):
    """A second column of images, or a member of its own; `classes.txt` names the classes."""

    kind, purpose = label_kind("segmentation"), "segmentation"
    column = ColumnForm(is_image, is_image, ("mask", "label", "annotation", "segmentation_mask"))
    suffixes = ("seg.png", "mask.png")
    types = {"mask": IMAGE}

    def sample_value(self, sample, key):
        return sample.place(self.suffixes, "a mask")

    def meaning(self, root, values, known, noun):
        classes = read_named_classes(root, noun)
        return Meaning(classes.names, None, MaskReader(classes.table, classes.colors))

    def of_feature(self, name, key, feature):
        known = KNOWN_MASKS.get((name, key))
        if known and isinstance(feature, tfds.features.Image):
            return MaskReader(known.values, red=known.red).decode, known.class_names
        if isinstance(feature, tfds.features.LabeledImage) and feature.num_classes:
            return MaskReader().decode, tuple(feature.names)

    def columns_of(self, label, name, content):
        return {"mask": {"bytes": _png(label), "path": f"{name}.png"}}

    def samples_of(self, images, labels):
        return MaskSamples(images, tuple(map(_png, labels)), exif=False)

    def members_of(self, columns):
        return {self.suffixes[0]: columns["mask"]["bytes"]}


def _png(label):
    """The contents of a PNG file of a class map (height, width, 1)."""
    return image_bytes(np.uint8(label[..., 0]))


STORAGES = (Masks(),)
