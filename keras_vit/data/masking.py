"""Which patches of a batch are corrupted, and how: functions of (seed, step)."""

import tensorflow as tf

STREAM = 0x6D61736B  # keeps these draws apart from others of the same seed and step


def masked_patch_batches(
    batches,
    patch_targets,
    *,
    seed,
    first_step=0,
    worker=0,
    workers=1,
    corrupt_rate=0.5,
    mask_share=0.8,
    random_share=0.1,
):
    """Batches of images to batches that `MaskedPatchPredictor.fit` takes; labels are left out.

    Args:
        batches: tf.data.Dataset of images (batch, height, width, channels), or of (images, …).
        patch_targets: A function of the images that gives what to predict of each patch: int classes
            (batch, patches, …), or floats (batch, patches, numbers).
        seed: An int.
        first_step: The step of the first batch.
        worker, workers: Which part of the global batch these batches are.
        corrupt_rate, mask_share, random_share: As in `corruption`.

    Returns:
        tf.data.Dataset of (inputs, targets, weights): a dict of `images` and `sources`, what
        `patch_targets` gives, and a weight for each loss, 0 where the patch is not corrupted. They
        are 1 on average, so that a mean over all patches is one over the corrupted.

    Raises:
        ValueError: as `corruption`.

    Example:
        >>> predictor = keras_vit.models.masked_patch.MaskedPatchPredictor(
        ...     keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3))
        >>> batches = tf.data.Dataset.from_tensors(images)
        >>> batches = masked_patch_batches(batches, predictor.patch_targets, seed=0)
        >>> inputs, targets, weights = next(iter(batches))
        >>> inputs["sources"].shape, targets.shape, weights.shape
        (TensorShape([4, 16]), TensorShape([4, 16]), TensorShape([4, 16]))
    """
    _check(corrupt_rate, mask_share, random_share)

    def corrupted(step, batch):
        images = batch[0] if isinstance(batch, tuple) else batch
        targets = patch_targets(images)
        images_here, patches = tf.unstack(tf.shape(targets)[:2])
        mine = slice(worker * images_here, (worker + 1) * images_here)
        drawn = corruption(
            images_here * workers, patches, (seed, step), corrupt_rate, mask_share, random_share
        )
        sources, chosen = (tf.ensure_shape(x[mine], targets.shape[:2]) for x in drawn)
        weights = tf.cast(chosen, tf.float32)
        weights = tf.math.divide_no_nan(weights, tf.reduce_mean(weights))
        losses = targets if targets.dtype.is_integer else targets[..., 0]  # there is one for each of these
        while weights.shape.rank < losses.shape.rank:
            weights = weights[..., tf.newaxis]
        return {"images": images, "sources": sources}, targets, weights * tf.ones_like(losses, tf.float32)

    steps = tf.data.Dataset.counter(first_step)
    return tf.data.Dataset.zip(steps, batches).map(corrupted, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def corruption(images, patches, seed, corrupt_rate=0.5, mask_share=0.8, random_share=0.1):
    """Draw which patches of a batch are corrupted, and what stands in their place.

    Args:
        images, patches: How many images there are and how many patches in each.
        seed: Two ints, such as (seed, step).
        corrupt_rate: Share of each image's patches, in (0, 1]; rounded to a whole number, at least one.
        mask_share, random_share: Shares of the corrupted that become the mask token, and another patch
            of the same image. The rest stay as they are, and are predicted all the same.

    Returns:
        (sources, corrupted): int32 and bool (images, patches). A source is the number of the patch
        that stands in this place, -1 for the mask token.

    Raises:
        ValueError: for a share out of range.

    Example:
        >>> sources, corrupted = corruption(2, 16, (0, 1))
        >>> tf.reduce_sum(tf.cast(corrupted, tf.int32), axis=1).numpy().tolist()
        [8, 8]

    Source: Dosovitskiy et al. 2021, appendix B.1.2.
    """
    _check(corrupt_rate, mask_share, random_share)
    seed = tf.random.experimental.stateless_fold_in(tf.cast(tf.stack(seed), tf.int64), STREAM)
    order_seed, kind_seed, other_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 3))
    shape = images, patches
    rank = tf.argsort(tf.argsort(tf.random.stateless_uniform(shape, order_seed)))
    count = tf.maximum(tf.round(corrupt_rate * tf.cast(patches, tf.float32)), 1)
    corrupted = tf.cast(rank, tf.float32) < count

    own = tf.broadcast_to(tf.range(patches), shape)
    steps = tf.random.stateless_uniform(shape, other_seed, 1, tf.maximum(patches, 2), tf.int32)
    kind = tf.where(corrupted, tf.random.stateless_uniform(shape, kind_seed), 1.0)  # 1: as it is
    sources = tf.where(kind < mask_share + random_share, (own + steps) % patches, own)
    return tf.where(kind < mask_share, -1, sources), corrupted


def _check(corrupt_rate, mask_share, random_share):
    if not 0 < corrupt_rate <= 1:
        raise ValueError(f"corrupt_rate must be in (0, 1]; got {corrupt_rate!r}")
    if min(mask_share, random_share) < 0 or mask_share + random_share > 1:
        raise ValueError(
            f"mask_share and random_share must not be negative and be 1 at most together; "
            f"got {mask_share!r} and {random_share!r}"
        )
