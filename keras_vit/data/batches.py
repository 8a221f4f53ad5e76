"""Samples to batches: each training batch is a function of (seed, step)."""

import tensorflow as tf

from keras_vit.data.augmentation import random_crop, random_flip, random_shift
from keras_vit.data.images import decode, prepare, resized, with_channels


def training_batches(
    samples, preprocessing, batch_size, *, seed, steps, first_step=0, crop_area=None, shift=0.0, flip=False
):
    """The batches of a training run, from one step to another.

    Every pass over the data is in a new order, a stateless permutation; batch k and its
    augmentation depend on the seed and k alone, so a run that starts at step k gets what an
    uninterrupted one would have got.

    Args:
        samples: `Samples` to draw from.
        preprocessing: How images become model input.
        batch_size: Samples in a batch; every batch is full, running over into the next pass.
        seed: An int.
        steps: The step to stop before.
        first_step: The step to start at.
        crop_area: Smallest and largest share of the image for random crops, or None for none.
        shift: Largest random shift as a share of the image's side, in [0, 1].
        flip: Whether to mirror half of the images.

    Returns:
        tf.data.Dataset of (images float32 (batch_size, height, width, channels), labels int32
        (batch_size,)).

    Raises:
        ValueError: if there are no samples, or crops are asked for and `preprocessing` has no
            `image_size`.

    Example:
        >>> samples = load_dataset("digits").split("train")
        >>> batches = training_batches(samples, Preprocessing(16), 8, seed=0, steps=2, shift=0.1)
        >>> [images.shape for images, labels in batches]
        [TensorShape([8, 16, 16, 3]), TensorShape([8, 16, 16, 3])]
    """
    images, labels, read = _tensors(samples, preprocessing)
    n = len(samples)
    if crop_area and preprocessing.image_size is None:
        raise ValueError("random crops need a size to come to; give the preprocessing an image_size")

    def sample(position):
        index = tf.random.experimental.index_shuffle(position % n, [seed, position // n], n - 1)
        crop_seed, shift_seed, flip_seed = ([seed, 3 * position + draw] for draw in range(3))
        image = read(images[index])
        if crop_area:
            pixels = random_crop(image, crop_seed, preprocessing, crop_area)
        else:
            pixels = resized(image, preprocessing)
        if shift:
            pixels = random_shift(pixels, shift_seed, shift)
        if flip:
            pixels = random_flip(pixels, flip_seed)
        return preprocessing.normalise(pixels), labels[index]

    positions = tf.data.Dataset.range(first_step * batch_size, steps * batch_size)
    return _batched(positions.map(sample, tf.data.AUTOTUNE), batch_size)


def evaluation_batches(samples, preprocessing, batch_size):
    """All samples once, in order; the last batch holds what is left.

    Returns:
        tf.data.Dataset of (images, labels) as in `training_batches`.

    Raises:
        ValueError: if there are no samples.

    Example:
        >>> samples = load_dataset("digits").split("test")
        >>> sum(len(labels) for images, labels in evaluation_batches(samples, Preprocessing(16), 64))
        355
    """
    images, labels, read = _tensors(samples, preprocessing)

    def sample(index):
        return prepare(read(images[index]), preprocessing), labels[index]

    return _batched(tf.data.Dataset.range(len(samples)).map(sample, tf.data.AUTOTUNE), batch_size)


def _tensors(samples, preprocessing):
    """Images, labels, and how an image becomes pixels: its file is read first where it names one."""
    if not len(samples):
        raise ValueError("there are no samples to make batches of")
    in_files = isinstance(samples.images[0], str)

    def read(image):
        pixels = decode(tf.io.read_file(image) if in_files else image)
        return with_channels(pixels, preprocessing.channels)

    return tf.constant(samples.images), tf.constant(samples.labels, tf.int32), read


def _batched(samples, batch_size):
    return samples.batch(batch_size, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
