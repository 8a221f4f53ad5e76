"""Pairs of images and texts: the wording of each image's text is a function of (seed, step)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_vit.data.samples import by_step, not_converted, stream_seed
from keras_vit.data.texts import Texts

STREAM = 0x74657874  # makes the random numbers independent of others of the same seed and step


def pair_batches(
    batches: tf.data.Dataset,
    texts: Texts | Sequence[Any],
    split: str,
    *,
    seed: int,
    first_step: int = 0,
    worker: int = 0,
    workers: int = 1,
) -> tf.data.Dataset:
    """Convert batches of images and labels to batches for `ImageTextModel.fit`.

    Args:
        batches: tf.data.Dataset of (images, labels), which are indices of classes or of images.
        texts: `Texts`.
        split: The split whose wordings are used.
        seed: An int.
        first_step: The step of the first batch.
        worker, workers: The worker's index, and the number of workers, each with a part of the global batch.

    Returns:
        tf.data.Dataset of (inputs, labels): inputs are a dict of `images` and `ids`, int32 (batch, length),
        the token ids of one of the texts of each image's label.

    Example:
        >>> digits = load_dataset("digits_words")
        >>> batches = tf.data.Dataset.from_tensors((images, np.array([7, 7, 1, 2])))
        >>> inputs, classes = next(iter(pair_batches(batches, digits.texts, "train", seed=0)))
        >>> inputs["ids"].shape
        TensorShape([4, 12])
    """
    wordings = texts.wordings[split]
    counts = [len(of_label) for of_label in wordings]
    starts = tf.constant([0, *itertools.accumulate(counts)][:-1], tf.int32)
    counts = tf.constant(counts, tf.int32)
    ids = tf.constant(texts.preprocessing([*itertools.chain.from_iterable(wordings)]))

    @not_converted
    def paired(step, batch):
        images, labels = batch
        here = tf.shape(labels)[0]
        own_seed = stream_seed(seed, step, STREAM)
        drawn = tf.random.stateless_uniform((here * workers,), own_seed, 0, tf.int32.max, tf.int32)
        drawn = drawn[worker * here : (worker + 1) * here] % tf.gather(counts, labels)
        chosen = tf.gather(ids, tf.gather(starts, labels) + drawn)
        return {"images": images, "ids": chosen}, labels

    return by_step(batches, first_step, paired)
