"""Batches of the images that can be read, and why the others cannot."""

import itertools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_vit.data.decoding.model_input import check_image, decode, prepared
from keras_vit.data.samples import Samples, not_converted
from keras_vit.labels import kind_of_samples
from keras_vit.messages import one_line
from keras_vit.preprocessing.file_batches import FileBatch


class Readable(NamedTuple):
    """A batch of images that can be read.

    Attributes:
        numbers: The numbers of the samples, int64 (batch,).
        inputs: The model input: float32 (batch, height, width, channels), or a dict of packed patches.
        sizes: The heights and widths of the images as they are shown, int32 (batch, 2).
        labels: As for `evaluation_batches`; 0 in place of a map and of boxes.
    """

    numbers: np.ndarray
    inputs: Any
    sizes: np.ndarray
    labels: np.ndarray


def readable_batches(samples, start, stop, preprocessing, batch_size):
    """The images that can be read, of the samples from one number to another.

    An image that cannot be read or decoded is left out, and `why_unreadable` says why. Images are decoded in
    parallel, and ahead of their use.

    Args:
        samples: A split of a `Dataset`.
        start, stop: The first number, and the one to stop before.
        preprocessing: `Preprocessing`; one for images of any size has batches of one image.
        batch_size: Images per batch; the last batch may be smaller.

    Yields:
        `Readable`, in any order of the samples, but always the same.

    Example:
        >>> samples = load_dataset("digits").split("test")
        >>> from keras_vit.data.readable import readable_batches
        >>> [len(batch.numbers) for batch in readable_batches(samples, 100, 150, Preprocessing(16), 20)]
        [20, 20, 10]
    """
    records = samples.numbered_records(start, stop)
    moves = kind_of_samples(samples, records.element_spec[2].shape.rank).moves

    @not_converted
    def decoded(number, encoded, label):
        image = decode(encoded, samples.exif)
        inputs = image if preprocessing.packs else prepared(image, preprocessing)
        return number, inputs, tf.shape(image)[:2], tf.constant(0) if moves else label

    images = records.map(decoded, tf.data.AUTOTUNE).ignore_errors()
    size = batch_size if preprocessing.has_fixed_shape else 1
    if not preprocessing.packs:
        yield from map(Readable._make, images.batch(size).prefetch(tf.data.AUTOTUNE).as_numpy_iterator())
        return
    stream = images.prefetch(size).as_numpy_iterator()
    while batch := [*itertools.islice(stream, size)]:
        numbers, inputs, sizes, labels = zip(*batch)
        yield Readable(np.array(numbers), preprocessing(list(inputs)), np.array(sizes), np.array(labels))


def readable_files(paths, preprocessing, batch_size, first=0):
    """As `keras_vit.preprocessing.file_batches.file_batches`, by TensorFlow, in parallel.

    Args:
        paths: Of image files.
        preprocessing, batch_size: As for `readable_batches`.
        first: The number of the first file.

    Yields:
        `FileBatch`.

    Example:
        >>> from keras_vit.data.readable import readable_files
        >>> keras.utils.save_img(tmp / "a.png", np.zeros((8, 8, 3)))
        >>> (batch,) = readable_files([f"{tmp}/none.png", f"{tmp}/a.png"], Preprocessing(16), 32)
        >>> batch.numbers, batch.errors
        ... # doctest: +ELLIPSIS
        ([1], {0: 'not a readable image: .../none.png (No such file or directory)'})
    """
    samples = Samples(tuple(paths), (0,) * len(paths))

    def errors(numbers):
        reasons = ((number, why_unreadable(samples, number)) for number in numbers)
        return {number: f"not a readable image: {paths[number]} ({reason})" for number, reason in reasons}

    for batch in readable_batches(samples, first, len(paths), preprocessing, batch_size):
        numbers = batch.numbers.tolist()
        missing = sorted({*range(first, numbers[-1])} - {*numbers})
        yield FileBatch(numbers, batch.inputs, errors(missing))
        first = numbers[-1] + 1
    if first < len(paths):
        yield FileBatch([], None, errors(range(first, len(paths))))


def why_unreadable(samples, number):
    """Why an image cannot be read and decoded, in one line.

    Raises:
        OSError: if a shard cannot be read, or the image can be read now.

    Example:
        >>> from keras_vit.data.readable import why_unreadable
        >>> why_unreadable(keras_vit.data.samples.Samples(("nowhere.png",), (0,)), 0)
        'No such file or directory'
    """
    name = samples.place(number)
    try:
        check_image(samples.content(number))
    except OSError as error:
        if error.filename != name:
            raise
        return one_line(error.strerror)
    except ValueError as error:
        return one_line(error)
    raise OSError(f"{name} could not be read, but can be now; run the same command again")
