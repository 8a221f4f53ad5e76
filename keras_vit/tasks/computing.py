"""Compute a model's outputs for all samples of a split. Needs TensorFlow."""

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from keras_vit.data.batches import evaluation_batches, mask_batches
from keras_vit.data.decoding.model_input import decode, decode_and_prepare
from keras_vit.data.samples import not_converted
from keras_vit.labels import IGNORE, LABEL_KINDS
from keras_vit.models.classifying import check_finite
from keras_vit.tasks.segmentation_scores import SegmentationPredictions
from keras_vit.tasks.task import concatenate

_CLASS_MAPS = LABEL_KINDS["segmentation"]
_BATCH = 16  # of samples that exports are compared on


def computed(compute, samples, preprocessing, batch_size, doing="evaluating"):
    """Yield what a function returns for each batch, and the batch's labels.

    Args:
        compute: A function from images to an array with a row for each.
        samples: A split of a `Dataset`.
        preprocessing: The model's `Preprocessing`.
        batch_size: Images per batch.
        doing: The label of the progress bar.

    Raises:
        ValueError: if there are no samples, or a result is NaN or infinite.
    """
    batches = evaluation_batches(samples, preprocessing, batch_size)
    for images, labels in tqdm(batches, doing, unit="batch", delay=2, disable=None):
        yield check_finite(np.asarray(compute(np.asarray(images)))), np.asarray(labels)


def computed_maps(model, samples, batch_size):
    """Yield SegmentationPredictions of each batch of a model for one size, at the masks' own sizes."""
    batches = mask_batches(samples, model.preprocessing, batch_size)
    for images, masks, sizes in tqdm(batches, "evaluating", unit="batch", delay=2, disable=None):
        logits = check_finite(np.asarray(model.predict_on_batch(np.asarray(images))))
        labels = unpadded(masks.numpy(), sizes.numpy())
        for label in labels:
            _CLASS_MAPS.check(label[np.newaxis], model.num_classes)
        yield predictions_of_maps(logits, labels)


def unpadded(masks, sizes):
    """The masks of a batch of `mask_batches`, each of its own size."""
    return [mask[:height, :width] for mask, (height, width) in zip(masks, sizes)]


def predictions_of_maps(logits, labels):
    """SegmentationPredictions of logits, resized to the masks' sizes.

    Args:
        logits: Of each image, (height, width, classes).
        labels: The class map of each image, of any size.

    Example:
        >>> predictions_of_maps(np.zeros((1, 2, 2, 3)), [np.zeros((4, 4), int)]).pairs.tolist()
        [[0, 0, 16]]
    """
    predicted = []
    for scores, label in zip(logits, labels):
        if label.shape != scores.shape[:2]:
            scores = tf.image.resize(scores, label.shape).numpy()
        predicted.append(scores.argmax(-1))
    return SegmentationPredictions.of_maps(predicted, labels, logits.shape[-1])


def predict_maps(segment, samples, num_classes):
    """Segment all images of a split at their own sizes by any function, such as one with sliding windows.

    Args:
        segment: A function from an image, uint8 (height, width, 3), to a class map, ints (height, width).
        samples: A split of a `Dataset` for segmentation.
        num_classes: The number of classes.

    Returns:
        SegmentationPredictions.

    Raises:
        ValueError: if there are no samples, or a mask or a map has other classes or another size.

    Example:
        >>> samples = load_dataset("digits_scenes", task="segmentation").split("test").take(range(9))
        >>> background = predict_maps(lambda image: np.zeros(image.shape[:2], int), samples, num_classes=11)
        >>> keras_vit.evaluation.segmentation_scores(background)["pixel_accuracy"] > 0.5
        True
    """
    if not len(samples):
        raise ValueError("expected at least one sample; got none")
    records = samples.evaluation_records()
    predictions = []
    for encoded, mask in tqdm(records, "evaluating", unit="image", delay=2, disable=None):
        label = mask.numpy()[..., 0]
        predicted = np.asarray(segment(decode(encoded, samples.exif).numpy()))
        if predicted.shape == label.shape:  # `of_maps` tells of other sizes.
            for classes in (label, np.where(label == IGNORE, 0, predicted)):
                _CLASS_MAPS.check(classes[np.newaxis], num_classes)
        predictions.append(SegmentationPredictions.of_maps([predicted], [label], num_classes))
    return concatenate(predictions)


def one_hot(maps, num_classes):
    """Class maps in place of logits: 1 for the class of a pixel, 0 for others, float32.

    >>> one_hot(np.array([[[1]]]), 3).tolist()
    [[[[0.0, 1.0, 0.0]]]]
    """
    return (np.expand_dims(maps, -1) == np.arange(num_classes)).astype("float32")


def sampled_images(samples, preprocessing, count):
    """As `LabelTask.sampled`, with the labels in an array."""
    records = samples.training_records(0, 0, 1, _sample_count(samples, count))  # of one training step

    @not_converted
    def prepared(position, encoded, label):
        return decode_and_prepare(encoded, preprocessing, samples.exif), label

    batches = [*records.map(prepared, tf.data.AUTOTUNE).batch(_BATCH).as_numpy_iterator()]
    images, labels = (np.concatenate(parts) for parts in zip(*batches))
    return images, labels


def sampled_maps(samples, preprocessing, count):
    """As `LabelTask.sampled`, with a list of class maps, each of its image's own size."""
    indices = np.linspace(0, len(samples) - 1, _sample_count(samples, count)).astype(int)
    chosen = samples.take(indices.tolist())
    batches = [*mask_batches(chosen, preprocessing, _BATCH).as_numpy_iterator()]
    labels = [label for _, masks, sizes in batches for label in unpadded(masks, sizes)]
    return np.concatenate([images for images, *_ in batches]), labels


def _sample_count(samples, count):
    count = min(count, len(samples))
    if count < 1:
        raise ValueError(f"expected at least one image; got {count} of {len(samples)}")
    return count
