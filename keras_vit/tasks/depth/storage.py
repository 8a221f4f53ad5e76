"""Depth maps: files beside the images, whose values `depth.json` explains."""

import json

import numpy as np
import pyarrow

from keras_vit.data.column_types import ColumnForm, is_image, one
from keras_vit.data.label_storage import LabelStorage, Meaning
from keras_vit.labels import label_kind
from keras_vit.lazy import LazyModule
from keras_vit.tasks.depth.files import array_bytes
from keras_vit.tasks.depth.samples import SETTINGS, SUFFIXES, DepthReader, DepthSamples, read_settings

tf, tfds = LazyModule("tensorflow"), LazyModule("tensorflow_datasets")
# The `DepthReader` of features of TensorFlow Datasets that do not say what they mean.
KNOWN = {("nyu_depth_v2", "depth"): DepthReader(unit="m")}
WORDS = ("depth", "disparity")  # in names of features


class DepthMaps(LabelStorage):
    """A second column of files or images, or a member of its own."""

    kind, purpose = label_kind("depth"), "depth"
    file = SETTINGS
    column = ColumnForm(is_image, is_image, ("depth", "depth_map", "label"))
    suffixes = tuple(f"depth{suffix}" for suffix in SUFFIXES)
    types = {"depth": (pyarrow.binary(), lambda names: one("binary"))}

    def sample_value(self, sample, key):
        return sample.place(self.suffixes, "a depth map")

    def meaning(self, root, values, known, noun):
        reader = read_settings(root)
        return Meaning(reader.names, None, reader)

    def of_feature(self, name, key, feature):
        """As in `LabelStorage`: of arrays (height, width[, 1]) whose name has one of `WORDS`.

        A gray image of 16 bits is a depth in the unit of its numbers.
        """
        known = KNOWN.get((name, key))
        quantity = next((word for word in WORDS if word in key.lower()), None)
        kinds = tfds.features.Tensor, tfds.features.Image
        if not (known or quantity) or not isinstance(feature, kinds):
            return None
        shape, dtype = tuple(feature.shape), np.dtype(feature.np_dtype)
        reader = known or DepthReader(quantity, scale=1)
        if isinstance(feature, tfds.features.Image):
            return (reader.decode, reader.names) if dtype == "uint16" and shape[2:] == (1,) else None
        if len(shape) not in (2, 3) or shape[2:] not in ((), (1,)) or dtype.kind not in "fiu":
            return None

        def label(values):
            depths = tf.numpy_function(reader.converted, [values], tf.float32, stateful=False)
            return tf.ensure_shape(depths, (*shape[:2], 1))

        return label, reader.names

    def columns_of(self, label, name, content):
        return {"depth": array_bytes(label)}

    def samples_of(self, images, labels):
        # The labels have their unit already.
        reader = DepthReader("values", names=tuple(f"channel_{i}" for i in range(labels[0].shape[-1])))
        return DepthSamples(images, tuple(map(array_bytes, labels)), reader, exif=False)

    def members_of(self, columns):
        return {"depth.npy": columns["depth"]}

    def files(self, dataset):
        """`depth.json`, of maps that have their unit already."""
        stored = getattr(next(iter(dataset.splits.values())), "label_values", None) or {}
        kept = {name: stored[name] for name in ("unit", "min", "max", "crop") if name in stored}
        quantity = "values" if stored.get("quantity") == "values" else "depth"
        return {SETTINGS: json.dumps({"quantity": quantity, **kept, "names": [*dataset.class_names]}) + "\n"}


STORAGES = (DepthMaps(),)
