"""Boxes: structs of lists, as the package datasets writes the objects of COCO."""

import json

import numpy as np
import pyarrow
from pyarrow import types

from keras_vit.data.column_types import ColumnForm, is_list_of, one, several
from keras_vit.data.label_storage import LabelStorage, Meaning
from keras_vit.data.samples import Samples
from keras_vit.labels import label_kind
from keras_vit.labels.box_rows import DECIMALS, encode_boxes, in_pixels
from keras_vit.lazy import LazyModule
from keras_vit.preprocessing.image_files import image_size
from keras_vit.tasks.detection.stored_boxes import CATEGORIES, box_class_names, numbered_rows

tf, tfds = LazyModule("tensorflow"), LazyModule("tensorflow_datasets")
KEY = "objects"  # in the JSON object
CROWDS = ("is_crowd", "is_difficult")  # fields of objects that do not count


def is_objects(type):
    """Whether a type is a struct of lists, or a list of structs, with a box.

    >>> is_objects(pyarrow.list_(pyarrow.struct([("bbox", pyarrow.list_(pyarrow.float32()))])))
    True
    """
    type = type.value_type if is_list_of(types.is_struct)(type) else type
    return types.is_struct(type) and "bbox" in {field.name for field in type}


class Boxes(LabelStorage):
    """What `stored_boxes.objects_of` takes, with the sizes of the images."""

    kind, purpose = label_kind("detection"), "detection"
    column = ColumnForm(is_objects, is_objects, ("objects",))
    others = ("width", "height")
    types = {
        "width": (pyarrow.int64(), lambda names: one("int64")),
        "height": (pyarrow.int64(), lambda names: one("int64")),
        "objects": (
            pyarrow.struct(
                [
                    ("bbox", pyarrow.list_(pyarrow.list_(pyarrow.float64()))),
                    ("category", pyarrow.list_(pyarrow.int64())),
                    ("area", pyarrow.list_(pyarrow.float64())),
                    ("iscrowd", pyarrow.list_(pyarrow.bool_())),
                ]
            ),
            lambda names: {
                "bbox": several(several(one("float64"))),
                "category": several({"names": names, "_type": "ClassLabel"}),
                "area": several(one("float64")),
                "iscrowd": several(one("bool")),
            },
        ),
    }

    def column_values(self, read, count, columns, place):
        if columns.has_others:
            values, *sizes = read(columns.label, *self.others)
            sizes = zip(*sizes)
        else:
            values, images = read(columns.label, columns.image)
            contents = [image["bytes"] if isinstance(image, dict) else image for image in images]
            sizes = [image_size(content or b"") for content in contents]
        rows = enumerate(zip(values, sizes))
        return [numbered_rows(value, size, f"{place} {row}") for row, (value, size) in rows]

    def sample_value(self, sample, key):
        sizes = [sample.json_value(side, None) for side in self.others]
        if None in sizes:
            sizes = image_size(sample.image())
        return numbered_rows(sample.json_value(key or KEY), sizes, str(sample))

    def meaning(self, root, values, known, noun):
        count = max((row[4] for rows in values for row in rows), default=-1) + 1
        return Meaning(box_class_names(root, count, known), encode_boxes)

    def of_feature(self, name, key, feature):
        """As in `LabelStorage`: of boxes with a class in a sequence, such as `objects` of COCO and VOC.

        The area is that of the box.
        """
        inner, features = getattr(feature, "feature", None), tfds.features
        if not isinstance(feature, features.Sequence) or not isinstance(inner, features.FeaturesDict):
            return None
        names = {type(part): field for field, part in inner.items()}
        if not {tfds.features.BBoxFeature, tfds.features.ClassLabel} <= names.keys():
            return None
        box, label = names[tfds.features.BBoxFeature], names[tfds.features.ClassLabel]
        crowd = next((field for field in CROWDS if field in inner), None)

        def rows(objects):
            top, left, bottom, right = tf.unstack(tf.cast(objects[box], tf.float64), axis=1)
            is_crowd = tf.cast(objects[crowd], tf.float64) if crowd else tf.zeros_like(top)
            area = (bottom - top) * (right - left)
            return tf.stack(
                [left, top, right, bottom, tf.cast(objects[label], tf.float64), is_crowd, area], axis=1
            )

        return rows, tuple(inner[label].names)

    def class_feature(self, feature):
        return next((feature[name] for name in CATEGORIES if "bbox" in feature and name in feature), None)

    def columns_of(self, label, name, content):
        width, height = image_size(content)
        left, top, right, bottom, number, crowd, area = in_pixels(label, (height, width)).T
        box = np.round(np.stack([left, top, right - left, bottom - top], axis=1), DECIMALS)
        return {
            "width": width,
            "height": height,
            "objects": {
                "bbox": box.tolist(),
                "category": number.astype(int).tolist(),
                "area": area.tolist(),
                "iscrowd": crowd.astype(bool).tolist(),
            },
        }

    def samples_of(self, images, labels):
        return Samples(images, tuple(map(encode_boxes, labels)), exif=False)

    def members_of(self, columns):
        return {"json": json.dumps(columns).encode()}


STORAGES = (Boxes(),)
