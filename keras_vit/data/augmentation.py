"""Random crops and flips, every draw a function of a seed."""

import tensorflow as tf

from keras_vit.data.images import resize


def random_crop(image, seed, preprocessing, area=(0.05, 1.0)):
    """Crop a random rectangle and resize it to the model's size ("Inception crop").

    Args:
        image: uint8 (height, width, 3).
        seed: Two ints; the same seed crops the same rectangle.
        preprocessing: Gives the size and the interpolation.
        area: Smallest and largest share of the image that the crop covers; its aspect ratio lies
            between 3:4 and 4:3.

    Returns:
        float32 (height, width, 3) in [0, 255].

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
    return tf.ensure_shape(
        resize(cropped, preprocessing.image_size, preprocessing), (*preprocessing.image_size, 3)
    )


def random_flip(image, seed):
    """Mirror the image left to right, for half of all seeds."""
    return tf.image.stateless_random_flip_left_right(image, seed)
