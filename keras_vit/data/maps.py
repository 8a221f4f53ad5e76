"""Maps of the pixels of images, such as masks: how they are read, resized and kept with their images."""

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from keras_vit.data.samples import EncodedSamples, content_of
from keras_vit.preprocessing.image_files import image_size
from keras_vit.preprocessing.image_resizing import padded


class MapReader:
    """How the contents of files become maps, the defaults that each kind of maps overrides.

    Attributes:
        task: The name of the task whose labels they are.
        dtype: Of the maps in records.
        channels: Their number of values for each pixel.
        label_values: How values in files become labels, as a JSON value; None: as they are.
    """

    task = None
    dtype = "uint8"
    channels = 1
    label_values = None

    def read(self, source):
        """The values of a map in a file: an array (height, width, …).

        Args:
            source: The path of the file (str) or its content (bytes).

        Raises:
            ValueError: if it is no such file, with the reason alone.
        """
        raise NotImplementedError

    def label(self, source):
        """The map of `read` as the label in records: (height, width, channels) in `dtype`."""
        return self.read(source)

    def check(self, image, source):
        """Raise ValueError, with the reason alone, for a map that is no label or has another size.

        Args:
            image: The path of the image (str) or its content (bytes), whose size may be unreadable.
            source: As for `read`.
        """
        height, width = self.label(source).shape[:2]
        if (size := image_size(image)) not in (None, (width, height)):
            raise ValueError(f"{width}×{height} pixels, but its image has {size[0]}×{size[1]} pixels")

    def decode(self, encoded):
        """As `label`, in a TensorFlow graph, of the content of a file, a string tensor ()."""

        def label(content):
            return self.label(bytes(np.asarray(content, object).item()))

        values = tf.numpy_function(label, [encoded], tf.as_dtype(self.dtype), stateful=False)
        return tf.ensure_shape(values, (None, None, self.channels))


class MapSamples(EncodedSamples):
    """Encoded images and their maps.

    Attributes:
        members: The names of the fields with the images and the maps.
        reader: The `MapReader` of the maps.
    """

    reader = None

    @property
    def task(self):
        return self.reader.task

    @property
    def label_values(self):
        return self.reader.label_values

    @property
    def _maps(self):
        return getattr(self, self.members[1])

    def stored(self):
        yield from super().stored()
        for index, of in enumerate(self._maps):
            describe = functools.partial(*((str, of) if isinstance(of, str) else (self.place, index)))
            check = functools.partial(self.reader.check, self.images[index])
            yield describe, functools.partial(content_of, of), check

    def _label(self, index):
        return self.reader.label(content_of(self._maps[index]))

    def _label_reader(self):
        maps, in_files = tf.constant(self._maps), isinstance(self._maps[0], str)
        return lambda index: self.reader.decode(tf.io.read_file(maps[index]) if in_files else maps[index])


def nearest(preprocessing):
    """A `Preprocessing` that resizes maps as another one resizes their images, by nearest pixels."""
    return dataclasses.replace(preprocessing, interpolation="nearest", antialias=False)


def prepare_map(label, kind, preprocessing):
    """A map as the label of an image that a `Preprocessing` has resized, as of `in_batches`.

    Args:
        label: Numbers (height, width, channels) of the image's own size.
        kind: The `LabelKind`.
        preprocessing: `Preprocessing`.

    Example:
        >>> kind = keras_vit.labels.label_kind("segmentation")
        >>> prepare_map(tf.constant([[[1], [2]]]), kind, keras_vit.Preprocessing((2, 4))).numpy().tolist()
        [[1, 1, 2, 2], [1, 1, 2, 2]]
    """
    return in_batches(resized_map(label, nearest(preprocessing), kind.outside), kind)


def in_batches(label, kind):
    """A map (height, width, channels) in the dtype of its `LabelKind`; (height, width) of one channel.

    >>> in_batches(tf.ones((4, 5, 1)), keras_vit.labels.label_kind("segmentation")).shape
    TensorShape([4, 5])
    """
    label = tf.cast(label, kind.dtype)
    return label if kind.has_channels else label[..., 0]


def resized_map(values, preprocessing, outside=None):
    """An image or a map as a `Preprocessing` resizes it, with `outside` in place of black padding."""
    if outside is not None and preprocessing.resize == "pad" and preprocessing.image_size:
        values = padded(values, preprocessing.padded_size, tf.cast(outside, values.dtype))
    if outside is None or outside == outside:
        return preprocessing.resized(values)
    # A part of a long image is resized by sums, in which a NaN would take up a row.
    is_number = tf.math.is_finite(values)
    numbers = preprocessing.resized(tf.where(is_number, values, 0.0))
    return tf.where(preprocessing.resized(tf.cast(is_number, tf.float32)) > 0.5, numbers, outside)
