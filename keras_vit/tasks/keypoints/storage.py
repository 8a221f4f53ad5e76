"""Keypoints beside images: the JSON of an object in shards, and the points of TensorFlow Datasets."""

import json

import numpy as np
import pyarrow
from pyarrow import types as arrow_types

from keras_vit.data.column_types import ColumnForm, one
from keras_vit.data.label_storage import LabelStorage, Meaning
from keras_vit.labels import label_kind
from keras_vit.lazy import LazyModule
from keras_vit.preprocessing.image_files import image_size
from keras_vit.tasks.keypoints.labels import BOX_ROWS, MIRRORED, encode, label_of
from keras_vit.tasks.keypoints.reader import SETTINGS, KeypointReader, read_settings, settings_of
from keras_vit.tasks.keypoints.samples import KeypointSamples
from keras_vit.tasks.keypoints.stored_objects import json_of

tf, tfds = LazyModule("tensorflow"), LazyModule("tensorflow_datasets")
WORDS = ("keypoint", "landmark")  # in names of features


def is_json(type):
    """Whether a type is a struct of `bytes` alone, which is no image.

    >>> is_json(pyarrow.struct([("bytes", pyarrow.binary())])), is_json(pyarrow.binary())
    (True, False)
    """
    return arrow_types.is_struct(type) and [field.name for field in type] == ["bytes"]


class KeypointObjects(LabelStorage):
    """A member or a column of its own with the JSON of `stored_objects.json_of`, an object in each image."""

    kind, purpose = label_kind("keypoints"), "keypoints"
    file = SETTINGS
    column = ColumnForm(is_json, is_json, ("keypoints",))
    suffix = "keypoints.json"
    types = {
        "keypoints": (
            pyarrow.struct([("bytes", pyarrow.binary())]),
            lambda names: {"bytes": one("binary")},
        )
    }

    def sample_value(self, sample, key):
        return sample.place((self.suffix,), "keypoints")

    def meaning(self, root, values, known, noun):
        if not settings_of(root).get("names"):
            raise ValueError(f"expected {SETTINGS!r} beside the {noun} files, with names of the keypoints")
        reader = read_settings(root)
        return Meaning(reader.names, None, reader)

    def of_feature(self, name, key, feature):
        """As in `LabelStorage`: of arrays (points, 2 or 3) whose name has one of `WORDS`.

        They are x, y and perhaps the visibility, in fractions of the image, which is the box of the object.
        """
        shape = tuple(feature.shape) if isinstance(feature, tfds.features.Tensor) else ()
        if len(shape) != 2 or not shape[0] or shape[1] not in (2, 3):
            return None
        if not any(word in key.lower() for word in WORDS) or np.dtype(feature.np_dtype).kind != "f":
            return None
        empty = label_of(np.zeros((shape[0], 3)))

        def label(values):
            values = tf.cast(values, tf.float64)
            marks = values[:, 2:] if shape[1] == 3 else tf.fill((shape[0], 1), tf.constant(2.0, tf.float64))
            points = tf.where(marks > 0, tf.concat([values[:, :2], marks], axis=1), 0.0)
            points = tf.concat([points, empty[BOX_ROWS:, MIRRORED:]], axis=1)
            return tf.concat([empty[:BOX_ROWS], points], axis=0)

        return label, tuple(map(str, range(shape[0])))

    def columns_of(self, label, name, content):
        return {"keypoints": {"bytes": json.dumps(json_of(label, image_size(content))).encode()}}

    def samples_of(self, images, labels):
        names = tuple(map(str, range(len(labels[0]) - BOX_ROWS)))
        flip_index = tuple(labels[0][BOX_ROWS:, MIRRORED].astype(int).tolist())
        reader = KeypointReader(names, flip_index)
        return KeypointSamples(images, tuple(map(encode, labels)), reader, exif=False)

    def members_of(self, columns):
        return {self.suffix: columns["keypoints"]["bytes"]}

    def files(self, dataset):
        """`keypoints.json`."""
        stored = getattr(next(iter(dataset.splits.values())), "label_values", None) or {}
        return {SETTINGS: json.dumps(stored | {"names": [*dataset.class_names]}) + "\n"}


STORAGES = (KeypointObjects(),)
