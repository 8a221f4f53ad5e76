"""Images and masks that cannot be decoded: where they are, and errors that name them."""

import concurrent.futures
import contextlib
import itertools

import tensorflow as tf
from tqdm import tqdm

from keras_vit.messages import listed, one_line

AT_A_TIME = 1024  # checks that wait for a thread
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
        >>> [*damaged(keras_vit.data.samples.Samples(images, samples.labels))]
        [('sample 354', 'not a readable image: 8 bytes (expected JPEG, PNG, BMP, GIF, WEBP, TIFF)')]
    """
    checks = iter(samples.checks())
    with (
        concurrent.futures.ThreadPoolExecutor() as pool,
        tqdm(total=len(samples), desc="decoding images", unit="image", delay=2, disable=None) as bar,
    ):
        while chunk := [*itertools.islice(checks, AT_A_TIME)]:
            places, functions = zip(*chunk)
            for place, reason in zip(places, pool.map(_reason, functions)):
                bar.update()
                if reason is not None:
                    yield place(), reason


def _reason(check):
    """Why a check fails, in one line; None if it does not."""
    try:
        check()
    except (OSError, ValueError, tf.errors.OpError) as error:
        return one_line(getattr(error, "strerror", None) or error)
    return None


@contextlib.contextmanager
def damage_named(splits):
    """Turn TensorFlow's error while samples are read into a ValueError that names all that are damaged.

    Args:
        splits: The samples of each split.
    """
    try:
        yield
    except UNREADABLE as error:
        found = [*itertools.chain.from_iterable(map(damaged, splits))]
        if not found:
            raise
        places = listed([f"{place} ({reason})" for place, reason in found])
        raise ValueError(
            f"{len(found)} image(s) cannot be read: {places}; restore them and run the same command again"
        ) from error
