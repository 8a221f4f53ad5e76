"""Numbers: of classes, or targets."""

import numpy as np
import pyarrow
from pyarrow import types

from keras_vit.data.column_types import ColumnForm, either, is_list_of, is_text, one, several
from keras_vit.data.label_storage import LabelStorage, Meaning
from keras_vit.data.stored_labels import label_maker, parse_numbers, parse_text
from keras_vit.labels import label_kind
from keras_vit.lazy import LazyModule

tf, tfds = LazyModule("tensorflow"), LazyModule("tensorflow_datasets")
SUFFIX = "cls"


class Numbers(LabelStorage):
    """Numbers in a column, or as words in a member.

    Attributes:
        of_label: A function from a label to the value of its column.
    """

    def __init__(self, kind, column, types, of_label):
        self.kind, self.column, self.types, self.of_label = label_kind(kind), column, types, of_label
        self.purpose = kind

    def column_values(self, read, count, columns, place):
        [values] = read(columns.label)
        parse, expected = (parse_text, "a class name") if columns.has_texts else (parse_numbers, self.kind)
        return [parse(value, f"{place} {row}", expected) for row, value in enumerate(values)]

    def sample_value(self, sample, key):
        return parse_numbers(sample.value(SUFFIX, key), sample, self.kind)

    def meaning(self, root, values, known, noun):
        if not (values and isinstance(values[0], str)):
            return Meaning(*label_maker(root, values, self.kind, known and tuple(known)))
        names = tuple(sorted({*values}))
        label_maker(root, range(len(names)), self.kind, names)
        return Meaning(names, {name: number for number, name in enumerate(names)}.__getitem__)

    def columns_of(self, label, name, content):
        [column] = self.types
        return {column: self.of_label(label)}

    def members_of(self, columns):
        [value] = columns.values()
        return {SUFFIX: " ".join(map(repr, value if isinstance(value, list) else [value])).encode()}


class ClassIds(Numbers):
    """The index of a class, or its name in a column."""

    def of_feature(self, name, key, feature):
        if isinstance(feature, tfds.features.ClassLabel):
            return lambda label: tf.cast(label, tf.int32), tuple(feature.names)


class ClassRows(Numbers):
    """The indices of any number of classes."""

    def of_feature(self, name, key, feature):
        features = tfds.features
        if not isinstance(feature, features.Sequence) or not isinstance(feature.feature, features.ClassLabel):
            return None
        classes = feature.feature.num_classes

        def multi_hot(labels):
            return tf.minimum(tf.reduce_sum(tf.one_hot(labels, classes), axis=0), 1)

        return multi_hot, tuple(feature.feature.names)


class Targets(Numbers):
    """Floating-point numbers."""

    def of_feature(self, name, key, feature):
        if not isinstance(feature, tfds.features.Tensor) or isinstance(feature, tfds.features.Image):
            return None
        if len(feature.shape) < 2 and None not in feature.shape and np.dtype(feature.np_dtype).kind == "f":
            targets = feature.shape[0] if feature.shape else 1
            names = (key,) if targets == 1 else tuple(f"{key}_{i}" for i in range(targets))
            return lambda number: tf.reshape(tf.cast(number, tf.float32), (targets,)), names


def _class_label(names):
    return {"names": names, "_type": "ClassLabel"}


_is_number = either(types.is_floating, types.is_integer)
STORAGES = (
    ClassIds(
        "single_label",
        ColumnForm(types.is_integer, either(types.is_integer, is_text), ("label", "labels")),
        {"label": (pyarrow.int64(), _class_label)},
        int,
    ),
    ClassRows(
        "multi_label",
        ColumnForm(*(is_list_of(types.is_integer),) * 2, ("label", "labels")),
        {"labels": (pyarrow.list_(pyarrow.int64()), lambda names: several(_class_label(names)))},
        lambda label: np.flatnonzero(label).tolist(),
    ),
    Targets(
        "regression",
        ColumnForm(
            either(types.is_floating, is_list_of(types.is_floating)),
            either(_is_number, is_list_of(_is_number)),
            ("label", "labels", "target"),
        ),
        {"target": (pyarrow.list_(pyarrow.float32()), lambda names: several(one("float32")))},
        lambda label: [float(number) for number in label],
    ),
)
