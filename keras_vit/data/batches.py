"""Samples to batches: each training batch is a function of (seed, step)."""

import tensorflow as tf

from keras_vit.data.augmentation import Augmentation, batch_augmentation, image_augmentation
from keras_vit.data.images import decode_and_prepare
from keras_vit.data.samples import check_not_empty


def training_batches(
    samples,
    preprocessing,
    batch_size,
    *,
    seed,
    steps,
    first_step=0,
    augmentation=Augmentation(),  # noqa: B008 - it is frozen
    num_classes=None,
    worker=0,
    workers=1,
):
    """The batches of a training run, from one step to another.

    Every pass over the data is in a new order; batch k and its augmentation depend on the seed and k
    alone, so a run that starts at step k gets what an uninterrupted one would have got (unless
    `augmentation.is_exact` is False). Several workers share each batch; what MixUp and CutMix blend
    then stays within a worker's share.

    Args:
        samples: What to draw from, as a `Dataset` has it for each split.
        preprocessing: How images become model input.
        batch_size: Samples in a batch of all workers together; every batch is full, running over
            into the next pass.
        seed: An int.
        steps: The step to stop before.
        first_step: The step to start at.
        augmentation: Augmentation.
        num_classes: Turns class numbers into one number per class; None leaves them. Labels of several
            numbers stay what they are.
        worker, workers: Which of how many workers these batches are for.

    Returns:
        tf.data.Dataset of (images float32 (batch_size / workers, height, width, channels), labels):
        labels int32 (batch,), or float32 (batch, num_classes) or as many numbers as a sample has.

    Raises:
        ValueError: if there are no samples; if the batch does not divide by the workers; if labels are
            to be mixed and `num_classes` is missing; if `preprocessing` has no `image_size` and the
            augmentation needs one.

    Example:
        >>> samples = load_dataset("digits").split("train")
        >>> batches = training_batches(
        ...     samples, Preprocessing(16), 8, seed=0, steps=2, augmentation=Augmentation(mixup=0.2),
        ...     num_classes=10)
        >>> [(images.shape[0], labels.shape[1]) for images, labels in batches]
        [(8, 10), (8, 10)]
    """
    share = _share(samples, batch_size, worker, workers)
    records = samples.training_records(seed, first_step, steps, batch_size, worker, workers)
    numbered = records.element_spec[2].shape.rank == 0
    if augmentation.mixes and numbered and num_classes is None:
        raise ValueError("mixup and cutmix mix labels of one number per class; give num_classes")
    one_hot = numbered and num_classes is not None
    augment = image_augmentation(augmentation, preprocessing, samples.exif)

    def sample(position, encoded, label):
        return augment(encoded, [seed, position]), tf.one_hot(label, num_classes) if one_hot else label

    batches = _batched(records.map(sample, tf.data.AUTOTUNE), share, drop_remainder=True)
    if not augmentation.mixes:
        return batches
    blend = batch_augmentation(augmentation)

    def mixed(step, batch):
        return blend(*batch, [-1 - seed, step * workers + worker])  # no image has a seed below 0

    steps = tf.data.Dataset.range(first_step, steps)
    return tf.data.Dataset.zip(steps, batches).map(mixed, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def evaluation_batches(samples, preprocessing, batch_size, *, worker=0, workers=1):
    """All samples once, in order; the last batch holds what is left.

    Several workers share each batch, and all get the same number of batches: where the last one is
    short, the share of some is short or empty.

    Returns:
        tf.data.Dataset of (images, labels) as in `training_batches`.

    Raises:
        ValueError: if there are no samples, or the batch does not divide by the workers.

    Example:
        >>> samples = load_dataset("digits").split("test")
        >>> sum(len(labels) for images, labels in evaluation_batches(samples, Preprocessing(16), 64))
        355
    """
    share = _share(samples, batch_size, worker, workers)
    records = samples.evaluation_records()
    first = worker * share  # of each batch
    if workers > 1:
        mine = lambda i, _: (i % batch_size >= first) & (i % batch_size < first + share)  # noqa: E731
        records = records.enumerate().filter(mine).map(lambda _, record: record)

    def sample(encoded, label):
        return decode_and_prepare(encoded, preprocessing, samples.exif), label

    batches = _batched(records.map(sample, tf.data.AUTOTUNE), share)
    if 0 < len(samples) % batch_size <= first:
        batches = batches.concatenate(_empty(batches.element_spec))
    return batches


def _share(samples, batch_size, worker, workers):
    """How many samples of a batch are this worker's."""
    check_not_empty(len(samples))
    if batch_size % workers:
        raise ValueError(f"batch_size must divide by the {workers} workers; got {batch_size}")
    if not 0 <= worker < workers:
        raise ValueError(f"worker must be at least 0 and below workers; got {worker} of {workers}")
    return batch_size // workers


def _batched(samples, size, drop_remainder=False):
    return samples.batch(size, drop_remainder).prefetch(tf.data.AUTOTUNE)


def _empty(spec):
    """A data set of one batch without samples."""
    return tf.data.Dataset.from_tensors(
        tf.nest.map_structure(lambda part: tf.zeros([side or 0 for side in part.shape], part.dtype), spec)
    )
