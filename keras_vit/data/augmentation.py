"""Random crops, shifts and flips, every draw a function of a seed."""

import tensorflow as tf

from keras_vit.data.images import resize


def random_crop(image, seed, preprocessing, area=(0.05, 1.0)):
    """Crop a random rectangle and resize it to the model's size ("Inception crop").

    Args:
        image: (height, width, channels), uint8 or float32 in [0, 255].
        seed: Two ints; the same seed crops the same rectangle.
        preprocessing: Gives the size and the interpolation.
        area: Smallest and largest share of the image that the crop covers; its aspect ratio lies
            between 3:4 and 4:3.

    Returns:
        float32 (height, width, channels) in [0, 255].

    Example:
        >>> random_crop(tf.zeros((40, 50, 3), tf.uint8), [0, 1], Preprocessing(32)).shape
        TensorShape([32, 32, 3])

    Source: `vit_jax/input_pipeline.py`.
    """
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.shape(image),
        tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        seed,
        min_object_covered=0.0,
        aspect_ratio_range=(0.75, 1.33),
        area_range=area,
        max_attempts=100,
        use_image_if_no_bounding_boxes=True,
    )
    cropped = tf.cast(tf.slice(image, begin, size), tf.float32)
    pixels = resize(cropped, preprocessing.image_size, preprocessing)
    return tf.ensure_shape(pixels, (*preprocessing.image_size, preprocessing.channels))


def random_shift(image, seed, fraction):
    """Move an image by up to `fraction` of each side; what comes in at the border is black.

    Args:
        image: float32 (height, width, channels) in [0, 255].
        seed: Two ints; the same seed moves it the same way.
        fraction: Largest shift as a share of the side, in [0, 1]; not in whole pixels.

    Returns:
        float32 (height, width, channels), interpolated bilinearly.

    Example:
        >>> random_shift(tf.zeros((16, 16, 3)), [0, 1], fraction=0.1).shape
        TensorShape([16, 16, 3])
    """
    shape = tf.shape(image)[:2]
    down, right = tf.unstack(tf.random.stateless_uniform((2,), seed, -fraction, fraction))
    down, right = down * tf.cast(shape[0], tf.float32), right * tf.cast(shape[1], tf.float32)
    moved = tf.raw_ops.ImageProjectiveTransformV3(
        images=tf.expand_dims(image, 0),
        transforms=[[1.0, 0.0, -right, 0.0, 1.0, -down, 0.0, 0.0]],
        output_shape=shape,
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
    )
    return tf.ensure_shape(moved[0], image.shape)


def random_flip(image, seed):
    """Mirror the image left to right, for half of all seeds.

    Example:
        >>> random_flip(tf.zeros((16, 16, 3)), [0, 1]).shape
        TensorShape([16, 16, 3])

    Source: `vit_jax/input_pipeline.py`.
    """
    return tf.image.stateless_random_flip_left_right(image, seed)
