"""How labels are stored in Parquet and tar files and TensorFlow Datasets."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from keras_vit.data.files import CLASSES
from keras_vit.data.maps import MapReader
from keras_vit.data.samples import Samples
from keras_vit.labels import kind_of_samples
from keras_vit.tasks import caption_storage, label_storages


class Meaning(NamedTuple):
    """What the stored values of a data set mean.

    Args:
        names: Of the classes or targets.
        label_of: A function from a value to the label of a sample; None for maps.
        reader: The `MapReader` of maps.
    """

    names: tuple[str, ...] = ()
    label_of: Callable | None = lambda value: 0
    reader: MapReader | None = None


class LabelStorage:
    """How labels are stored with their images.

    Attributes:
        kind: Their `LabelKind`.
        purpose: What is read, in the keys of cached indices.
        column: The `ColumnForm` of labels in Parquet files; None without labels.
        file: The name of the file beside shards that `meaning` reads.
        others: Columns that are read, too, of Parquet files that have all of them.
        types: By column that `columns_of` returns, its type, and a function from the class names to its
            feature for the package datasets.
    """

    kind = purpose = column = None
    file = CLASSES
    others = ()
    types = {}

    @property
    def task(self):
        """The name of the task of the labels; None of captions and without labels."""
        return self.kind and self.kind.name

    def column_values(self, read, count, columns, place):
        """What is read of each row of a row group of a Parquet file: JSON values, as of `sample_value`.

        Args:
            read: A function from names of columns to the lists of their values.
            count: The number of rows.
            columns: The `Columns` of the file.
            place: The beginning of a row's place, for messages.
        """
        return [0] * count

    def sample_value(self, sample, key):
        """What is read of a sample of a tar file: a JSON value.

        A negative int skips the sample, and {"wrong": [reason, …]} with `on_bad_image="skip"`.

        Args:
            sample: The `Sample`.
            key: The key of a value in its JSON object; None unless a field names one.
        """
        return 0

    def meaning(self, root, values, known, noun):
        """The `Meaning` of what was read.

        Args:
            root: The folder of the files, pathlib.Path.
            values: Those of all samples.
            known: The class names in the metadata of Parquet files; None without them.
            noun: Of the files, for messages.
        """
        return Meaning()

    def of_feature(self, name, key, feature):
        """How a feature of TensorFlow Datasets is read; None if it has no such labels.

        Args:
            name: The name of the data set.
            key, feature: The name of the feature, and the feature.

        Returns:
            A function from its value to the label, and the names of the classes or targets.
        """
        return None

    def class_feature(self, feature):
        """The feature of the classes in a struct of the package datasets, a dict; None if it has none."""
        return None

    def columns_of(self, label, name, content):
        """A label as columns of a Parquet file, a dict.

        Args:
            label: As `samples[i]` has it; of captions the texts.
            name: The name of the sample.
            content: The image, bytes.
        """
        return {}

    def samples_of(self, images, labels):
        """Samples in memory of encoded images and their labels, as `samples[i]` has them."""
        return Samples(images, labels, exif=False)

    def members_of(self, columns):
        """The members of a tar file, bytes by suffix, for what `columns_of` returns."""
        return {}

    def files(self, dataset):
        """The texts of files beside those with the samples, by their names."""
        return {}


def storage_of(task, texts=False, labels=True):
    """The `LabelStorage` of a task, or of captions, or of images without labels.

    >>> storage_of("segmentation").suffixes
    ('seg.png', 'mask.png')
    """
    if texts:
        return caption_storage()
    return label_storages()[task] if labels else LabelStorage()


def chosen_samples(samples, indices):
    """The samples at some indices; of those that are read in another order, as many of a run's first step.

    Args:
        samples: A split of a `Dataset`.
        indices: In ascending order, at least one.

    Returns:
        Samples with a `take`: `samples.take(indices)`, or samples in memory.
    """
    if samples.order == "index" and hasattr(samples, "take"):
        return samples.take(indices)
    records = samples.training_records(0, 0, 1, len(indices))
    images, labels = zip(*((image.numpy(), label.numpy()) for _, image, label in records))
    storage = label_storages()[kind_of_samples(samples, labels[0].ndim).name]
    return dataclasses.replace(storage.samples_of(images, labels), exif=samples.exif)
