"""Images and masks that cannot be decoded: where they are, and errors that name them."""

import concurrent.futures
import contextlib
import itertools
import re

import tensorflow as tf

from keras_vit.labels import label_kind
from keras_vit.messages import listed, one_line
from keras_vit.progress import Progress

AT_A_TIME = 1024  # images that wait for a thread
# TensorFlow's errors for an image that is damaged, missing or protected, or that Pillow cannot read.
UNREADABLE = (
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
    tf.errors.UnknownError,
)


def damaged(samples):
    """Decode all images and masks of samples, in parallel.

    Args:
        samples: A split of a `Dataset`.

    Yields:
        (place, reason) of each that cannot be decoded, two str.

    Raises:
        OSError: if a shard is damaged, so that the images after it cannot be found.

    Example:
        >>> samples = load_dataset("digits").split("test")
        >>> images = (*samples.images[1:], b"no image")
        >>> [(place, reason)] = damaged(keras_vit.data.samples.Samples(images, samples.labels))
        >>> place, reason[:30]
        ('sample 354', 'not a readable image: 8 bytes ')
    """
    for place, reason in of_each(samples, _reason, "decoding images"):
        if reason is not None:
            yield place(), reason


def of_each(samples, function, words, every=1):
    """Compute something of all images and masks of samples, in parallel and with a bar.

    Args:
        samples: A split of a `Dataset`.
        function: A function of two functions, of which one returns an image's content and one decodes it.
        words: The label of the bar.
        every: 10 to take each tenth image.

    Yields:
        A function that returns the image's place, and the result.
    """
    stored = itertools.islice(samples.stored(), 0, None, every)
    has_maps = samples.task is not None and label_kind(samples.task).is_map  # which are counted like images
    with (
        concurrent.futures.ThreadPoolExecutor() as pool,
        Progress(None, words, total=None if has_maps else -(-len(samples) // every), unit="image") as bar,
    ):
        # The first image compiles functions, which several threads would otherwise do at the same time.
        for size in itertools.chain([1], itertools.repeat(AT_A_TIME)):
            if not (chunk := [*itertools.islice(stored, size)]):
                return
            places, *functions = zip(*chunk)
            for place, result in zip(places, pool.map(function, *functions)):
                bar.update()
                yield place, result


def _reason(read, decode):
    """Why an image cannot be read and decoded, in one line; None if it can."""
    try:
        decode(read())
    except (OSError, ValueError, tf.errors.OpError) as error:
        return one_line(getattr(error, "strerror", None) or error)
    return None


@contextlib.contextmanager
def damage_named(splits):
    """Turn TensorFlow's error while samples are read into one that names what cannot be read.

    Args:
        splits: The samples of each split.

    Raises:
        OSError: if a shard cannot be read, with its name.
        ValueError: if images or masks cannot be decoded, with the places of all of them.
    """
    try:
        yield
    except UNREADABLE as error:
        if shard := re.search(r"^(?:OS|FileNotFound|Permission)Error: (.+)$", error.message, re.MULTILINE):
            raise OSError(f"{shard[1]}; run the same command again when it can be read") from error
        broken = [*itertools.chain.from_iterable(map(damaged, splits))]
        if not broken:
            raise
        places = listed([f"{place} ({reason})" for place, reason in broken])
        raise ValueError(
            f"{len(broken)} image(s) cannot be read: {places}; restore them and run the same command again"
        ) from error
