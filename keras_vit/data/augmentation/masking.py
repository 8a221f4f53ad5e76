"""The patches that are corrupted or masked for training without labels, a function of (seed, step)."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from keras_vit.data.samples import by_step, not_converted, stream_seed
from keras_vit.rules import number
from keras_vit.types import Tensor

STREAM = 0x6D61736B  # makes the random numbers independent of others of the same seed and step


def masked_patch_batches(
    batches: tf.data.Dataset,
    patch_targets: Callable[[Tensor], Tensor],
    *,
    seed: int,
    first_step: int = 0,
    worker: int = 0,
    workers: int = 1,
    corrupt_rate: float = 0.5,
    mask_fraction: float = 0.8,
    random_fraction: float = 0.1,
) -> tf.data.Dataset:
    """Convert batches of images to batches for `MaskedPatchPredictor.fit`; labels are dropped.

    Args:
        batches: tf.data.Dataset of images (batch, height, width, channels), or of (images, …).
        patch_targets: A function from images to the target of each patch: int classes (batch, patches, …),
            or floats (batch, patches, targets).
        seed: An int.
        first_step: The step of the first batch.
        worker, workers: The worker's index, and the number of workers, each with a part of the global batch.
        corrupt_rate, mask_fraction, random_fraction: As in `corruption`.

    Returns:
        tf.data.Dataset of (inputs, targets, weights): a dict of `images` and `sources`, the result of
        `patch_targets`, and a weight for each loss, 0 where the patch is not corrupted. Their mean is 1, so
        that a mean over all patches is one over the corrupted.

    Raises:
        ValueError: as `corruption`.

    Example:
        >>> predictor = keras_vit.tasks.pretraining.masked_patch_predictor.MaskedPatchPredictor(
        ...     keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3))
        >>> batches = tf.data.Dataset.from_tensors(images)
        >>> batches = masked_patch_batches(batches, predictor.patch_targets, seed=0)
        >>> inputs, targets, weights = next(iter(batches))
        >>> inputs["sources"].shape, targets.shape, weights.shape
        (TensorShape([4, 16]), TensorShape([4, 16]), TensorShape([4, 16]))
    """

    @not_converted
    def corrupted(step, batch):
        images = batch[0] if isinstance(batch, tuple) else batch
        targets = patch_targets(images)
        images_here, patches = tf.unstack(tf.shape(targets)[:2])
        rows_here = slice(worker * images_here, (worker + 1) * images_here)
        sampled = corruption(
            images_here * workers, patches, (seed, step), corrupt_rate, mask_fraction, random_fraction
        )
        sources, is_corrupted = (tf.ensure_shape(x[rows_here], targets.shape[:2]) for x in sampled)
        weights = tf.cast(is_corrupted, tf.float32)
        weights = tf.math.divide_no_nan(weights, tf.reduce_mean(weights))
        losses = targets if targets.dtype.is_integer else targets[..., 0]  # of the shape of the losses
        while weights.shape.rank < losses.shape.rank:
            weights = weights[..., tf.newaxis]
        return {"images": images, "sources": sources}, targets, weights * tf.ones_like(losses, tf.float32)

    return by_step(batches, first_step, corrupted)


def random_order_batches(
    batches: tf.data.Dataset,
    patches: int,
    *,
    seed: int,
    first_step: int = 0,
    worker: int = 0,
    workers: int = 1,
) -> tf.data.Dataset:
    """Convert batches of images to batches for `MaskedAutoencoder.fit`.

    Args:
        batches: tf.data.Dataset of images (batch, height, width, channels), or of (images, labels), which are
            passed on.
        patches: The number of patches of an image.
        seed: An int.
        first_step: The step of the first batch.
        worker, workers: The worker's index, and the number of workers, each with a part of the global batch.

    Returns:
        tf.data.Dataset of (inputs,) or (inputs, labels): inputs are a dict of `images` and `order`, int32
        (batch, patches), a random permutation of the patches of each image.

    Example:
        >>> batches = random_order_batches(tf.data.Dataset.from_tensors(images), patches=16, seed=0)
        >>> (inputs,) = next(iter(batches))
        >>> sorted(inputs["order"][0].numpy().tolist()) == [*range(16)]
        True

    Source: He et al. 2022 (MAE, arXiv 2111.06377), section 3.
    """

    @not_converted
    def ordered(step, batch):
        images, *labels = batch if isinstance(batch, tuple) else (batch,)
        here = tf.shape(images)[0]
        drawn = tf.random.stateless_uniform((here * workers, patches), stream_seed(seed, step, STREAM))
        order = tf.argsort(drawn[worker * here : (worker + 1) * here], stable=True)
        return {"images": images, "order": tf.ensure_shape(order, (images.shape[0], patches))}, *labels

    return by_step(batches, first_step, ordered)


def corruption(images, patches, seed, corrupt_rate=0.5, mask_fraction=0.8, random_fraction=0.1):
    """Sample the patches of a batch to corrupt, and what replaces them.

    Args:
        images, patches: The number of images, and of patches in each.
        seed: Two ints, such as (seed, step).
        corrupt_rate: The fraction of each image's patches to corrupt, in (0, 1]; at least one patch is.
        mask_fraction, random_fraction: The fractions of these that the mask token, and another patch of the
            same image replaces. The others are unchanged, and predicted like them.

    Returns:
        (sources, corrupted): int32 and bool (images, patches). A source is the index of the patch that is put
        here, -1 for the mask token.

    Raises:
        ValueError: for a fraction out of range.

    Example:
        >>> sources, corrupted = corruption(2, 16, (0, 1))
        >>> tf.reduce_sum(tf.cast(corrupted, tf.int32), axis=1).numpy().tolist()
        [8, 8]

    Source: Dosovitskiy et al. 2021, appendix B.1.2.
    """
    number(above=0, high=1).check("corrupt_rate", corrupt_rate)
    number(0, 1).check("mask_fraction", mask_fraction)
    number(0, 1).check("random_fraction", random_fraction)
    number(0, 1).check("mask_fraction + random_fraction", mask_fraction + random_fraction)
    seeds = tf.random.experimental.stateless_split(stream_seed(*seed, STREAM), 3)
    order_seed, kind_seed, other_seed = tf.unstack(seeds)
    shape = images, patches
    rank = tf.argsort(tf.argsort(tf.random.stateless_uniform(shape, order_seed)))
    count = tf.maximum(tf.round(corrupt_rate * tf.cast(patches, tf.float32)), 1)
    corrupted = tf.cast(rank, tf.float32) < count

    indices = tf.broadcast_to(tf.range(patches), shape)
    steps = tf.random.stateless_uniform(shape, other_seed, 1, tf.maximum(patches, 2), tf.int32)
    draw = tf.where(corrupted, tf.random.stateless_uniform(shape, kind_seed), 1.0)  # 1: unchanged
    sources = tf.where(draw < mask_fraction + random_fraction, (indices + steps) % patches, indices)
    return tf.where(draw < mask_fraction, -1, sources), corrupted
