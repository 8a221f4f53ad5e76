"""Keypoints in images: how they move with their image. Needs TensorFlow."""

import tensorflow as tf

from keras_vit.data.boxes import placement
from keras_vit.tasks.keypoints.labels import BOX_ROWS, MIRRORED, VISIBILITY


def moved(label, scale, offset):
    """A label in records at `scale` · position + `offset`.

    Args:
        label: (2 + points, 4), as of `labels.Keypoints`; float32 from here on.
        scale, offset: float32 (2,): (down, right), in fractions of the image's sides.

    Example:
        >>> from keras_vit.tasks.keypoints.labels import label_of
        >>> label = moved(label_of([[0.5, 0.25, 2]]), [1.0, 2.0], [0.0, -0.5])
        >>> label[2:].numpy().tolist(), label[:2, :2].numpy().tolist()
        ([[0.5, 0.25, 2.0, 0.0]], [[-0.5, 0.0], [1.5, 1.0]])
    """
    label = tf.cast(label, tf.float32)
    scale, offset = (tf.reverse(tf.cast(tf.stack(pair), tf.float32), [0]) for pair in (scale, offset))
    areas = label[:BOX_ROWS, 2:3] * tf.reduce_prod(scale)
    rest = tf.concat([areas, label[BOX_ROWS:, VISIBILITY:MIRRORED]], axis=0)
    return tf.concat([label[:, :2] * scale + offset, rest, label[:, MIRRORED:]], axis=1)


def visible(label):
    """The same label, in which points outside of the image have no label.

    >>> from keras_vit.tasks.keypoints.labels import label_of
    >>> visible(label_of([[0.5, 0.25, 2], [1.5, 0.25, 2]]))[2:].numpy().tolist()
    [[0.5, 0.25, 2.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    """
    label = tf.convert_to_tensor(label)
    places = label[BOX_ROWS:, :2]
    inside = tf.reduce_all((places >= 0) & (places <= 1), axis=1, keepdims=True)
    kept = tf.where(inside, label[BOX_ROWS:, :MIRRORED], 0)
    points = tf.concat([kept, label[BOX_ROWS:, MIRRORED:]], axis=1)
    return tf.concat([label[:BOX_ROWS], points], axis=0)


def mirrored(label, is_mirrored):
    """The label of an image whose left and right are exchanged, and with them those of the points.

    >>> from keras_vit.tasks.keypoints.labels import label_of
    >>> label = label_of([[0.25, 0.5, 2], [0, 0, 0]], (0, 0, 0.5, 1), flip_index=(1, 0))
    >>> mirrored(label, tf.constant(True))[:, :3].numpy().round(3).tolist()
    [[0.5, 0.0, 0.265], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.75, 0.5, 2.0]]
    """
    label = tf.convert_to_tensor(label)
    partners = tf.gather(label[BOX_ROWS:], tf.cast(label[BOX_ROWS:, MIRRORED], tf.int32))
    exists = partners[:, VISIBILITY:MIRRORED] > 0
    across = tf.where(exists, 1 - partners[:, :1], 0)
    points = tf.concat([across, partners[:, 1:MIRRORED], label[BOX_ROWS:, MIRRORED:]], axis=1)
    across = tf.reverse(1 - label[:BOX_ROWS, :1], [0])
    box = tf.concat([across, label[:BOX_ROWS, 1:]], axis=1)
    return tf.where(is_mirrored, tf.concat([box, points], axis=0), label)


def trained(label, seed=None):
    """The points of an image as the label in a batch: float32 (points, 3). It needs no seed.

    >>> from keras_vit.tasks.keypoints.labels import label_of
    >>> trained(label_of([[0.25, 0.5, 2]])).numpy().tolist()
    [[0.25, 0.5, 2.0]]
    """
    return tf.cast(label[BOX_ROWS:, :MIRRORED], tf.float32)


def prepared(label, size, preprocessing):
    """The points as the label of an image that a `Preprocessing` has resized: float32 (points, 3).

    Args:
        label: float64 (2 + points, 4).
        size: int32 (2,), the height and width of the image itself.
        preprocessing: `Preprocessing`.

    Example:
        >>> from keras_vit.tasks.keypoints.labels import label_of
        >>> prepare = keras_vit.Preprocessing(16, resize="crop")
        >>> prepared(label_of([[0.5, 0.25, 2]]), [30, 60], prepare).numpy().tolist()
        [[0.5, 0.25, 2.0]]
    """
    return trained(visible(moved(label, *placement(size, preprocessing))))
