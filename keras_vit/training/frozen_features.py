"""What the frozen layers of a model compute for the images of a split, once for all steps of a run."""

import dataclasses
import math

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_vit.data.batches import evaluation_batches
from keras_vit.data.samples import IndexedSamples, not_converted
from keras_vit.engine.distributed_model import DistributedModel
from keras_vit.training.batch_rows import batch_indices, rows_at

LIMIT = 2**32  # bytes of the features of a run, which are in memory


@dataclasses.dataclass(frozen=True)
class FeatureSamples:
    """The features of a split's images, and its labels.

    Args:
        features: Arrays (samples, …).
        labels: An array (samples, …).
    """

    features: tuple[np.ndarray, ...]
    labels: np.ndarray

    def batches(self, batch_size, seed, steps, first_step=None):
        """The batches of features and labels whose images `training_batches` has with no augmentation.

        Args:
            batch_size, seed, steps, first_step: As for `training_batches`; without a first step, as
                for `evaluation_batches`.

        Returns:
            tf.data.Dataset of (tuple of features, labels).
        """
        indices = batch_indices(len(self.labels), batch_size, seed, steps, first_step)

        @not_converted
        def take(indices):
            *features, labels = rows_at(indices, [*self.features, self.labels])
            return tuple(features), labels

        return indices.map(take, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def feature_samples(model, recipe, *splits):
    """The features of splits of a data set, and the model prepared to be trained on them.

    Args:
        model: The compiled model of a run.
        recipe: `Recipe`.
        *splits: Splits of a `Dataset`.

    Returns:
        `FeatureSamples` of each split. None if the features differ from step to step, since their layers are
        trained, images are augmented or a layer is random, or if they are more than `LIMIT` bytes.
    """
    parts = frozen_parts(model)
    if parts is None or recipe.changes_images or model.compute_dtype != "float32":
        return None
    backbone, head = parts
    size = 4 * sum(map(len, splits)) * sum(math.prod(output.shape[1:]) for output in backbone.outputs)
    # The files of records are shuffled in a buffer, not by index.
    if size > LIMIT or not all(isinstance(split, IndexedSamples) for split in splits):
        return None
    computed = []
    for split in splits:
        batches, rows = evaluation_batches(split, model.preprocessing, recipe.batch_size), []
        for images, labels in batches.as_numpy_iterator():
            rows.append([*keras.tree.flatten(backbone.predict_on_batch(images)), labels])
        *features, labels = map(np.concatenate, zip(*rows))
        computed.append(FeatureSamples(tuple(features), labels))
    model.train_on_features(head)
    return computed


def frozen_parts(model):
    """The frozen layers of a model below its head.

    Returns:
        (model from images to features, function from a list of these to the model's outputs), or None if
        layers below the head are trained or random, or images have no fixed size.
    """
    features = model.head_inputs
    if not features or any(None in x.shape[1:] for x in model.inputs):
        return None
    shape = model.input.shape[1:] if model.head_reads_images else None
    backbone = DistributedModel(model.input, features)
    is_random = any(layer._seed_generators for layer in backbone._flatten_layers())
    if is_random or backbone.trainable_variables:
        return None
    rest = keras.Model([*features, model.input] if shape else features, model.output)

    def head(features, training=None):
        images = [ops.zeros((ops.shape(features[0])[0], *shape))] if shape else []
        return rest([*features, *images], training=training)

    return backbone, head
