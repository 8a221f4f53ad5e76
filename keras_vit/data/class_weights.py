"""Weights of classes in the loss, for data sets with many images of some classes and few of others."""

import numpy as np
import tensorflow as tf

from keras_vit.data.samples import not_converted


def class_weights(weights, labels, num_classes):
    """The weight of each class.

    Args:
        weights: "balanced", or a number for each class.
        labels: The class indices of the training images; None where they are unknown before reading.
        num_classes: The class count.

    Returns:
        float32 (num_classes,). "balanced" is images / (classes × images of the class), so that each class has
        the same total weight, and the mean over the images is 1; only classes with images are counted, and
        others have weight 0.

    Raises:
        ValueError: if there are not as many numbers as classes, or "balanced" needs labels that are unknown.

    Example:
        >>> class_weights("balanced", [0, 0, 0, 1], 2).round(3).tolist()
        [0.6669999957084656, 2.0]

    Source: scikit-learn's `compute_class_weight`.
    """
    if weights != "balanced":
        if len(weights) != num_classes:
            raise ValueError(f"class_weights needs {num_classes} numbers, one per class; got {len(weights)}")
        return np.asarray(weights, "float32")
    if labels is None:
        raise ValueError(
            "class_weights='balanced' needs labels that are known before reading, as of a folder or digits; "
            "give a number for each class"
        )
    counts = np.bincount(labels, minlength=num_classes)
    balanced = len(labels) / (np.count_nonzero(counts) * np.maximum(counts, 1))
    return np.where(counts, balanced, 0).astype("float32")


def with_class_weights(batches, weights):
    """Add the weight of each image's class to batches; of a mixed label, the mean of its classes' weights.

    Args:
        batches: tf.data.Dataset of (images, labels): class indices, or a fraction of each class.
        weights: The weight of each class.

    Returns:
        tf.data.Dataset of (images, labels, float32 (batch,)).

    Example:
        >>> batches = tf.data.Dataset.from_tensors((tf.zeros((2, 1)), tf.constant([1, 0])))
        >>> next(iter(with_class_weights(batches, [0.5, 2.0])))[2].numpy().tolist()
        [2.0, 0.5]
    """
    weights = tf.constant(weights, tf.float32)

    @not_converted
    def weighted(images, labels):
        is_index = labels.shape.rank == 1
        return images, labels, tf.gather(weights, labels) if is_index else tf.linalg.matvec(labels, weights)

    return batches.map(weighted, tf.data.AUTOTUNE)
