"""Samples to batches; each training batch is a function of (seed, step)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow as tf

from keras_vit.data.augmentation.mosaic import mosaic_augmentation
from keras_vit.data.augmentation.options import Augmentation
from keras_vit.data.augmentation.random_augmentation import batch_augmentation, image_augmentation
from keras_vit.data.decoding.model_input import decode, decode_and_prepare, first_of, prepared
from keras_vit.data.maps import in_batches, prepare_map
from keras_vit.data.samples import by_step, not_converted, worker_slots
from keras_vit.labels import kind_of_samples
from keras_vit.labels.box_rows import COLUMNS
from keras_vit.preprocessing import Preprocessing
from keras_vit.rules import integer

if TYPE_CHECKING:
    from keras_vit.data.samples import EncodedSamples


def training_batches(
    samples: EncodedSamples,
    preprocessing: Preprocessing,
    batch_size: int,
    *,
    seed: int,
    steps: int,
    first_step: int = 0,
    augmentation: Augmentation = Augmentation(),  # noqa: B008 - it is frozen
    augment: Callable | None = None,
    num_classes: int | None = None,
    worker: int = 0,
    workers: int = 1,
) -> tf.data.Dataset:
    """The batches of a training run, from one step to another.

    Every epoch is in a new order. Batch k and its augmentation depend only on the seed and k, so that a run
    resumed at step k gets the batches of an uninterrupted one (unless `augmentation.is_exact` is False).
    With several workers each gets a part of each batch, and MixUp, CutMix and mosaics blend within that part.

    Args:
        samples: A split of a `Dataset`.
        preprocessing: `Preprocessing`, or a dict of them by the names of several inputs, which show the same
            part of the image; labels move with the first one.
        batch_size: The global batch size, over all workers. All batches are full; one may span two epochs.
        seed: An int.
        steps: The step to stop before.
        first_step: The first step.
        augmentation: `Augmentation`.
        augment: A function from an encoded image and its seed, two ints, to what takes the image's place;
            None for `image_augmentation`.
        num_classes: One-hot encodes class indices; None leaves them. Labels of several numbers are unchanged.
        worker, workers: The worker's index, and the number of workers.

    Returns:
        tf.data.Dataset of (images, labels): float32 (batch_size / workers, height, width, channels), or a
        dict of them, and
        int32 (batch,), float32 (batch, num_classes or numbers per sample), for masks int32 (batch, height,
        width), resized by nearest pixels, 255 where a pixel is ignored, or for boxes float32 (batch, 100, 7),
        the rows of `labels.box_rows.COLUMNS`, where those with the class -1 fill up the batch.

    Raises:
        ValueError: if there are no samples; if the batch size is not a multiple of the workers; if labels are
            to be mixed and `num_classes` is missing, or a label is none of these classes; if the augmentation
            cannot change masks; if `preprocessing` has no `image_size` and the augmentation needs one.

    Example:
        >>> samples = load_dataset("digits").split("train")
        >>> batches = training_batches(
        ...     samples, Preprocessing(16), 8, seed=0, steps=2, augmentation=Augmentation(mixup=0.2),
        ...     num_classes=10)
        >>> [(images.shape[0], labels.shape[1]) for images, labels in batches]
        [(8, 10), (8, 10)]
    """
    slots = _worker_slots(samples, batch_size, worker, workers)
    records = samples.training_records(seed, first_step, steps, batch_size, slots)
    label_type = kind_of_samples(samples, records.element_spec[2].shape.rank)
    if label_type.moves:
        augmentation.check_moves_labels()
    if augmentation.mosaic and not label_type.has_mosaics:
        raise ValueError(f"mosaic needs boxes; got labels of the task {label_type.name!r}")
    if augmentation.mosaic and isinstance(preprocessing, dict):
        raise ValueError(f"mosaic needs a single input; got {', '.join(preprocessing)}")
    if augmentation.mixes and label_type.is_class_id and num_classes is None:
        raise ValueError("mixup and cutmix mix one-hot labels; pass num_classes")
    one_hot = label_type.is_class_id and num_classes is not None
    if one_hot and num_classes and samples.labels is not None:  # Images without labels have no classes.
        lowest, highest = min(samples.labels), max(samples.labels)
        if lowest < 0 or highest >= num_classes:
            raise ValueError(f"expected labels from 0 to {num_classes - 1}; got {lowest} to {highest}")
    augment = augment or image_augmentation(augmentation, preprocessing, samples.exif, label_type)

    @not_converted
    def sample(position, encoded, label):
        if label_type.moves:
            return augment(encoded, [seed, position], label)
        return augment(encoded, [seed, position]), tf.one_hot(label, num_classes) if one_hot else label

    records = records.map(sample, tf.data.AUTOTUNE)
    batches = records.batch(len(slots), drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    if augmentation.mosaic:
        blend = mosaic_augmentation(augmentation.mosaic)
    elif augmentation.mixes:
        blend = batch_augmentation(augmentation)
    else:
        return batches

    @not_converted
    def mixed(step, batch):
        return blend(*batch, [-1 - seed, step * workers + worker])  # Seeds of images are not negative.

    return by_step(batches, first_step, mixed)


def evaluation_batches(
    samples: EncodedSamples,
    preprocessing: Preprocessing,
    batch_size: int,
    *,
    worker: int = 0,
    workers: int = 1,
) -> tf.data.Dataset:
    """All samples once, in order; the last batch may be smaller.

    With several workers each gets a part of each batch, and all the same number of batches: of a smaller last
    batch, the parts of some are smaller or empty.

    Returns:
        tf.data.Dataset of (images, labels) as in `training_batches`.

    Raises:
        ValueError: if there are no samples, or the batch size is not a multiple of the workers.

    Example:
        >>> samples = load_dataset("digits").split("test")
        >>> sum(len(labels) for images, labels in evaluation_batches(samples, Preprocessing(16), 64))
        355
    """
    slots = _worker_slots(samples, batch_size, worker, workers)
    records = samples.evaluation_records()
    label_type = kind_of_samples(samples, records.element_spec[1].shape.rank)
    if workers > 1:
        is_own = not_converted(lambda i, _: (i % batch_size >= slots.start) & (i % batch_size < slots.stop))
        records = records.enumerate().filter(is_own).map(not_converted(lambda _, record: record))

    sample = functools.partial(evaluation_sample, label_type, preprocessing, samples.exif)
    batches = (
        records.map(not_converted(sample), tf.data.AUTOTUNE).batch(len(slots)).prefetch(tf.data.AUTOTUNE)
    )
    if 0 < len(samples) % batch_size <= slots.start:
        batches = batches.concatenate(_empty(batches.element_spec))
    if workers > 1:  # The filter hides their number, without which Keras warns on JAX that data ran out.
        batches = batches.apply(tf.data.experimental.assert_cardinality(-(-len(samples) // batch_size)))
    return batches


def evaluation_sample(kind, preprocessing, exif, encoded, label):
    """The image and the label of a record, as `evaluation_batches` has them.

    Args:
        kind: The `LabelKind`.
        preprocessing: `Preprocessing`, of the model or of its parts.
        exif: Whether images are turned as their EXIF data say.
        encoded, label: The record.
    """
    image = decode(encoded, exif)
    if kind.is_map:
        label = prepare_map(label, kind, first_of(preprocessing))
    elif kind.moves:
        label = kind.geometry().prepared(label, tf.shape(image)[:2], first_of(preprocessing))
    return prepared(image, preprocessing), label


def filled_up(batches, size):
    """Batches of one size: samples of weight 0 are appended to smaller ones.

    Args:
        batches: tf.data.Dataset of (inputs, labels) or (inputs, labels, weights).
        size: The size of a batch.

    Returns:
        tf.data.Dataset of (inputs, labels, weights). Weights are float32 (size,), or of the shape of the
        given ones.

    Example:
        >>> batches = evaluation_batches(load_dataset("digits").split("test"), Preprocessing(16), 64)
        >>> weights = [weights for images, labels, weights in filled_up(batches, 64)]
        >>> [len(w) for w in weights], int(sum(map(sum, weights)))
        ([64, 64, 64, 64, 64, 64], 355)
    """

    def fill(part):
        missing = size - tf.shape(part)[0]
        filled = tf.pad(part, [(0, missing), *[(0, 0)] * (part.shape.rank - 1)])
        return tf.ensure_shape(filled, (size, *part.shape[1:]))

    @not_converted
    def fill_batch(inputs, labels, weights=None):
        weights = tf.ones(tf.shape(labels)[:1]) if weights is None else weights
        return tf.nest.map_structure(fill, (inputs, labels, weights))

    return batches.map(fill_batch, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def mask_batches(samples, preprocessing, batch_size):
    """All samples once, in order, with maps of the images' own sizes; the last batch may be smaller.

    Args:
        samples: A split of a `Dataset` whose labels are maps, such as masks.
        preprocessing: `Preprocessing` that keeps the whole image.
        batch_size: Images per batch.

    Returns:
        tf.data.Dataset of (images, maps, sizes): float32 (batch, height, width, channels); for masks int32
        (batch, largest height, largest width), padded by 255; and int32 (batch, 2), their heights and widths.

    Raises:
        ValueError: if there are no samples, or the batch size is not positive.

    Example:
        >>> samples = load_dataset("digits_scenes", task="segmentation").split("test").take(range(2))
        >>> images, masks, sizes = next(iter(mask_batches(samples, Preprocessing(16), 2)))
        >>> images.shape[1:3], sizes.numpy().tolist()
        (TensorShape([16, 16]), [[32, 32], [32, 32]])
    """
    _worker_slots(samples, batch_size, worker=0, workers=1)
    records = samples.evaluation_records()
    label_type = kind_of_samples(samples, records.element_spec[1].shape.rank)

    @not_converted
    def sample(encoded, label):
        label = in_batches(label, label_type)
        return decode_and_prepare(encoded, preprocessing, samples.exif), label, tf.shape(label)[:2]

    records = records.map(sample, tf.data.AUTOTUNE)
    image_size = preprocessing.image_size or (None, None)
    channels = records.element_spec[1].shape[2:] if label_type.has_channels else ()
    shapes = ((*image_size, preprocessing.channels), (None, None, *channels), (2,))
    padding = (0.0, tf.cast(label_type.outside, label_type.dtype), 0)
    batches = records.padded_batch(batch_size, shapes, padding_values=padding)
    return batches.prefetch(tf.data.AUTOTUNE)


def box_batches(samples, preprocessing, batch_size):
    """All samples once, in order, with boxes relative to the images themselves; the last may be smaller.

    Args:
        samples: A split of a `Dataset` whose labels are boxes.
        preprocessing: `Preprocessing`.
        batch_size: Images per batch.

    Returns:
        tf.data.Dataset of (images, boxes, counts, sizes): float32 (batch, height, width, channels); float64
        (batch, most boxes, 7), int32 (batch,), the numbers of boxes, of which the others are padding; and
        int32 (batch, 2), the heights and widths of the images.

    Raises:
        ValueError: if there are no samples, or the batch size is not positive.

    Example:
        >>> samples = load_dataset("digits_scenes", task="detection").split("test").take(range(2))
        >>> images, boxes, counts, sizes = next(iter(box_batches(samples, Preprocessing(16), 2)))
        >>> boxes.shape[1] == int(max(counts)), sizes.numpy().tolist()
        (True, [[32, 32], [32, 32]])
    """
    _worker_slots(samples, batch_size, worker=0, workers=1)

    @not_converted
    def sample(encoded, boxes):
        image = decode(encoded, samples.exif)
        return prepared(image, preprocessing), boxes, tf.shape(boxes)[0], tf.shape(image)[:2]

    records = samples.evaluation_records().map(sample, tf.data.AUTOTUNE)
    image_size = preprocessing.image_size or (None, None)
    shapes = ((*image_size, preprocessing.channels), (None, len(COLUMNS)), (), (2,))
    return records.padded_batch(batch_size, shapes).prefetch(tf.data.AUTOTUNE)


def _worker_slots(samples, batch_size, worker, workers):
    """As `worker_slots`, after a check of the samples and the batch size."""
    if not len(samples):
        raise ValueError("expected at least one sample; got none")
    integer(at_least=1).check("batch_size", batch_size)
    return worker_slots(batch_size, worker, workers)


def _empty(spec):
    """A `tf.data.Dataset` of one batch without samples."""
    return tf.data.Dataset.from_tensors(
        tf.nest.map_structure(lambda part: tf.zeros([side or 0 for side in part.shape], part.dtype), spec)
    )
