"""Images with the keypoints of an object each, and the parts of them that a model receives."""

from __future__ import annotations

import dataclasses
import math

import tensorflow as tf

from keras_vit.data.augmentation.random_augmentation import PHOTOMETRIC, random_photometric
from keras_vit.data.decoding.model_input import decode
from keras_vit.data.samples import EncodedSamples, not_converted, worker_slots
from keras_vit.tasks.keypoints import points
from keras_vit.tasks.keypoints.cropping import cropped, place_of, scaled, turned, window_of
from keras_vit.tasks.keypoints.labels import COLUMNS
from keras_vit.tasks.keypoints.labels import decode as decode_label
from keras_vit.tasks.keypoints.reader import KeypointReader, shaped


@dataclasses.dataclass(frozen=True)
class KeypointSamples(EncodedSamples):
    """Encoded images and an object in each; an image with several objects is there several times.

    Args:
        images: Paths (str) or file contents (bytes), all of one kind.
        labels: What `labels.encode` returns, for each image.
        reader: The `KeypointReader`.
        exif: As for `Samples`.

    Example:
        >>> image = load_dataset("digits").split("test").images[0]
        >>> from keras_vit.tasks.keypoints.labels import encode, label_of
        >>> label = encode(label_of([[0.5, 0.25, 2]]))
        >>> KeypointSamples((image,), (label,), KeypointReader(("nose",)))[0][1][2:].tolist()
        [[0.5, 0.25, 2.0, 0.0]]
    """

    images: tuple[str | bytes, ...]
    labels: tuple[bytes, ...]
    reader: KeypointReader = KeypointReader(("keypoint",))
    exif: bool = True
    task = "keypoints"

    @property
    def label_values(self):
        return self.reader.label_values

    def _label(self, index):
        return decode_label(self.labels[index])

    def _label_reader(self):
        encoded, shape = tf.constant(self.labels), (-1, COLUMNS)

        def label(index):
            rows = tf.reshape(tf.io.decode_raw(encoded[index], tf.float64), shape)
            return shaped(rows, len(self.reader.names))

        return label


def crop_augmentation(recipe, preprocessing, exif=True):
    """A function from an encoded image, its seed and its label to a training image and its points.

    Args:
        recipe: An `Augmentation`: the object becomes larger or smaller by a factor of `scale_jitter`, its
            window is shifted by up to `shift` of its sides, half of the windows are turned by up to `rotate`
            degrees, half of the images are mirrored with `flip`, and `photometric` is the probability of
            changes of the colors.
        preprocessing: The model's `Preprocessing`.
        exif: Whether to apply the EXIF orientation first.

    Returns:
        A function to float32 (height, width, channels), model input, and float32 (points, 3): as of
        `labels.Keypoints`, where points outside of the window have no label.

    Example:
        >>> from keras_vit.data import Augmentation
        >>> from keras_vit.tasks.keypoints.labels import label_of
        >>> augment = crop_augmentation(Augmentation(flip=True), keras_vit.Preprocessing((32, 24)))
        >>> label = label_of([[0.5, 0.25, 2]], box=(0.25, 0, 0.75, 1))
        >>> image, points = augment(tf.io.encode_png(tf.zeros((40, 50, 3), tf.uint8)), [0, 1], label)
        >>> image.shape, points.shape
        (TensorShape([32, 24, 3]), TensorShape([1, 3]))
    """

    def augment(encoded, seed, label):
        seeds = tf.unstack(tf.random.split(tf.cast(tf.stack(seed), tf.int64), 5))
        image = decode(encoded, exif)
        size = tf.shape(image)[:2]
        window = window_of(label, size, preprocessing.image_size)
        if recipe.scale_jitter:
            window = scaled(window, tf.random.stateless_uniform((), seeds[0], *recipe.scale_jitter))
        if recipe.shift:
            shift = tf.random.stateless_uniform((2,), seeds[1], -recipe.shift, recipe.shift, tf.float64)
            window = tf.concat([window[:2] + shift * window[2:], window[2:]], axis=0)
        angle = None
        if recipe.rotate:
            is_turned = tf.random.stateless_uniform((), seeds[3]) < 0.5
            most = recipe.rotate * math.pi / 180
            angle = tf.where(is_turned, tf.random.stateless_uniform((), seeds[4], -most, most), 0.0)
            label = turned(label, angle, window, size)
        pixels = cropped(image, window, preprocessing, angle)
        label = points.visible(points.moved(label, *place_of(window, size, preprocessing.image_size)))
        if recipe.flip:
            is_mirrored = tf.random.stateless_uniform((), seeds[2]) < 0.5
            pixels = tf.where(is_mirrored, pixels[:, ::-1], pixels)
            label = points.mirrored(label, is_mirrored)
        if recipe.photometric:
            photo_seed = tf.random.fold_in(tf.cast(tf.stack(seed), tf.int64), PHOTOMETRIC)
            pixels = random_photometric(pixels, photo_seed, recipe.photometric)
        return preprocessing.normalize(pixels), points.trained(label)

    return augment


def crop_batches(samples, preprocessing, batch_size):
    """All samples once, in order, each as the window around its object; the last batch may be smaller.

    Args:
        samples: A split of a `Dataset` with keypoints.
        preprocessing: `Preprocessing`.
        batch_size: Objects per batch.

    Returns:
        tf.data.Dataset of (images, labels, windows, sizes, numbers): float32 (batch, height, width,
        channels); float64 (batch, 2 + points, 4), those in records; float64 (batch, 4), as of
        `crops.window_of`; int32 (batch, 2), the heights and widths of the images; and int64 (batch,), a
        number that objects in equal images share.

    Raises:
        ValueError: if there are no samples, or the batch size is not positive.
    """
    if not len(samples):
        raise ValueError("expected at least one sample; got none")
    worker_slots(batch_size, worker=0, workers=1)

    @not_converted
    def sample(encoded, label):
        image = decode(encoded, samples.exif)
        size = tf.shape(image)[:2]
        window = window_of(label, size, preprocessing.image_size)
        pixels = preprocessing.normalize(cropped(image, window, preprocessing))
        return pixels, label, window, size, tf.strings.to_hash_bucket_fast(encoded, 2**62)

    records = samples.evaluation_records().map(sample, tf.data.AUTOTUNE)
    return records.batch(batch_size).prefetch(tf.data.AUTOTUNE)
