"""Random augmentation of training images, a function of a seed."""

import functools

import keras
import tensorflow as tf

from keras_vit.data.augmentation_options import Augmentation as Augmentation
from keras_vit.data.images import decode, decode_window, with_channels
from keras_vit.data.keras_layers import apply_layer, apply_rand_augment
from keras_vit.preprocessing.resizing import resize

NEED_IMAGE_SIZE = ("crop_area", "randaugment", "random_erasing", "cutmix")


def image_augmentation(augmentation, preprocessing, exif=True):
    """A function from an encoded image to a training image.

    Args:
        augmentation: `Augmentation`.
        preprocessing: `Preprocessing`.
        exif: Whether to apply the EXIF orientation first.

    Returns:
        A function from an encoded image and a seed, two ints, to model input: float32 (height, width,
        channels).

    Raises:
        ValueError: if the preprocessing has no size and a change needs one, or for RandAugment of images that
            are not in colour.

    Example:
        >>> augment = image_augmentation(Augmentation(crop_area=(0.05, 1.0)), Preprocessing(32))
        >>> augment(tf.io.encode_png(tf.zeros((40, 50, 3), tf.uint8)), [0, 1]).shape
        TensorShape([32, 32, 3])
    """
    names = [name for name in NEED_IMAGE_SIZE if getattr(augmentation, name)]
    if names and preprocessing.image_size is None:
        raise ValueError(f"{', '.join(names)} need a preprocessing with an image_size; got None")
    if augmentation.randaugment and preprocessing.channels != 3:
        raise ValueError(f"randaugment needs 3 channels; the model reads {preprocessing.channels}")
    changes = _changes(augmentation)

    def augment(encoded, seed):
        crop_seed, shift_seed, flip_seed, *seeds = tf.unstack(tf.random.split(seed, 3 + len(changes)))
        if augmentation.crop_area:
            pixels = random_crop(encoded, crop_seed, preprocessing, augmentation.crop_area, exif)
        else:
            image = with_channels(decode(encoded, exif), preprocessing.channels)
            pixels = preprocessing.resized(image)
        if augmentation.shift:
            pixels = random_shift(pixels, shift_seed, augmentation.shift)
        if augmentation.flip:
            pixels = random_flip(pixels, flip_seed)
        for (apply, layer), layer_seed in zip(changes, seeds):
            changed = apply(layer, tf.expand_dims(pixels, 0), layer_seed)
            pixels = tf.ensure_shape(tf.cast(changed[0], tf.float32), pixels.shape)
        return preprocessing.normalise(pixels)

    return augment


def _changes(augmentation):
    """(the function that applies it, layer) for each Keras layer that changes single images."""
    changes = [(apply_layer, keras.saving.deserialize_keras_object(config)) for config in augmentation.layers]
    if augmentation.randaugment:
        count, magnitude = augmentation.randaugment
        layer = keras.layers.RandAugment((0, 255), count, magnitude, dtype="float32")
        changes.insert(0, (apply_rand_augment, layer))
    if augmentation.random_erasing:
        probability = (augmentation.random_erasing,) * 2  # A single number would be a range from 0.
        changes.append((apply_layer, keras.layers.RandomErasing(probability, dtype="float32")))
    return changes


def batch_augmentation(augmentation):
    """A function that blends the images and labels of a batch with each other.

    Args:
        augmentation: `Augmentation`.

    Returns:
        A function from images (batch, height, width, channels), labels (batch, classes), both float32, and a
        seed, two ints, to images and labels.

    Example:
        >>> blend = batch_augmentation(Augmentation(mixup=0.2))
        >>> images, labels = blend(tf.ones((4, 8, 8, 3)), tf.one_hot([0, 1, 2, 0], 3), [0, 1])
        >>> labels.shape
        TensorShape([4, 3])
    """
    layers = []
    if augmentation.mixup:
        layers.append(keras.layers.MixUp(augmentation.mixup, dtype="float32"))
    if augmentation.cutmix:
        layers.append(keras.layers.CutMix((augmentation.cutmix,) * 2, dtype="float32"))

    def blend(images, labels, seed):
        if labels.shape.rank != 2 or not labels.dtype.is_floating:
            raise ValueError(
                f"mixing expected float labels (batch, classes); got {labels.dtype.name} {labels.shape}"
            )
        choice_seed, layer_seed = tf.unstack(tf.random.split(seed, 2))

        def by(layer):
            mixed = apply_layer(layer, {"images": images, "labels": labels}, layer_seed)
            return tuple(
                tf.ensure_shape(mixed[k], v.shape) for k, v in (("images", images), ("labels", labels))
            )

        chosen = tf.random.stateless_uniform((), choice_seed, 0, len(layers), tf.int32)
        return tf.switch_case(chosen, [functools.partial(by, layer) for layer in layers])

    return blend


def random_crop(encoded, seed, preprocessing, area=(0.05, 1.0), exif=True):
    """Decode a random rectangle of an image and resize it to the model's size ("Inception crop").

    Args:
        encoded: The content of an image file.
        seed: Two ints; the same seed crops the same rectangle.
        preprocessing: `Preprocessing`, of which the size, interpolation and channels are used.
        area: Smallest and largest fraction of the image that the crop covers; its aspect ratio is between
            3:4 and 4:3.
        exif: Whether to apply the EXIF orientation, before the crop.

    Returns:
        float32 (height, width, channels) in [0, 255].

    Example:
        >>> png = tf.io.encode_png(tf.zeros((40, 50, 3), tf.uint8))
        >>> random_crop(png, [0, 1], Preprocessing(32)).shape
        TensorShape([32, 32, 3])

    Source: `vit_jax/input_pipeline.py`.
    """

    def window(shape):
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            tf.concat([shape, [3]], 0),
            tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
            seed,
            min_object_covered=0.0,
            aspect_ratio_range=(0.75, 1.33),
            area_range=area,
            max_attempts=100,
            use_image_if_no_bounding_boxes=True,
        )
        return tf.concat([begin[:2], size[:2]], 0)

    image = with_channels(decode_window(encoded, window, exif), preprocessing.channels)
    return resize(image, preprocessing.image_size, preprocessing)


def random_shift(image, seed, fraction):
    """Shift an image by up to `fraction` of each side; the exposed border is black.

    Args:
        image: float32 (height, width, channels) in [0, 255].
        seed: Two ints; the same seed shifts by the same vector.
        fraction: Largest shift as a fraction of the side, in [0, 1]; at subpixel precision.

    Returns:
        float32 (height, width, channels), interpolated bilinearly.

    Example:
        >>> random_shift(tf.zeros((16, 16, 3)), [0, 1], fraction=0.1).shape
        TensorShape([16, 16, 3])
    """
    shape = tf.shape(image)[:2]
    down, right = tf.unstack(tf.random.stateless_uniform((2,), seed, -fraction, fraction))
    down, right = down * tf.cast(shape[0], tf.float32), right * tf.cast(shape[1], tf.float32)
    shifted = tf.raw_ops.ImageProjectiveTransformV3(
        images=tf.expand_dims(image, 0),
        transforms=[[1.0, 0.0, -right, 0.0, 1.0, -down, 0.0, 0.0]],
        output_shape=shape,
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
    )
    return tf.ensure_shape(shifted[0], image.shape)


def random_flip(image, seed):
    """Mirror the image left to right, for half of all seeds.

    Example:
        >>> random_flip(tf.zeros((16, 16, 3)), [0, 1]).shape
        TensorShape([16, 16, 3])

    Source: `vit_jax/input_pipeline.py`.
    """
    return tf.image.stateless_random_flip_left_right(image, seed)
