"""The outputs of signatures for segmenters: class maps, also of encoded images and at the images' own sizes.

The functions have the names and arguments of those in `signatures`.
"""

import dataclasses

import tensorflow as tf

from keras_vit.export.signatures import map_encoded, resized
from keras_vit.models.pretraining.encoder_model import patch_pixels
from keras_vit.models.vit.geometry import DYNAMIC_SIZE
from keras_vit.preprocessing.image_resizing import resize

MAP = "class_map"


def of_images(images, stages, description):
    """The outputs of `serving_default`.

    Args:
        images: float32 (batch, height, width, channels) in [0, 1].
        stages: A function from such images to what `signatures.forward` returns.
        description: The model's `Description`.

    Returns:
        dict of `logits` (batch, height, width, classes); `class_map`, the class of each pixel (batch, height,
        width), uint8 for up to 256 classes and int32 for more; and `scores`, the probabilities of these
        classes.
    """
    return _with_maps(_logits(images, stages, description))


def of_uint8(images, stages, description):
    """The outputs of `serving_uint8`: of images of any one size, at this size.

    Args:
        images: uint8 (batch, any height, any width, channels).
        stages, description: As for `of_images`.

    Returns:
        dict, as `of_images` returns.
    """
    return _with_maps(_whole_logits(images, stages, description))


def of_bytes(image_bytes, stages, description):
    """The outputs of `serving_bytes`: a mask of each encoded image, of the image's own size.

    A model with one image size computes each image as a whole, resized, as `ImageSegmenter.segment` does with
    `whole=True`; a model for any size pads it to whole patches.

    Args:
        image_bytes: As for `signatures.from_bytes`.
        stages, description: As for `of_images`.

    Returns:
        dict of `mask_bytes`: the contents of gray PNG files, whose values are the classes.

    Raises:
        tf.errors.InvalidArgumentError: as for `signatures.from_bytes`.
    """

    def mask(image):
        classes = class_map(_whole_logits(image, stages, description))
        # A PNG file has values of 8 or 16 bits.
        values = tf.cast(classes, tf.uint8 if description.num_classes <= 256 else tf.uint16)
        return tf.io.encode_png(tf.expand_dims(values[0], -1))

    spec = tf.TensorSpec((), tf.string)
    return {"mask_bytes": map_encoded(mask, image_bytes, description.channels, spec, parallel=8)}


def of_litert(images, stages, description):
    """The outputs of a LiteRT file: the class map alone, so that few bytes are read."""
    return {MAP: class_map(stages(images)["logits"])}


def class_map(logits):
    """The class of each pixel: the first one with the highest logit.

    >>> class_map(tf.constant([[[[0.0, 1.0]]]])).numpy()
    array([[[1]]], dtype=uint8)
    """
    classes = tf.argmax(logits, axis=-1, output_type=tf.int32)
    return tf.cast(classes, tf.uint8) if logits.shape[-1] <= 256 else classes


def _logits(images, stages, description):
    """The logits of the model's input."""
    logits = stages(images)["logits"]
    # The graph of "mask" knows no shape if it takes images of any size.
    return tf.ensure_shape(logits, (None, *description.image_size, description.num_classes))


def _with_maps(logits):
    scores = tf.reduce_max(tf.nn.softmax(logits), axis=-1)
    return {MAP: class_map(logits), "logits": logits, "scores": scores}


def _whole_logits(images, stages, description):
    """The logits of whole images (batch, height, width, channels) in 0…255, at the images' own size."""
    height, width = tf.unstack(tf.shape(images)[1:3])
    # Without a crop: each pixel gets a class.
    prepared = resized(images, dataclasses.replace(description.preprocessing, resize="squash"))
    if description.image_size == DYNAMIC_SIZE:
        return _logits(_padded(prepared, description), stages, description)[:, :height, :width]
    bilinear = dataclasses.replace(description.preprocessing, interpolation="bilinear")
    return resize(_logits(prepared, stages, description), (height, width), bilinear)


def _padded(images, description):
    """Images padded at the bottom and right to whole patches, by the mean color."""
    missing = [
        -side % patch for side, patch in zip(tf.unstack(tf.shape(images)[1:3]), patch_pixels(description))
    ]
    paddings = [(0, 0), *((0, count) for count in missing), (0, 0)]
    mean = tf.constant(description.mean)
    return tf.pad(images - mean, paddings) + mean
