"""Batches of patches, whose size is drawn for each batch."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from keras_vit.data.samples import by_step, not_converted, stream_seed

STREAM = 0x666C6578  # makes the random numbers independent of others of the same seed and step


def drawn_patch_batches(
    batches: tf.data.Dataset, patch_sizes: Sequence[int], *, seed: int, first_step: int = 0
) -> tf.data.Dataset:
    """Cut the images of each batch into patches of a size that is drawn uniformly.

    The size depends only on the seed and the step, so that all workers draw the same.

    Args:
        batches: tf.data.Dataset of (images, …): images (batch, height, width, channels), whose other
            elements, such as labels, are passed on.
        patch_sizes: Sides of patches in pixels, which divide the images.
        seed: An int.
        first_step: The step of the first batch.

    Returns:
        tf.data.Dataset of (patches, …): patches (batch, rows, columns, side · side · channels), pixels in
        row-major order with the channels last, as from `layers.extract_patches`.

    Example:
        >>> images = tf.data.Dataset.from_tensors((tf.zeros((2, 16, 16, 3)), tf.zeros(2))).repeat(9)
        >>> batches = drawn_patch_batches(images, (4, 8), seed=0)
        >>> sorted({tuple(patches.shape) for patches, labels in batches})
        [(2, 2, 2, 192), (2, 4, 4, 48)]

    Source: Beyer et al. 2023 (FlexiViT, arXiv 2212.08013), section 3.3;
    `big_vision/trainers/proj/flexi/common.py`.
    """

    @not_converted
    def cut(step, batch):
        images, *others = batch
        numbers = stream_seed(seed, step, STREAM)
        index = tf.random.stateless_uniform((), numbers, maxval=len(patch_sizes), dtype=tf.int32)
        side = tf.gather(list(patch_sizes), index)
        batch_size, height, width, channels = tf.unstack(tf.shape(images))
        rows, columns = height // side, width // side
        x = tf.reshape(images, (batch_size, rows, side, columns, side, channels))
        x = tf.transpose(x, (0, 1, 3, 2, 4, 5))
        patches = tf.reshape(x, (batch_size, rows, columns, side * side * channels))
        return tf.ensure_shape(patches, (images.shape[0], None, None, None)), *others

    return by_step(batches, first_step, cut)
